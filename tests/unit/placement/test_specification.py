# SPDX-License-Identifier: Apache-2.0
"""The examples of the contributor guide's page on placement are true."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/source/contributor/placement.rst"
#: What the page defines by example; a section without one defines nothing.
SECTIONS = ("Kinds", "Leftovers", "Aliases", "The gate", "What counts", "Fallback", "Between hosts")


def test_every_example_of_the_page_is_true() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert tried > 30


def test_every_definition_has_an_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for title in SECTIONS:
        _, _, section = text.partition(f"\n{title}\n{'-' * len(title)}\n")
        assert ">>> " in section.partition("\n---")[0], title
