# SPDX-License-Identifier: Apache-2.0
"""Ratios with exact intervals from few runs, whatever the distribution of their noise.

Runs in turns (A B B A) are compared pair by pair: the Hodges-Lehmann estimate on logarithms,
with the interval of Wilcoxon's signed-rank test. Runs of two occasions are compared as two
groups: the same with the interval of Mann and Whitney's test. Both intervals are exact for
noise that is symmetric, or the same in both groups; a bootstrap of six pairs is too narrow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95
#: Five pairs reach 93.75 % at most, and a group of five against five 99 %.
LEAST_PAIRS: Final = 6

SLOW: Final = "slow"
LEVEL: Final = "level"
UNDECIDED: Final = "undecided"


class Ratio(NamedTuple):
    """How fast the tested side is: 1 is level with the baseline, 0.8 a fifth slower."""

    ratio: float
    low: float
    high: float
    #: Of the interval; at least :data:`CONFIDENCE` if there were enough runs.
    confidence: float
    #: Pairs, or runs of the smaller group.
    pairs: int


def compare_pairs(base: Sequence[float], test: Sequence[float], higher: bool) -> Ratio:
    """Compute the ratio and its exact interval from runs that were made in turns.

    :param base: values of the baseline's runs, all above 0.
    :param test: the tested side's value beside each.
    :param higher: True if more is better.
    :raises ValueError: the numbers of runs differ, or are 0.
    """
    if len(base) != len(test) or not base:
        raise ValueError(f"{len(base)} runs of the baseline and {len(test)} beside them")
    sign = 1 if higher else -1
    logs = [sign * math.log(new / old) for old, new in zip(base, test)]  # noqa: B905
    count = len(logs)
    averages = sorted(
        (logs[first] + logs[second]) / 2 for first in range(count) for second in range(first, count)
    )
    cut, confidence = _cut_tails(_count_signed_ranks(count), 2**count, len(averages))
    return _build_ratio(averages, cut, confidence, count)


def compare_groups(base: Sequence[float], test: Sequence[float], higher: bool) -> Ratio:
    """Compute the ratio to runs from another time, such as the runs of a file.

    :param higher: True if more is better.
    :raises ValueError: one side has no runs.
    """
    if not base or not test:
        raise ValueError(f"{len(base)} runs of the baseline and {len(test)} to compare")
    sign = 1 if higher else -1
    shifts = sorted(sign * math.log(new / old) for old in base for new in test)
    ways = _count_rank_sums(len(base), len(test))
    cut, confidence = _cut_tails(ways, sum(ways), len(shifts))
    return _build_ratio(shifts, cut, confidence, min(len(base), len(test)))


def judge_ratio(ratio: Ratio, floor: float) -> str:
    """Judge: ``slow`` if surely below *floor*, ``level`` if surely above, else ``undecided``."""
    if ratio.confidence < CONFIDENCE or ratio.pairs < LEAST_PAIRS:
        return UNDECIDED
    if ratio.high < floor:
        return SLOW
    return LEVEL if ratio.low >= floor else UNDECIDED


@functools.lru_cache(maxsize=None)  # noqa: UP033
def _count_signed_ranks(count: int) -> tuple[int, ...]:
    """Count for each sum of positive ranks how many of the ``2**count`` sign vectors give it."""
    ways = [1]
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0)
            + (ways[total - rank] if 0 <= total - rank < len(ways) else 0)
            for total in range(len(ways) + rank)
        ]
    return tuple(ways)


@functools.lru_cache(maxsize=None)  # noqa: UP033
def _count_rank_sums(first: int, second: int) -> tuple[int, ...]:
    """Return for each value of Mann and Whitney's U how many orders of two groups give it.

    The numbers are Gauss's coefficients.
    """
    size = first * second + 1
    ways = [1] + [0] * (size - 1)
    for step in range(1, first + 1):
        # Times (1 - x^(second + step)) / (1 - x^step).
        for total in range(size - 1, second + step - 1, -1):
            ways[total] -= ways[total - second - step]
        for total in range(step, size):
            ways[total] += ways[total - step]
    return tuple(ways)


def _cut_tails(ways: Sequence[int], total: int, values: int) -> tuple[int, float]:
    """Return the number of sorted values that each end loses, and the confidence of the rest.

    :param ways: number of outcomes for each value of the statistic.
    :param total: sum of *ways*.
    :param values: number of sorted values.
    """
    cut, tail = 0, 0
    while cut < values // 2 and 2 * (tail + ways[cut]) <= (1 - CONFIDENCE) * total:
        tail += ways[cut]
        cut += 1
    cut = max(cut, 1)
    return cut, 1 - 2 * sum(ways[:cut]) / total


def _build_ratio(values: Sequence[float], cut: int, confidence: float, pairs: int) -> Ratio:
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return Ratio(
        math.exp(middle),
        math.exp(values[cut - 1]),
        math.exp(values[-cut]),
        max(0.0, round(confidence, 4)),
        pairs,
    )
