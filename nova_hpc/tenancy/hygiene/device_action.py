# SPDX-License-Identifier: Apache-2.0
"""The facts of each device in a periodic update, and the next action on the device.

Pure. A decision reads the facts of one device only, so a bad device never changes the action on
another one. The update decides three times: before it locks devices, again with the facts that it
reads under their locks, and again after the cleaning.
"""

from __future__ import annotations

import enum

import attrs

from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.sign import Symptom
from nova_hpc.wire.ledger import DeviceState, LedgerDevice


class HygieneAction(enum.Enum):
    """The next action on a device between two servers, in the periodic update of a node."""

    #: Neither touch nor judge it.
    LEAVE = "leave"
    #: Clear its mark: an operator has to release it, and its release cleans it.
    UNMARK = "unmark"
    #: Withhold it until its next try.
    WAIT = "wait"
    #: Reset it, and compare it with its baseline.
    CLEAN = "clean"
    #: Judge it by its fault in this reading, or else by its snapshot.
    JUDGE = "judge"


@attrs.frozen
class HygieneFacts:
    """The facts about a device that determine its next action in the periodic update."""

    #: The ledger's record of it.
    entry: LedgerDevice = attrs.field(factory=LedgerDevice)
    #: Whether it is suspect, and the time of its next try has not come.
    early: bool = False
    #: Whether a server has it by Nova's records, or a guest domain or process uses it.
    taken: bool = False
    #: Why this update must not touch it, or did not clean it; None if neither.
    reason: str | None = None
    #: Its fault in this reading; None if it has none.
    fault: Symptom | None = None
    #: Its snapshot; None if the node does not offer it, if a server has it by Nova's records, or
    #: if its fault is more than a suspicion.
    look: DeviceSnapshot | None = None
    #: Whether its bus mastering is on, and no driver of the host may need that.
    masters: bool = False
    #: Whether one of its virtual functions is taken, or must not be touched.
    shared: bool = False


def decide_action(seen: HygieneFacts) -> HygieneAction:
    """Decide the next action on a device by the first row that applies.

    ======================================  ======  ==============================================
    facts                                   action  reason
    ======================================  ======  ==============================================
    taken, or with a reason                 LEAVE   its user would lose it
    marked, in quarantine                   UNMARK  an operator releases it first
    marked, its next try is not due         WAIT    the waits between its tries double
    marked                                  CLEAN   its server has gone
    in quarantine, or in a stage            LEAVE   an operator, or its stage, decides
    no snapshot, but a fault                JUDGE   its fault withholds it anyway
    neither snapshot nor fault              LEAVE   the node does not offer it
    shared                                  JUDGE   its reset would reset its virtual functions
    with a proof, bus mastering off         JUDGE   it is clean
    its next try is not due                 WAIT    the waits between its tries double
    without a proof                         CLEAN   its last owner is unknown
    with a proof, bus mastering on          CLEAN   firmware leaves it on
    ======================================  ======  ==============================================
    """
    entry, quarantined = seen.entry, seen.entry.state is DeviceState.QUARANTINED
    if seen.taken or seen.reason is not None:
        return HygieneAction.LEAVE
    if entry.server is not None:
        if quarantined:
            return HygieneAction.UNMARK
    elif quarantined or entry.staged or (seen.look is None and seen.fault is None):
        return HygieneAction.LEAVE
    elif seen.look is None or seen.shared or not (entry.owes or seen.masters):
        return HygieneAction.JUDGE
    return HygieneAction.WAIT if seen.early else HygieneAction.CLEAN
