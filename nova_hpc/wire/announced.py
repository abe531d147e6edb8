# SPDX-License-Identifier: Apache-2.0
"""What an operator has announced in the ledger: when devices may change, and what is right.

The parts ``maintenance`` and ``accepted`` of :mod:`nova_hpc.wire.ledger`.
"""

from __future__ import annotations

from typing import Any

import attrs

from nova_hpc.wire.values import exactly, real, short


@attrs.frozen
class Maintenance:
    """A time in which devices may change, as an operator has announced."""

    start: float  # Unix time, seconds
    end: float
    reason: str = attrs.field(default="", converter=short)
    #: Models that it is about, ``vendor:product``; (): all.
    models: tuple[str, ...] = ()

    def covers(self, moment: float, model: str | None) -> bool:
        """Whether a device of *model* may change at that time."""
        return self.start <= moment < self.end and (
            not self.models or any(_is_model(each, model) for each in self.models)
        )


@attrs.frozen
class Accepted:
    """A change of a model that an operator has accepted."""

    model: str
    change: str
    reason: str = attrs.field(default="", converter=short)


def _is_model(wanted: str, model: str | None) -> bool:
    return model is not None and (model == wanted or model.startswith(f"{wanted}:"))


def maintenance(body: Any, problems: list[str]) -> Maintenance | None:
    """The time that is announced; a damaged one is none, and named in *problems*."""
    if body is None:
        return None
    try:
        return Maintenance(
            start=real(body["start"]),
            end=real(body["end"]),
            reason=exactly(body.get("reason", ""), str),
            models=tuple(exactly(each, str) for each in body.get("models", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        problems.append("the maintenance in the ledger is damaged: none is announced")
        return None


def accepted(body: Any, problems: list[str]) -> tuple[Accepted, ...]:
    """The changes that were accepted; where one is damaged, none, and that is in *problems*."""
    try:
        return tuple(
            Accepted(*(exactly(each[key], str) for key in ("model", "change", "reason")))
            for each in body
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        problems.append("the accepted changes in the ledger are damaged: none counts")
        return ()
