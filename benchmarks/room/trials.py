# SPDX-License-Identifier: Apache-2.0
"""Pieces of trials: small random clouds, each with the answers of a planner and of brute force."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from tests.unit.cloud.room.trials import RoomTrial, try_moves, try_preemption, try_time

#: Brute force tries every sequence of so many moves.
MOST: Final = 3
#: Limit of each of the two searches of the engine, in seconds of the processor.
SECONDS: Final = 1.0

KINDS: Final[Mapping[str, Callable[[int], RoomTrial]]] = {
    "when": try_time,
    "make-room": lambda seed: try_moves(seed, MOST, SECONDS, agreed=False),
    "make-room --agreed": lambda seed: try_moves(seed, MOST, SECONDS, agreed=True),
    "make-room --preempt": try_preemption,
}
_PIECE: Final = 100


def run_pieces(folder: Path, kinds: Sequence[str], clouds: int, minutes: float) -> bool:
    """Run the pieces that are not in a folder yet; returns whether all are there.

    :param minutes: no piece begins after so many.
    """
    until = time.monotonic() + 60 * minutes
    for kind in kinds:
        for start in range(0, clouds, _PIECE):
            path = folder / f"trials.{kind.replace(' --', '-')}.{start:06d}.json"
            if path.exists():
                continue
            if time.monotonic() > until:
                return False
            seeds = range(start, min(start + _PIECE, clouds))
            trials = [attrs.asdict(KINDS[kind](seed)) for seed in seeds]
            path.write_text(json.dumps({"kind": kind, "trials": trials}))
    return True


def read_trials(folder: Path) -> dict[str, list[RoomTrial]]:
    """Read the trials of each kind from the pieces in a folder."""
    found: dict[str, list[RoomTrial]] = {}
    for path in sorted(folder.glob("trials.*.json")):
        piece = json.loads(path.read_text())
        found.setdefault(piece["kind"], []).extend(RoomTrial(**row) for row in piece["trials"])
    return found


def tabulate_trials(kind: str, trials: Sequence[RoomTrial]) -> Iterator[tuple[str, str]]:
    """Yield titles and cells of the table: counts, and ratios of the time."""
    proven = [trial for trial in trials if trial.proven]
    cut = [trial for trial in trials if not trial.proven]
    yield "clouds", f"{len(trials)}"
    yield "seeds", f"{min(t.seed for t in trials)} to {max(t.seed for t in trials)}"
    yield "answers that break a rule", f"{sum(bool(trial.fault) for trial in trials)}"
    yield "worse than brute force", f"{sum(map(is_worse, trials))}"
    yield "of these called proven", f"{sum(map(is_worse, proven))}"
    yield "searches that were cut short", f"{len(cut)}"
    unit = {"when": "known end", "make-room --preempt": "servers"}.get(kind, "moves")
    for title, count in sorted(Counter(_name_answer(kind, trial) for trial in trials).items()):
        yield f"{unit}: {title}", f"{count}"
    ratios = sorted(trial.engine_seconds / trial.brute_seconds for trial in trials)
    yield "engine : brute force, all clouds together", _ratio(trials)
    yield "the same without searches that were cut", _ratio(proven)
    yield "median of the ratios", f"{statistics.median(ratios):.2f}"
    yield "99 % of the ratios are below", f"{ratios[len(ratios) * 99 // 100]:.2f}"
    yield "engine, median ms", f"{statistics.median(t.engine_seconds for t in trials) * 1000:.1f}"
    yield "engine, longest s", f"{max(t.engine_seconds for t in trials):.2f}"


def is_worse(trial: RoomTrial) -> bool:
    """Whether brute force found a better answer."""
    if trial.least < 0:
        return False
    return trial.answer < 0 or trial.answer > trial.least


def _name_answer(kind: str, trial: RoomTrial) -> str:
    if trial.answer < 0:
        return "none"
    if kind == "when":
        return "a later time" if trial.answer else "now"
    return f"{trial.answer:.0f}"


def _ratio(trials: Sequence[RoomTrial]) -> str:
    engine = sum(trial.engine_seconds for trial in trials)
    brute = sum(trial.brute_seconds for trial in trials)
    return f"{engine / brute:.2f}" if brute else ""
