# SPDX-License-Identifier: Apache-2.0
"""From evidence to causes. Only the experiment has an effect: it measures once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from .causes import CAUSES, CHANGES_NOTHING, COSTS_NOTHING, Cause
from .evidence import AcceptanceRow, Evidence

PROVED: Final = "proved"
INDICATED: Final = "indicated"
#: Parts of the gap that an experiment closes: more proves, less takes the cause back.
_PROVES: Final = 0.5
_DROPS: Final = 0.2


class NamedCause(NamedTuple):
    """A cause of slowness found, with its proof, its cure and the probes that it explains."""

    cause: str
    status: str
    #: Part of the gap that the experiment closed; None if it proves otherwise, or was not made.
    recovered: float | None
    says: str
    cure: str
    #: The slow probes that it accounts for.
    explains: tuple[str, ...]
    anchor: str


class Diagnosis(NamedTuple):
    """The causes, and the slow probes that none of them explains."""

    causes: tuple[NamedCause, ...]
    unexplained: tuple[str, ...]


def find_causes(
    seen: Evidence, again: Callable[[str, str], float | None] | None = None
) -> Diagnosis:
    """Find the causes of slow probes.

    :param again: makes an experiment, as ``again("pages=large", "mem_stream")``; None if no
        experiment can be made.
    """
    left = set(seen.slow)
    causes: list[NamedCause] = []
    for cause in CAUSES:
        says = match_cause(cause, seen)
        if says is None or not left & cause.explains:
            continue
        status, recovered = _make_experiment(cause, seen, again)
        if status is None:
            continue
        explained = tuple(sorted(seen.slow & cause.explains))
        causes.append(
            NamedCause(cause.name, status, recovered, says, cause.cure, explained, cause.anchor)
        )
        left -= cause.explains
    return Diagnosis(tuple(causes), tuple(sorted(left)))


def match_cause(cause: Cause, seen: Evidence) -> str | None:
    """Return the cause's fact as text if its symptom and its fact hold; otherwise None."""
    slow = seen.slow
    if not slow & cause.symptoms or slow & cause.unless:
        return None
    return cause.find(seen)


def _make_experiment(
    cause: Cause, seen: Evidence, again: Callable[[str, str], float | None] | None
) -> tuple[str | None, float | None]:
    """Make the experiment of a cause, if it has one and *again* is given.

    :returns: ``proved``, ``indicated``, or None if the cause is refuted; and the gap's closed part.
    """
    unproved = None if cause.required else INDICATED
    probe = next((name for name in cause.of if name in seen.slow), None)
    if cause.setting is None or probe is None:
        return unproved, None
    row = seen.rows[probe]
    if row.against == cause.setting:
        # The row itself is the experiment: the setting is its baseline.
        return PROVED, 1.0
    value = None if again is None else again(cause.setting, probe)
    if value is None or value <= 0:
        return unproved, None
    return judge_experiment(cause, row, value)


def judge_experiment(
    cause: Cause, row: AcceptanceRow, value: float
) -> tuple[str | None, float | None]:
    """Judge a cause by its experiment.

    :param value: the probe's value with one thing changed.
    :returns: ``proved``, ``indicated``, or None if the cause is refuted; and the part of the gap
        that the change closed, None if that does not apply.
    """
    back = value / row.test if row.higher else row.test / value
    if cause.proves == CHANGES_NOTHING:
        status = PROVED if back < 1.1 else INDICATED
        return (None, None) if back > 1.3 else (status, None)
    if cause.proves == COSTS_NOTHING:
        status = PROVED if back >= 0.9 else INDICATED
        return (None, None) if back < 0.7 else (status, None)
    gap = 1 / row.ratio
    recovered = round((back - 1) / (gap - 1), 2) if gap > 1 else 0.0
    if recovered < _DROPS:
        return None, recovered
    return (PROVED if recovered > _PROVES else INDICATED), recovered
