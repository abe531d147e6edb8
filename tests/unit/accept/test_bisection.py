# SPDX-License-Identifier: Apache-2.0
"""The bisection against brute force: every place of a fault is tried, and pairs of faults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.accept.bisection import (
    LINKS,
    ONCE,
    FaultLocation,
    FigureTerms,
    Question,
    is_open,
    locate_fault,
    search_members,
)
from nova_hpc_guest.accept.ratio import LEAST_PAIRS, LEVEL, SLOW, UNDECIDED

TERMS = FigureTerms(True, 0.8)
#: A member, or two that have a slow link -> the part of the speed that is left.
Faults = Mapping[tuple[int, ...], float]


def figure_of(members: Sequence[int], faults: Faults) -> float:
    """The figure of a set is that of its slowest part."""
    return min((part for fault, part in faults.items() if set(fault) <= set(members)), default=1.0)


def run_search(
    size: int, faults: Faults, noise: float = 0.0
) -> tuple[FaultLocation, list[Question]]:
    search = search_members(range(1, size + 1), TERMS)
    questions = [next(search)]
    while True:
        question = questions[-1]
        turns = 1 if question.kind == ONCE else LEAST_PAIRS
        figures = {
            one: [
                figure_of(one, faults) * (1 + noise * math.sin(hash((one, turn, 7))))
                for turn in range(turns)
            ]
            for one in question.sets
        }
        assert not is_open(question, figures, TERMS)
        # Only sets of one size are compared, beside all members in the first question.
        assert len({len(one) for one in question.sets if len(one) < size}) == 1
        try:
            questions.append(search.send(figures))
        except StopIteration as end:
            return end.value, questions


@pytest.mark.parametrize("size", range(3, 17))
def test_each_single_fault_is_named(size: int) -> None:
    assert run_search(size, {}, 0.04)[0] == FaultLocation(LEVEL)
    for first in range(1, size + 1):
        location, questions = run_search(size, {(first,): 0.5}, 0.04)
        assert (location.verdict, location.members) == (SLOW, (first,))
        # Halving, the links of the member that no half has, and the witnesses.
        compared = [question for question in questions if question.kind != ONCE]
        assert len(compared) <= 2 + math.ceil(math.log2(size))
        for second in range(first + 1, size + 1):
            location, questions = run_search(size, {(first, second): 0.5}, 0.04)
            assert (location.verdict, location.members) == (SLOW, (first, second))
            runs = [len(question.sets) for question in questions if question.kind == ONCE]
            assert len(questions) <= 3 + math.ceil(math.log2(size))
            assert sum(runs) <= size * size // 4 + size


@st.composite
def two_faults(draw: st.DrawFn) -> tuple[int, dict[tuple[int, ...], float]]:
    size = draw(st.integers(3, 16))
    place = st.lists(st.integers(1, size), min_size=1, max_size=2, unique=True)
    parts = st.sampled_from((0.3, 0.5, 0.7))
    faults = {tuple(sorted(draw(place))): draw(parts) for _ in range(2)}
    return size, faults


@given(two_faults())
def test_two_faults_never_give_a_wrong_name(case: tuple[int, dict[tuple[int, ...], float]]) -> None:
    size, faults = case
    location, _ = run_search(size, faults)
    shared = set.intersection(*map(set, faults))
    # Two of the two links of a member are slow: that is a slow member.
    right = {*faults, *((number,) for number in shared if size == 3)}
    assert location.members in {(), *right}
    assert (location.verdict == SLOW) == bool(location.members)


@pytest.mark.parametrize("size", range(3, 17))
def test_members_that_are_all_slow_have_no_name(size: int) -> None:
    assert run_search(size, {(number,): 0.5 for number in range(1, size + 1)})[0].members == ()


def test_a_cluster_that_is_slow_only_as_a_whole_has_no_name() -> None:
    location, _ = run_search(8, {tuple(range(1, 9)): 0.4})
    assert location == FaultLocation(
        UNDECIDED, "not located: no member and no link is slow by itself"
    )


def test_runs_that_differ_need_more_turns() -> None:
    question = Question(((1, 2), (1, 3), (2, 3)), LINKS)
    figures = {
        one: [1.0, 0.6, 1.0, 0.7, 1.0, 0.9] if one == (1, 2) else [1.0] * 6 for one in question.sets
    }
    assert is_open(question, figures, TERMS)
    assert locate_fault(figures, TERMS).reason == "not located: runs differ too much"
    halves = Question(((1, 2, 3), (4, 5, 6)))
    assert is_open(halves, dict(zip(halves.sets, figures.values(), strict=False)), TERMS)


def test_lower_may_be_better() -> None:
    figures = {(1, 2): [9.0] * 6, (1, 3): [3.0] * 6, (2, 3): [3.0] * 6}
    assert locate_fault(figures, TERMS._replace(higher=False)).members == (1, 2)
