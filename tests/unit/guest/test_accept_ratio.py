# SPDX-License-Identifier: Apache-2.0
"""Ratios and their intervals, against enumeration, simulation, and rounds of a real machine."""

from __future__ import annotations

import collections
import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest.accept import ratio
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.ratio import Ratio, compare_groups, compare_pairs, judge_ratio
from tests.unit.guest.accept_cases import read_rounds

values = st.floats(0.5, 2.0, allow_nan=False)
pairs = st.lists(st.tuples(values, values), min_size=1, max_size=9)


def signed_rank_probability(differences: list[float]) -> float:
    """Two-sided: how many of all vectors of signs are as far from the middle as these are."""
    order = sorted(range(len(differences)), key=lambda index: abs(differences[index]))
    ranks = {index: rank + 1 for rank, index in enumerate(order)}
    seen = sum(ranks[index] for index, each in enumerate(differences) if each > 0)
    total = len(differences) * (len(differences) + 1) // 2
    far = min(seen, total - seen)
    count = 0
    for signs in itertools.product((0, 1), repeat=len(differences)):
        positive = sum(rank for sign, rank in zip(signs, ranks.values(), strict=True) if sign)
        count += min(positive, total - positive) <= far
    return count / 2 ** len(differences)


@pytest.mark.parametrize("count", range(1, 11))
def test_the_distribution_of_signed_ranks_is_that_of_all_signs(count: int) -> None:
    sums = collections.Counter(
        sum(rank for sign, rank in zip(signs, range(1, count + 1), strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=count)
    )
    ways = ratio._count_signed_ranks(count)
    assert list(ways) == [sums[total] for total in range(count * (count + 1) // 2 + 1)]


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 5), (4, 4), (3, 6), (6, 6)])
def test_the_distribution_of_rank_sums_is_that_of_all_orders(first: int, second: int) -> None:
    counts = collections.Counter(
        sum(place - index for index, place in enumerate(places))
        for places in itertools.combinations(range(first + second), first)
    )
    ways = ratio._count_rank_sums(first, second)
    assert list(ways) == [counts[total] for total in range(first * second + 1)]


@given(pairs)
def test_the_interval_is_what_the_test_does_not_refuse(runs: list[tuple[float, float]]) -> None:
    """A shift inside the interval is not refused by enumeration, one outside is."""
    base, test = ([run[side] for run in runs] for side in (0, 1))
    found = compare_pairs(base, test, True)
    logs = [math.log(new / old) for old, new in runs]
    halves = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    edges = [math.log(found.low), math.log(found.high)]
    for left, right in itertools.pairwise([halves[0] - 1, *halves, halves[-1] + 1]):
        if right - left < 1e-9:
            continue
        shift = (left + right) / 2
        moved = [each - shift for each in logs]
        if len({round(abs(each), 12) for each in moved}) < len(moved) or 0 in moved:
            continue  # ties: the enumeration has none
        probability = signed_rank_probability(moved)
        inside = edges[0] < shift < edges[1]
        assert inside == (probability > 1 - found.confidence + 1e-3)


@given(pairs)
def test_turned_round_it_is_the_inverse(runs: list[tuple[float, float]]) -> None:
    base, test = ([run[side] for run in runs] for side in (0, 1))
    for compare in (compare_pairs, compare_groups):
        one, back = compare(base, test, True), compare(test, base, True)
        lower = compare(base, test, False)
        assert one.low <= one.ratio * (1 + 1e-9)
        assert one.ratio <= one.high * (1 + 1e-9)
        assert back.ratio == pytest.approx(1 / one.ratio)
        assert lower.ratio == pytest.approx(1 / one.ratio)
        assert (lower.low, lower.high) == pytest.approx((1 / one.high, 1 / one.low))
        assert one.confidence == back.confidence


def test_six_pairs_are_the_fewest() -> None:
    five = compare_pairs([100.0] * 5, [50.0, 51.0, 49.0, 50.5, 49.5], True)
    assert five.confidence == 0.9375
    assert judge_ratio(five, 0.9) == "undecided"
    six = compare_pairs([100.0] * 6, [50.0, 51.0, 49.0, 50.5, 49.5, 50.2], True)
    assert six.confidence == 0.9688
    assert judge_ratio(six, 0.9) == "slow"
    # Five against five would do for the test, and not for a decision.
    assert judge_ratio(compare_groups([100.0] * 5, [50.0] * 5, True), 0.9) == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.80, 0.94, "slow"),
        (0.95, 1.10, "level"),
        (0.94, 1.02, "undecided"),
        (0.9, 0.95, "undecided"),
    ],
)
def test_a_verdict_is_sure_or_none(low: float, high: float, verdict: str) -> None:
    assert judge_ratio(Ratio(1.0, low, high, 0.96, 6), 0.95) == verdict


def test_pairs_that_are_none() -> None:
    for base, test in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="runs"):
            compare_pairs(base, test, True)
    with pytest.raises(ValueError, match="runs"):
        compare_groups([1.0], [], True)


def cover(count: int, trials: int, dice: random.Random, heavy: bool) -> float:
    """How often the interval of two equal machines contains 1."""
    hits = 0
    for _ in range(trials):
        sides = []
        for _ in range(2):
            noise = [dice.gauss(0, 0.05) for _ in range(count)]
            if heavy:  # now and then a run goes wrong altogether
                noise = [each * 8 if dice.random() < 0.2 else each for each in noise]
            sides.append([math.exp(each) for each in noise])
        found = compare_pairs(sides[0], sides[1], True)
        hits += found.low <= 1 <= found.high
    return hits / trials


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "with outliers"])
def test_the_interval_contains_the_truth(heavy: bool) -> None:
    dice = random.Random(20261126)
    covered = {count: cover(count, 700, dice, heavy) for count in range(6, 21)}
    # At 95 % the standard error of one is 0.8 %, and that of their mean 0.2 %.
    assert min(covered.values()) >= 0.93, covered
    assert sum(covered.values()) / len(covered) >= 0.945, covered


def test_the_interval_of_real_rounds_contains_one() -> None:
    """Rounds of one machine in A B B A: over all probes at least 94 %, as said in the guide."""
    hits = total = slow = 0
    for _, rounds in read_rounds():
        for name, probe in PROBE_OF.items():
            for start in range(len(rounds) - 11):
                window = [each.get(name) for each in rounds[start : start + 12]]
                if None in window:
                    continue
                base, test = [], []
                for turn in range(6):
                    one, two = window[2 * turn : 2 * turn + 2]
                    base.append(one if turn % 2 == 0 else two)
                    test.append(two if turn % 2 == 0 else one)
                found = compare_pairs(base, test, probe.higher)
                hits += found.low <= 1 <= found.high
                slow += judge_ratio(found, probe.floor) == "slow"
                total += 1
    assert total > 100
    assert hits / total >= 0.94, (hits, total)
    assert slow == 0
