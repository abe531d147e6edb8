# SPDX-License-Identifier: Apache-2.0
"""Requests per second of several schedulers that work at the same time."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.concurrency.model import VARIANTS
from benchmarks.concurrency.stage import Stage
from benchmarks.measure import mean_interval
from benchmarks.measure import ratios as quotients
from benchmarks.selection import side
from benchmarks.selection.kept import TOGETHER, Kept
from benchmarks.selection.processes import SIDES, Crew
from benchmarks.selection.side import Question

QUESTIONS: Final = (Question(1), Question(4))
COLUMNS: Final = (
    *("hosts", "schedulers", "asked for", "requests a second, ours", "stock"),
    *("ratio", "its interval (95 %)", "lost claims, ours", "stock", "rounds", "faults"),
)
#: Variants of the race: ours as ``nova-hpc configure`` sets it up, and unchanged stock Nova.
_VARIANTS: Final = {"ours": "ours-spread-shuffle", "stock": "stock"}


def measure(made: Stage, hosts: int, schedulers: int, rounds: int, each: int, kept: Kept) -> None:
    """Measure both sides in turn; every scheduler serves *each* requests in a round."""
    with contextlib.ExitStack() as open_:
        crews = {
            name: open_.enter_context(
                Crew(made, name, side.limits(hosts) | dict(VARIANTS[variant].options), schedulers)
            )
            for name, variant in _VARIANTS.items()
        }
        for question in QUESTIONS:
            wanted = rounds - len(kept.all(TOGETHER, hosts, question))
            for number in range(wanted + 1 if wanted > 0 else 0):
                result: dict[str, Any] = {"schedulers": schedulers}
                for name in SIDES if number % 2 else reversed(SIDES):
                    seconds, found = crews[name].rush(question, each if number else 1)
                    result[name] = {
                        "rate": len(found) / seconds,
                        "lost": sum(one.lost for one in found),
                        "faults": sum(bool(one.fault) for one in found),
                    }
                if number:
                    kept.add(TOGETHER, hosts, question, result)


def cells(hosts: int, question: Question, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The row of the table."""
    rates = {name: [each[name]["rate"] for each in found] for name in SIDES}
    ours, stock = (statistics.median(rates[name]) for name in SIDES)
    ratios = quotients(*(rates[name] for name in SIDES))
    low, high = mean_interval(ratios)
    lost, faults = (
        [str(sum(each[name][what] for each in found)) for name in SIDES]
        for what in ("lost", "faults")
    )
    return [
        *(str(hosts), str(found[0]["schedulers"]), str(question), f"{ours:.2f}", f"{stock:.2f}"),
        *(f"{statistics.fmean(ratios):.2f}", f"{low:.2f} to {high:.2f}"),
        *(*lost, str(len(found)), " and ".join(faults)),
    ]
