# SPDX-License-Identifier: Apache-2.0
"""The first of many, and how many more there are."""

from __future__ import annotations

from nova_hpc_common.outside.name_lists import cut_after, join_first


def test_names_in_one_line() -> None:
    assert join_first([], 2) == ""
    assert join_first(["a", "b"], 2) == "a, b"
    assert join_first(list("abcde"), 2, "; ") == "a; b and 3 more"
    assert join_first(dict.fromkeys("abc"), 2, "; ", "; and ") == "a; b; and 1 more"


def test_lines_and_one_for_the_rest() -> None:
    assert cut_after(["a", "b"], 2, "and {} more".format) == ["a", "b"]
    assert cut_after(("a", "b", "c"), 1, "and {} more".format) == ["a", "and 2 more"]
