# SPDX-License-Identifier: Apache-2.0
"""A device's stage between two servers in the ledger, and the next action on the device.

Pure. The entry of a device, ``stage`` in the ledger, is written *before* its server
starts. So a process that is killed later leaves a device that is due. The phases are:

=========  =============================================================================
``due``    a server has it, or had it; the stage has to pass before another server gets it
``begun``  a service VM, or the vendor's driver on the host, has it; the entry names the
           VM before libvirt creates it
``clean``  the stage has passed; its duration is kept, for people
=========  =============================================================================

Only a ``clean`` device may be given. Without an entry its last owner is unknown, and
the stage becomes due at the node's next update. A stage that did not pass is due
again; :mod:`nova_hpc.tenancy.health_states` decides whether the device is suspect or in
quarantine.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc.wire.values import require_finite, require_type

#: A damaged entry: the device's user is unknown.
_UNREAD: Final = "unread"


class StagePhase(enum.Enum):
    """The phase of a device's cleaning from within between two servers: due, begun or clean."""

    DUE = "due"
    BEGUN = "begun"
    CLEAN = "clean"


class StageMode(enum.Enum):
    """The place of the stage for a role; the value is that of ``[hpc]clean_stage``."""

    NONE = "none"
    SERVICE_VM = "service-vm"
    HOST = "host"


@attrs.frozen
class DeviceStage:
    """The ledger's entry about one device's stage: phase, last server, holder, times and proof."""

    phase: StagePhase
    #: UUID of the server that has or had the device, and so made the stage necessary.
    server: str = ""
    #: UUID of the service VM that has the device, or the name of its mode; "" if none has it.
    holder: str = ""
    #: Start of the phase, Unix time in seconds.
    since: float = 0.0
    #: Duration in seconds of the last stage that passed; None if none has.
    seconds: float | None = None
    #: For a storage device that has passed: the way in which its data were erased.
    proof: str = ""
    #: For a storage device without a serial number: its stay in the slot when it passed, see
    #: :meth:`HygieneRecords.read_stay`. After another stay another device may be there.
    stay: str = ""

    @property
    def pending(self) -> bool:
        """Whether the device must not be given to another server."""
        return self.phase is not StagePhase.CLEAN

    def dumps(self) -> dict[str, Any]:
        """Return the ledger entry as a JSON object, without empty values."""
        body = {**attrs.asdict(self), "phase": self.phase.value}
        return {key: value for key, value in body.items() if value not in ("", None)}


def load_stage(body: Mapping[str, Any] | None) -> DeviceStage | None:
    """Return the entry; None if there is none. A damaged entry is due, whatever its cause."""
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


# -- the changes between the phases ------------------------------------------------------


def make_stage_due(stage: DeviceStage | None, server: str, wall_time: float) -> DeviceStage:
    """Return the entry of a device that a server gets: from now on its stage is due."""
    seconds = None if stage is None else stage.seconds
    return DeviceStage(StagePhase.DUE, server=server, since=wall_time, seconds=seconds)


def begin_stage(stage: DeviceStage | None, holder: str, wall_time: float) -> DeviceStage:
    """Return the entry of a device that a stage is about to get."""
    return attrs.evolve(
        stage or DeviceStage(StagePhase.DUE), phase=StagePhase.BEGUN, holder=holder, since=wall_time
    )


def make_due_again(stage: DeviceStage | None, wall_time: float) -> DeviceStage:
    """Return the entry of a device that did not pass, and that no stage has any more."""
    return attrs.evolve(
        stage or DeviceStage(StagePhase.DUE), phase=StagePhase.DUE, holder="", since=wall_time
    )


def pass_stage(
    stage: DeviceStage | None, seconds: float, wall_time: float, proof: str = "", stay: str = ""
) -> DeviceStage:
    """Return the ledger entry of a device that has passed its stage and is clean.

    :param stage: the entry before; None if it had none.
    :param seconds: duration of the stage.
    :param wall_time: present time, in seconds since the epoch.
    """
    return DeviceStage(
        StagePhase.CLEAN,
        server="" if stage is None else stage.server,
        since=wall_time,
        seconds=round(seconds, 1),
        proof=proof,
        stay=stay,
    )


def lacks_proof(stage: DeviceStage | None, stay: str = "") -> bool:
    """Whether there is no valid proof that a storage device was erased.

    :param stay: its present stay in its slot, if it has no serial number.
    """
    return stage is None or stage.pending or not stage.proof or stage.stay != stay


def refusal_of_stage(
    stage: DeviceStage | None, server: str, erased: bool = False, stay: str = ""
) -> str | None:
    """Return why a server must not start with a device that has a stage; None if it may.

    :param erased: whether it is a storage device, which needs a proof of erased data.
    :param stay: see :func:`lacks_proof`.

    If this very server made the device's stage due, it got the device before: its start
    failed, and is tried again.
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
    """Return the reason why a free device is not offered, for operators."""
    if stage.phase is StagePhase.BEGUN:
        where = (
            "on the host"
            if stage.holder == StageMode.HOST.value
            else f"in service VM {stage.holder}"
        )
        return f"it is being cleaned {where}"
    return "it waits to be cleaned between two servers"


# -- the next action ---------------------------------------------------------------------


class StageAction(enum.Enum):
    """The next action on a device with a stage: wait, end a broken stage, begin, or forget it."""

    #: None: a server has it, it is clean, or its time has not come.
    WAIT = "wait"
    #: A stage of a killed service may still have it: end that first.
    END = "end"
    #: Begin its stage.
    BEGIN = "begin"
    #: Its role no longer has a stage: delete the entry.
    FORGET = "forget"


@attrs.frozen
class StageFacts:
    """The facts that determine the next action on a device with a stage."""

    stage: DeviceStage | None
    mode: StageMode
    #: Whether a server has it by Nova's records.
    taken: bool = False
    #: Whether this process is working on it.
    mine: bool = False
    #: Whether it is in quarantine: then an operator has to decide.
    quarantined: bool = False
    #: Whether it is suspect, and the time of its next try has not come.
    early: bool = False


def decide_stage_action(seen: StageFacts) -> StageAction:
    """Decide the next action on a device by the ledger's entry, the node's settings and users."""
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
