# SPDX-License-Identifier: Apache-2.0
"""What is stored with a server, and what is read back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.model import Policy
from nova_hpc.topology.level import Level
from nova_hpc.wire.decision import Decision, loads

PAIRS = st.integers(1, 2**32 - 1).flatmap(
    lambda all_: st.tuples(st.integers(1, all_), st.just(all_))
)
DECISIONS = st.builds(
    Decision,
    st.sampled_from(Level),
    st.sampled_from(Policy),
    st.sampled_from(Level),
    st.none() | PAIRS,
)
GOOD = Decision(Level.SWITCH, Policy.PREFERRED, Level.NUMA)


def test_the_text() -> None:
    assert GOOD.dumps() == '{"v":1,"asked":"switch","policy":"preferred","reached":"numa"}'


@given(DECISIONS)
def test_round_trip(decision: Decision) -> None:
    text = decision.dumps()
    assert len(text.encode()) <= 255
    assert loads(text) == decision


@given(DECISIONS, st.integers(0, 50))
def test_a_text_that_is_cut(decision: Decision, length: int) -> None:
    text = decision.dumps()
    assert length < len(text)
    assert loads(text[:length]) is None


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
    ],
)
def test_versions_and_words_that_are_not_known(change: dict[str, object]) -> None:
    assert loads(json.dumps({**json.loads(GOOD.dumps()), **change})) is None


@pytest.mark.parametrize("text", [None, 7, b"{}", "", "null", "[1]", "1", "{", "[" * 250, "NaN"])
def test_garbage(text: object) -> None:
    assert loads(text) is None


def test_more_keys_of_the_same_version_do_no_harm() -> None:
    assert loads(GOOD.dumps()[:-1] + ',"more":1}') == GOOD
    assert loads(GOOD.dumps()[:-1] + ',"more":"' + "x" * 255 + '"}') is None


@given(st.text())
def test_any_text(text: str) -> None:
    assert loads(text) is None
