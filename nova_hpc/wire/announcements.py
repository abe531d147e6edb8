# SPDX-License-Identifier: Apache-2.0
"""What an operator has announced in the ledger: when devices may change, and what is right.

The parts ``maintenance`` and ``accepted`` of :mod:`nova_hpc.wire.ledger`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    #: As :func:`field`, :func:`bars` and :func:`capabilities` write it, ``; `` between several.
    change: str
    reason: str = attrs.field(default="", converter=short)


# -- how a change is written -------------------------------------------------------------
#
# Two of them are the same change if they are the same text, in this release or another: so
# the words are part of the ledger's format, and no sentence for people.


def field(name: str, source: str, before: str, after: str) -> str:
    """A field of a device's identity that is another.

    :param source: who says so: ``by the kernel``, or ``by its own answer``.
    """
    return f"its {name} is {after} {source}, and was {before}"


def bars(before: Sequence[str], after: Sequence[str]) -> str:
    """Other base address registers."""
    return f"its BARs are {_listed(after)}, and were {_listed(before)}"


def capabilities(gone: Sequence[str], new: Sequence[str]) -> str:
    """Other capabilities in the configuration space."""
    return f"its capabilities have changed: {_listed(gone)} gone, {_listed(new)} new"


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) or "none"


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
