# SPDX-License-Identifier: Apache-2.0
"""What the ledger knows of a device's stage between two servers, and what is to be done next.

Pure. The entry of a device, ``stage`` in the ledger, is written *before* its server
starts, so whoever is killed afterwards leaves a device that is due. It is one of:

=========  =============================================================================
``due``    a server has it, or had it; before anybody else gets it the stage has to pass
``begun``  a service VM, or the vendor's driver on the host, has it; which VM is in the
           entry before libvirt hears of it
``clean``  the stage has passed; what it took is kept, for people
=========  =============================================================================

Only ``clean`` lets a device be given: without an entry nobody knows who has had it, and
the stage becomes due when the node looks next. A stage that did not pass is due
again; whether the device is suspect or in quarantine for it is up to
:mod:`nova_hpc.tenancy.health_states`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc.wire.values import exactly, real

#: A damaged entry: something may have the device, and nobody knows what.
_UNREAD: Final = "unread"


class Phase(enum.Enum):
    """How far the stage of a device is."""

    DUE = "due"
    BEGUN = "begun"
    CLEAN = "clean"


class Mode(enum.Enum):
    """Where devices of a role are looked at; the value is the word of ``[hpc]clean_stage``."""

    NONE = "none"
    SERVICE_VM = "service-vm"
    HOST = "host"


@attrs.frozen
class Stage:
    """The entry of one device."""

    phase: Phase
    #: Who made it necessary: the UUID of the server that has or had the device.
    server: str = ""
    #: UUID of the service VM that has the device, or the word of its mode; "": nothing has.
    holder: str = ""
    #: When the phase began, Unix time in seconds.
    since: float = 0.0
    #: Seconds that the last stage that passed took; None: none has.
    seconds: float | None = None

    @property
    def pending(self) -> bool:
        """Whether the device must not be given to another server."""
        return self.phase is not Phase.CLEAN

    def dumps(self) -> dict[str, Any]:
        """As JSON can hold it."""
        body = {**attrs.asdict(self), "phase": self.phase.value}
        return {key: value for key, value in body.items() if value not in ("", None)}


def loads(body: Mapping[str, Any] | None) -> Stage | None:
    """The entry; None: there is none. A damaged one is due, whoever made it so."""
    if body is None:
        return None
    try:
        seconds = body.get("seconds")
        found = Stage(
            phase=Phase(body["phase"]),
            server=exactly(body.get("server", ""), str),
            holder=exactly(body.get("holder", ""), str),
            since=real(body.get("since", 0.0)),
            seconds=None if seconds is None else real(seconds),
        )
    except (KeyError, TypeError, ValueError):
        return Stage(Phase.DUE, server=_UNREAD)
    return found


# -- the ways between the phases ---------------------------------------------------------


def owed(known: Stage | None, server: str, now: float) -> Stage:
    """The entry of a device that a server gets: from now on its stage is due."""
    seconds = None if known is None else known.seconds
    return Stage(Phase.DUE, server=server, since=now, seconds=seconds)


def begun(known: Stage | None, holder: str, now: float) -> Stage:
    """Something is going to have the device."""
    return attrs.evolve(known or Stage(Phase.DUE), phase=Phase.BEGUN, holder=holder, since=now)


def again(known: Stage | None, now: float) -> Stage:
    """Nothing has the device any more, and it did not pass."""
    return attrs.evolve(known or Stage(Phase.DUE), phase=Phase.DUE, holder="", since=now)


def passed(known: Stage | None, seconds: float, now: float) -> Stage:
    """The device is clean."""
    server = "" if known is None else known.server
    return Stage(Phase.CLEAN, server=server, since=now, seconds=round(seconds, 1))


def refusal(known: Stage | None, server: str) -> str | None:
    """Why a server must not start with a device that has a stage; None: as to that it may.

    A device whose stage this very server made due is one that it got before: its start
    failed, and it is tried again.
    """
    if known is None:
        return "nobody knows who has had it: it waits to be cleaned from within"
    if not known.pending:
        return None
    if known.phase is Phase.DUE and known.server == server:
        return None
    return waiting(known)


def waiting(known: Stage) -> str:
    """Why a free device is not offered, for operators."""
    if known.phase is Phase.BEGUN:
        where = (
            "on the host" if known.holder == Mode.HOST.value else f"in service VM {known.holder}"
        )
        return f"it is being cleaned {where}"
    return "it waits to be cleaned between two servers"


def describe(known: Stage | None) -> str:
    """How far it is and what it takes, for people; "": it has none."""
    if known is None:
        return ""
    took = "" if known.seconds is None else f"{known.seconds:g} s"
    if known.phase is Phase.CLEAN:
        return f"passed in {took}" if took else "passed"
    text = "due" if known.phase is Phase.DUE else f"begun by {known.holder}"
    return f"{text}, took {took} the last time" if took else text


# -- what to do --------------------------------------------------------------------------


class Action(enum.Enum):
    """What is done to a device next."""

    #: Nothing: a server has it, it is clean, or its time has not come.
    WAIT = "wait"
    #: Something of a service that was killed may still have it: end that first.
    END = "end"
    #: Begin its stage.
    BEGIN = "begin"
    #: Its role has no stage any more: forget it.
    FORGET = "forget"


@attrs.frozen
class Seen:
    """What is known of a device when it is decided."""

    stage: Stage | None
    mode: Mode
    #: A server has it by Nova's records.
    taken: bool = False
    #: This process is at work on it.
    mine: bool = False
    #: It is in quarantine: an operator has the next word.
    quarantined: bool = False
    #: It is suspect, and the time of its next try has not come.
    early: bool = False


def decide(seen: Seen) -> Action:
    """What is to be done with a device."""
    found = seen.stage
    if found is None or not found.pending or seen.mine:
        return Action.WAIT
    if found.phase is Phase.BEGUN:
        return Action.END
    if seen.taken or seen.quarantined:
        return Action.WAIT
    if seen.mode is Mode.NONE:
        return Action.FORGET
    return Action.WAIT if seen.early else Action.BEGIN
