# SPDX-License-Identifier: Apache-2.0
"""Measurements: interleaved sides, medians, rows of the table. Used by all benchmarks."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Row:
    """One line of the table."""

    part: str  # which benchmark
    what: str
    unit: str
    low: float
    median: float
    high: float
    samples: int
    #: The goal in words; empty if there is none.
    goal: str = ""
    #: Whether the goal is reached; None without a goal that a number can decide.
    reached: bool | None = None
    note: str = ""


def row(
    part: str,
    what: str,
    unit: str,
    values: Iterable[float],
    goal: str = "",
    below: float | None = None,
    note: str = "",
) -> Row:
    """A row of measured *values*.

    :param below: the goal is reached if the median is not above it.
    """
    found = sorted(values)
    middle = statistics.median(found)
    return Row(
        part=part,
        what=what,
        unit=unit,
        low=found[0],
        median=middle,
        high=found[-1],
        samples=len(found),
        goal=goal,
        reached=None if below is None else middle <= below,
        note=note,
    )


def timed(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of one call, without garbage collection during the call."""
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        function(*arguments)
        return time.perf_counter() - begin
    finally:
        gc.enable()


def repeat(function: Callable[[Any], Any], inputs: Sequence[Any]) -> list[float]:
    """Seconds of one call for each of *inputs*, after a first call that does not count."""
    function(inputs[0])
    found = []
    gc.collect()
    gc.disable()
    try:
        for each in inputs:
            begin = time.perf_counter()
            function(each)
            found.append(time.perf_counter() - begin)
    finally:
        gc.enable()
    return found


def interleave(
    sides: Mapping[str, Callable[[], float]], rounds: int, warm: bool = True
) -> dict[str, list[float]]:
    """Measure the sides in turn (ABAB), so that a busy machine slows all alike.

    :param sides: name -> function that measures once and returns the value.
    :param warm: whether a first round before *rounds* does not count.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds + warm):
        for name, measure in sides.items():
            value = measure()
            if index or not warm:
                found[name].append(value)
    return found


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The quotients of values that were measured side by side."""
    return [one / other for one, other in zip(above, below, strict=True)]


def mean_interval(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """The 95 % interval of the mean, by resampling *values*, which has at least one entry."""
    rng = random.Random(seed)
    found = sorted(statistics.mean(rng.choices(values, k=len(values))) for _ in range(2000))
    return found[50], found[1949]
