# SPDX-License-Identifier: Apache-2.0
"""An operator's announcements in the ledger: maintenance, accepted changes, and planned work.

The parts ``maintenance``, ``accepted`` and ``planned`` of :mod:`nova_hpc.wire.ledger`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nova_hpc.topology.model import normalise_address
from nova_hpc.wire.values import cut_reason, require_finite, require_type
from nova_hpc_common.wire.planned_work import is_planned_time


@attrs.frozen
class Maintenance:
    """A time window, announced by an operator, in which devices may change."""

    start: float  # Unix time, seconds
    end: float
    reason: str = attrs.field(default="", converter=cut_reason)
    #: Models to which it applies, ``vendor:product``; () for all.
    models: tuple[str, ...] = ()

    def covers(self, moment: float, model: str | None) -> bool:
        """Whether a device of *model* may change at that time."""
        return self.start <= moment < self.end and (
            not self.models
            or any(_is_model(announced_model, model) for announced_model in self.models)
        )


@attrs.frozen
class Accepted:
    """A change of a device model that an operator has accepted, such as new firmware."""

    model: str
    #: Text of :func:`describe_field_change`, :func:`describe_bar_change` and
    #: :func:`describe_capability_change`, with ``; `` between several.
    change: str
    reason: str = attrs.field(default="", converter=cut_reason)


@attrs.frozen
class PlannedDeviceWork:
    """Work that operators have planned on devices; times as ``2026-12-04T08:00Z``."""

    #: Normalised PCI address -> time at which work on the device begins. Its virtual functions are
    #: concerned, too.
    devices: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: UUID of a server -> time that its owner has as a tag and an instance action.
    announced: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def dumps(self) -> dict[str, dict[str, str]]:
        """The planned work as an object for JSON; {} if there is none."""
        parts = {"devices": dict(self.devices), "announced": dict(self.announced)}
        return {name: times for name, times in parts.items() if times}


# -- the text of a change ----------------------------------------------------------------
#
# Two changes are the same if their texts are equal, in this release or another. So the words
# are part of the ledger's format, and not sentences for people.


def describe_field_change(name: str, source: str, before: str, after: str) -> str:
    """Return the sentence about a changed field of a device's identity.

    :param source: its source: ``by the kernel``, or ``by its own answer``.
    """
    return f"its {name} is {after} {source}, and was {before}"


def describe_bar_change(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the sentence about changed base address registers of a device."""
    return f"its BARs are {_join_or_none(after)}, and were {_join_or_none(before)}"


def describe_capability_change(gone: Sequence[str], new: Sequence[str]) -> str:
    """Return the sentence about changed capabilities in a device's configuration space."""
    return f"its capabilities have changed: {_join_or_none(gone)} gone, {_join_or_none(new)} new"


def _join_or_none(values: Sequence[str]) -> str:
    return ", ".join(values) or "none"


def _is_model(wanted: str, model: str | None) -> bool:
    return model is not None and (model == wanted or model.startswith(f"{wanted}:"))


def read_maintenance(body: Any, problems: list[str]) -> Maintenance | None:
    """Read the announced time window from the ledger; None if it is damaged.

    Then *problems* contains the damage.
    """
    if body is None:
        return None
    try:
        return Maintenance(
            start=require_finite(body["start"]),
            end=require_finite(body["end"]),
            reason=require_type(body.get("reason", ""), str),
            models=tuple(require_type(model, str) for model in body.get("models", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        problems.append("the maintenance in the ledger is damaged: none is announced")
        return None


def read_accepted_changes(body: Any, problems: list[str]) -> tuple[Accepted, ...]:
    """Read the accepted changes from the ledger; () if one is damaged.

    Then *problems* contains the damage.
    """
    try:
        return tuple(
            Accepted(*(require_type(entry[key], str) for key in ("model", "change", "reason")))
            for entry in body
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        problems.append("the accepted changes in the ledger are damaged: none counts")
        return ()


def read_planned_work(body: Any, problems: list[str]) -> PlannedDeviceWork:
    """Read the planned work from the ledger; a damaged time is left out.

    Then *problems* contains the damage.
    """
    try:
        return PlannedDeviceWork(
            _read_times(body.get("devices", {}), normalise_address, problems),
            _read_times(body.get("announced", {}), lambda server: server, problems),
        )
    except AttributeError:
        problems.append("the planned work in the ledger is damaged")
        return PlannedDeviceWork()


def _read_times(body: Any, read_key: Callable[[str], str], problems: list[str]) -> dict[str, str]:
    times: dict[str, str] = {}
    for number, (key, time) in enumerate(body.items()):
        try:
            if not is_planned_time(time):
                raise ValueError
            times[read_key(key)] = time
        except ValueError:
            problems.append(f"planned work number {number} in the ledger is damaged")
    return times
