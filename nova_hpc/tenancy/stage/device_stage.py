# SPDX-License-Identifier: Apache-2.0
"""A device's stage between two servers as the ledger knows it, and the next action on it.

Pure. The entry of a device, ``stage`` in the ledger, is written *before* its server
starts, so whoever is killed afterwards leaves a device that is due. It is one of:

=========  =============================================================================
``due``    a server has it, or had it; before anybody else gets it the stage has to pass
``begun``  a service VM, or the vendor's driver on the host, has it; which VM is in the
           entry before libvirt hears of it
``clean``  the stage has passed; what it took is kept, for people
=========  =============================================================================

Only ``clean`` lets a device be given: without an entry its last owner is unknown, and
the stage becomes due when the node looks next. A stage that did not pass is due
again; whether the device is suspect or in quarantine for it is up to
:mod:`nova_hpc.tenancy.health_states`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc.wire.values import require_finite, require_type

#: A damaged entry: something unknown may have the device.
_UNREAD: Final = "unread"


class StagePhase(enum.Enum):
    """The phase of a device's stage."""

    DUE = "due"
    BEGUN = "begun"
    CLEAN = "clean"


class StageMode(enum.Enum):
    """The place of the stage for a role; the value is the word of ``[hpc]clean_stage``."""

    NONE = "none"
    SERVICE_VM = "service-vm"
    HOST = "host"


@attrs.frozen
class DeviceStage:
    """The entry of one device."""

    phase: StagePhase
    #: Who made it necessary: the UUID of the server that has or had the device.
    server: str = ""
    #: UUID of the service VM that has the device, or the word of its mode; "": nothing has.
    holder: str = ""
    #: When the phase began, Unix time in seconds.
    since: float = 0.0
    #: Seconds that the last stage that passed took; None: none has.
    seconds: float | None = None
    #: Of a storage device that has passed: how its data were erased.
    proof: str = ""
    #: Of a storage device without a serial number: its stay in the slot when it passed, see
    #: :meth:`HygieneRecords.read_stay`. In another stay another device may be there.
    stay: str = ""

    @property
    def pending(self) -> bool:
        """Whether the device must not be given to another server."""
        return self.phase is not StagePhase.CLEAN

    def dumps(self) -> dict[str, Any]:
        """As JSON can hold it."""
        body = {**attrs.asdict(self), "phase": self.phase.value}
        return {key: value for key, value in body.items() if value not in ("", None)}


def load_stage(body: Mapping[str, Any] | None) -> DeviceStage | None:
    """The entry; None: there is none. A damaged one is due, whoever made it so."""
    if body is None:
        return None
    try:
        seconds = body.get("seconds")
        stage = DeviceStage(
            phase=StagePhase(body["phase"]),
            server=require_type(body.get("server", ""), str),
            holder=require_type(body.get("holder", ""), str),
            since=require_finite(body.get("since", 0.0)),
            seconds=None if seconds is None else require_finite(seconds),
            proof=require_type(body.get("proof", ""), str),
            stay=require_type(body.get("stay", ""), str),
        )
    except (KeyError, TypeError, ValueError):
        return DeviceStage(StagePhase.DUE, server=_UNREAD)
    return stage


# -- the ways between the phases ---------------------------------------------------------


def make_stage_due(stage: DeviceStage | None, server: str, wall_time: float) -> DeviceStage:
    """The entry of a device that a server gets: from now on its stage is due."""
    seconds = None if stage is None else stage.seconds
    return DeviceStage(StagePhase.DUE, server=server, since=wall_time, seconds=seconds)


def begin_stage(stage: DeviceStage | None, holder: str, wall_time: float) -> DeviceStage:
    """Something is going to have the device."""
    return attrs.evolve(
        stage or DeviceStage(StagePhase.DUE), phase=StagePhase.BEGUN, holder=holder, since=wall_time
    )


def make_due_again(stage: DeviceStage | None, wall_time: float) -> DeviceStage:
    """Nothing has the device any more, and it did not pass."""
    return attrs.evolve(
        stage or DeviceStage(StagePhase.DUE), phase=StagePhase.DUE, holder="", since=wall_time
    )


def pass_stage(
    stage: DeviceStage | None, seconds: float, wall_time: float, proof: str = "", stay: str = ""
) -> DeviceStage:
    """The device is clean."""
    return DeviceStage(
        StagePhase.CLEAN,
        server="" if stage is None else stage.server,
        since=wall_time,
        seconds=round(seconds, 1),
        proof=proof,
        stay=stay,
    )


def lacks_proof(stage: DeviceStage | None, stay: str = "") -> bool:
    """Whether a storage device with this entry is not known to be erased.

    :param stay: its present stay in its slot, if it tells no serial number.
    """
    return stage is None or stage.pending or not stage.proof or stage.stay != stay


def refusal_of_stage(
    stage: DeviceStage | None, server: str, erased: bool = False, stay: str = ""
) -> str | None:
    """The reason why a server must not start with a device that has a stage; None: it may.

    :param erased: it is a storage device, which needs a proof that its data were erased.
    :param stay: see :func:`lacks_proof`.

    A device whose stage this very server made due is one that it got before: its start
    failed, and it is tried again.
    """
    if stage is None:
        return "the ledger does not say who has had it: it waits to be cleaned from within"
    if not stage.pending:
        if erased and lacks_proof(stage, stay):
            return "the ledger has no proof that its data were erased"
        return None
    if stage.phase is StagePhase.DUE and stage.server == server:
        return None
    return word_waiting_stage(stage)


def word_waiting_stage(stage: DeviceStage) -> str:
    """The reason why a free device is not offered, for operators."""
    if stage.phase is StagePhase.BEGUN:
        where = (
            "on the host"
            if stage.holder == StageMode.HOST.value
            else f"in service VM {stage.holder}"
        )
        return f"it is being cleaned {where}"
    return "it waits to be cleaned between two servers"


# -- what to do --------------------------------------------------------------------------


class StageAction(enum.Enum):
    """The next action on a device."""

    #: Nothing: a server has it, it is clean, or its time has not come.
    WAIT = "wait"
    #: Something of a service that was killed may still have it: end that first.
    END = "end"
    #: Begin its stage.
    BEGIN = "begin"
    #: Its role has no stage any more: forget it.
    FORGET = "forget"


@attrs.frozen
class StageFacts:
    """The facts about a device from which its next action follows."""

    stage: DeviceStage | None
    mode: StageMode
    #: A server has it by Nova's records.
    taken: bool = False
    #: This process is at work on it.
    mine: bool = False
    #: It is in quarantine: an operator has the next word.
    quarantined: bool = False
    #: It is suspect, and the time of its next try has not come.
    early: bool = False


def decide_stage_action(seen: StageFacts) -> StageAction:
    """Decide the next action on a device."""
    stage = seen.stage
    if stage is None or not stage.pending or seen.mine:
        return StageAction.WAIT
    if stage.phase is StagePhase.BEGUN:
        return StageAction.END
    if seen.taken or seen.quarantined:
        return StageAction.WAIT
    if seen.mode is StageMode.NONE:
        return StageAction.FORGET
    return StageAction.WAIT if seen.early else StageAction.BEGIN
