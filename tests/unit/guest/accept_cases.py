# SPDX-License-Identifier: Apache-2.0
"""Recorded trials, and cases made by hand: one for each cause."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nova_hpc_guest.accept.evidence import AcceptanceRow, Evidence, TimeShare
from nova_hpc_guest.accept.facts import GuestFacts, parse_facts
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.ratio import Ratio, judge_ratio

DATA = Path(__file__).parents[2] / "data/accept"


def row(
    name: str,
    ratio: float,
    against: str = "beside",
    half: float = 0.02,
    base: float = 100.0,
    pairs: int = 6,
) -> AcceptanceRow:
    """A row whose interval is *half* of its ratio to both sides."""
    probe = PROBE_OF[name]
    measured = Ratio(ratio, ratio * (1 - half), ratio * (1 + half), 0.9688, pairs)
    test = base * ratio if probe.higher else base / ratio
    return AcceptanceRow(
        *(name, probe.unit, probe.higher, against, base, test, *measured[:4], pairs, probe.floor),
        judge_ratio(measured, probe.floor),
    )


def evidence(
    slow: Mapping[str, float],
    level: tuple[str, ...] = (),
    base: Mapping[str, Any] | None = None,
    test: Mapping[str, Any] | None = None,
    shares: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    against: str = "beside",
    **more: Any,
) -> Evidence:
    """Evidence of a machine with two CPUs that has all its time, but for what is given."""
    common = {"online": (0, 1), "allowed": (0, 1), "blas": "openblas", "clocksource": "tsc"}
    rows = {name: row(name, ratio, against) for name, ratio in slow.items()}
    rows.update({name: row(name, 1.0, against) for name in level if name not in rows})
    counted = {
        name: {
            "own": TimeShare(1.0 if name == "cpu_one" else 2.0, 1.0 if name == "cpu_one" else 2.0),
            "watched": TimeShare(0.9, 0.9),
            **{what: TimeShare(*parts) for what, parts in (shares or {}).get(name, {}).items()},
        }
        for name in rows
    }
    return Evidence(
        rows=rows,
        base=GuestFacts(**{**common, **(base or {})}),
        test=GuestFacts(**{**common, **(test or {})}),
        shares=counted,
        **more,
    )


def read_trials() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "trials.jsonl").read_text().splitlines()]


def restore_trial(trial: Mapping[str, Any]) -> Evidence:
    """The evidence of a recorded trial; its facts are those of the fault."""
    rows = {}
    for name, part in trial["rows"].items():
        probe = PROBE_OF[name]
        measured = Ratio(
            part["ratio"], part["low"], part["high"], part["confidence"], part["pairs"]
        )
        rows[name] = AcceptanceRow(
            *(name, probe.unit, probe.higher, "beside", part["base"], part["test"]),
            *(*measured[:4], part["pairs"], probe.floor, judge_ratio(measured, probe.floor)),
        )
    restored = trial["restored"]
    return Evidence(
        rows=rows,
        base=parse_facts(restored["base"]),
        test=parse_facts(restored["test"]),
        shares={
            name: {what: TimeShare(*parts) for what, parts in taken.items()}
            for name, taken in restored["shares"].items()
        },
        wires={
            name: (frozenset(old), frozenset(new)) for name, (old, new) in restored["wires"].items()
        },
        large={name: tuple(parts) for name, parts in restored["large"].items()},
    )


def repeat_experiment(trial: Mapping[str, Any]) -> Any:
    """What the trial's experiments gave; None for those that were not made."""

    def again(setting: str, probe: str) -> float | None:
        value = trial["again"].get(f"{setting} {probe}")
        return None if value is None else float(value)

    return again


def read_rounds() -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Series of rounds of a machine without a fault."""
    lines = [json.loads(line) for line in (DATA / "rounds.jsonl").read_text().splitlines()]
    for series in sorted({line["series"] for line in lines}):
        yield series, [line["values"] for line in lines if line["series"] == series]
