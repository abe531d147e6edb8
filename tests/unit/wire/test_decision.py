# SPDX-License-Identifier: Apache-2.0
"""What is stored with a server, and what is read back."""

from __future__ import annotations

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology.peer import PeerReason
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.wire.decision import Decision, read_decision
from nova_hpc_common.level import AffinityPolicy, Level

PAIRS = st.integers(1, 2**32 - 1).flatmap(
    lambda all_: st.tuples(st.integers(1, all_), st.just(all_))
)
DECISIONS = st.builds(
    Decision,
    st.sampled_from(Level),
    st.sampled_from(AffinityPolicy),
    st.sampled_from(Level),
    st.none() | PAIRS,
    st.dictionaries(
        st.tuples(st.integers(0, 20), st.integers(0, 20)), st.sampled_from(PeerReason), max_size=4
    ).map(lambda found: tuple((*pair, why) for pair, why in sorted(found.items()))),
    st.sampled_from(PeerWish),
)
GOOD = Decision(Level.SWITCH, AffinityPolicy.PREFERRED, Level.NUMA)


def test_the_text() -> None:
    assert GOOD.dumps() == '{"v":1,"asked":"switch","policy":"preferred","reached":"numa"}'


@given(DECISIONS)
def test_round_trip(decision: Decision) -> None:
    text = decision.dumps()
    assert len(text.encode()) <= 255
    assert read_decision(text) == decision


@given(DECISIONS, st.integers(0, 50))
def test_a_text_that_is_cut(decision: Decision, length: int) -> None:
    text = decision.dumps()
    assert length < len(text)
    assert read_decision(text[:length]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"v": 1.0},
        {"v": "1"},
        {"asked": "pix"},
        {"asked": 0},
        {"asked": ["switch"]},
        {"policy": None},
        {"reached": {}},
        {"redirected": [2, 1]},
        {"redirected": [0, 1]},
        {"redirected": [True, 1]},
        {"redirected": 1},
        {"peers": [1]},
        {"peers": {"ats": "1"}},
        {"peers": {"ats": "1-99999"}},
        {"peers": {"ats": 7}},
        {"wish": None},
        {"wish": 1},
    ],
)
def test_versions_and_words_that_are_not_known(change: dict[str, object]) -> None:
    assert read_decision(json.dumps({**json.loads(GOOD.dumps()), **change})) is None


@pytest.mark.parametrize("text", [None, 7, b"{}", "", "null", "[1]", "1", "{", "[" * 250, "NaN"])
def test_garbage(text: object) -> None:
    assert read_decision(text) is None


def test_more_pairs_than_there_is_room_for() -> None:
    """Eight GPUs, each with eight functions: the rest of the record is worth more."""
    pairs = tuple((gpu, 8 + other, PeerReason.ATS) for gpu in range(8) for other in range(8))
    text = attrs.evolve(GOOD, peers=pairs).dumps()
    assert read_decision(text) == GOOD
    # The wish has room then, and where only it has none it goes.
    wished = attrs.evolve(GOOD, wish=PeerWish.TRANSLATED)
    assert read_decision(attrs.evolve(wished, peers=pairs).dumps()) == wished
    most = next(
        found
        for some in range(len(pairs), 0, -1)
        if read_decision((found := attrs.evolve(GOOD, peers=pairs[:some])).dumps()) == found
    )
    assert read_decision(attrs.evolve(most, wish=PeerWish.TRANSLATED).dumps()) == most
    few = attrs.evolve(GOOD, redirected=(16, 16), peers=pairs[:16])
    assert len(few.dumps()) <= 255
    assert read_decision(few.dumps()) == few


def test_a_word_of_a_later_release_is_left_out() -> None:
    text = GOOD.dumps()[:-1] + ',"peers":{"ats":"0-2","magic":"1-3"}}'
    assert read_decision(text) == attrs.evolve(GOOD, peers=((0, 2, PeerReason.ATS),))
    assert read_decision(GOOD.dumps()[:-1] + ',"wish":"magic"}') == GOOD


def test_more_keys_of_the_same_version_do_no_harm() -> None:
    assert read_decision(GOOD.dumps()[:-1] + ',"more":1}') == GOOD
    assert read_decision(GOOD.dumps()[:-1] + ',"more":"' + "x" * 255 + '"}') is None


@given(st.text())
def test_any_text(text: str) -> None:
    assert read_decision(text) is None
