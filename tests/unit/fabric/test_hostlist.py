# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.output.hostlist import HostListError, compress_hostlist, expand_hostlist

NAMES = st.one_of(
    st.from_regex(r"[a-c]{1,2}-?[0-9]{1,3}", fullmatch=True),
    st.from_regex(r"[a-c][0-9]{1,2}x[0-9]{1,2}", fullmatch=True),
    st.sampled_from(["login", "n", "007", "a.b-1"]),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("[1101-1102]", ["1101", "1102"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a, b[1-2] ,c", ["a", "b1", "b2", "c"]),
    ],
)
def test_what_a_list_stands_for(text, names):
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n[1-3", "do not match"),
        ("n1-3]", "do not match"),
        ("n[[1]]", "do not match"),
        ("n[3-1]", "runs backwards"),
        ("n[a-b]", "no number and no range"),
        ("n[]", "no number and no range"),
        ("", "a name is empty"),
        ("a,,b", "a name is empty"),
        ("n[0-999999999]", "more than 100000 names"),
        ("a[0-999]b[0-999]c[0-9]", "more than 100000 names"),
        ("n[1-99999999999999999999]", "no number and no range"),
    ],
)
def test_what_makes_no_sense_is_refused(text, said):
    with pytest.raises(HostListError, match=said):
        expand_hostlist(text)


@given(st.lists(NAMES, min_size=1, max_size=30))
def test_what_is_compressed_expands_to_the_same(names):
    text = compress_hostlist(names)
    assert sorted(expand_hostlist(text)) == sorted(set(names))
    assert text == compress_hostlist(reversed(names))


def test_neighbours_are_one_range():
    assert compress_hostlist(["n3", "n1", "n2", "n7", "n10"]) == "n[1-3,7,10]"
    assert compress_hostlist(["n08", "n09", "n10", "n9"]) == "n[08-10],n9"
    assert compress_hostlist(["n8", "n9", "n10"]) == "n[8-10]"


@given(st.text(alphabet="na1,[]-0 ", max_size=20))
def test_any_text_is_expanded_or_refused(text):
    try:
        names = expand_hostlist(text)
    except HostListError:
        return
    assert names
