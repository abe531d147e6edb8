# SPDX-License-Identifier: Apache-2.0
"""What an agent tells Neutron of rows, after it has looked at the fabric.

A row is reported until Neutron's status of the port is right: a report that was lost, or a
server that ended half-way through one, is made good by the next round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import MemberReading, MemberState, ReadBack
from nova_hpc.fabric.partitions.members import ACTIVE, ERROR, DesiredPartitions, PartitionMember

#: Seconds after a port became ``ACTIVE`` at which Nova is told again. Nova drops an event for
#: which nobody waits yet, and one that comes while its API is away is lost; it waits for 300 s
#: (``vif_plugging_timeout``).
REPEATS: Final = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 240.0)


@attrs.frozen
class ReportOptions:
    """Of the operator; see ``[hpc_partitions]`` for both."""

    member_timeout: float = 30.0
    activate_absent_ports: bool = False


@attrs.frozen
class RowHistory:
    """What an agent has seen of one row, by its own clock in seconds.

    :ivar waiting_since: since when it is not as desired; None: it is.
    :ivar active_since: when the port was first seen ``ACTIVE``, by an agent that has seen it
        otherwise before: its server may still be in the building.
    :ivar repeats: how often Nova was told again.
    """

    first_seen: float
    waiting_since: float | None = None
    seen_inactive: bool = False
    active_since: float | None = None
    repeats: int = 0


@attrs.frozen
class MemberReports:
    """Rows, by what is to be said of them.

    :ivar present: the membership is in force: the port may be ``ACTIVE``.
    :ivar gone: the membership is not there any more: the row may go.
    :ivar failed: with the reason: the port becomes ``ERROR``.
    :ivar repeat: ``ACTIVE`` already: Nova is told once more.
    """

    present: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    repeat: tuple[int, ...] = ()

    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.present or self.gone or self.failed or self.repeat)


def update_histories(
    histories: Mapping[int, RowHistory],
    desired: DesiredPartitions,
    reading: ReadBack,
    options: ReportOptions,
    moment: float,
) -> dict[int, RowHistory]:
    """Take a look into account; rows that are gone from *desired* are forgotten.

    :param moment: seconds of a clock that never goes back.
    """
    after = {}
    for member in desired.members:
        history = histories.get(member.row) or RowHistory(moment)
        is_right = _is_right(member, reading.members.get(member.row), options)
        waiting = None if is_right else history.waiting_since
        if not is_right and waiting is None:
            waiting = moment
        is_active = member.port_status == ACTIVE
        active = history.active_since
        if is_active and active is None and history.seen_inactive:
            active = moment
        after[member.row] = attrs.evolve(
            history,
            waiting_since=waiting,
            seen_inactive=history.seen_inactive or not is_active,
            active_since=active if is_active else None,
            repeats=history.repeats if is_active else 0,
        )
    return after


def choose_reports(
    desired: DesiredPartitions,
    reading: ReadBack,
    histories: Mapping[int, RowHistory],
    options: ReportOptions,
    moment: float,
) -> MemberReports:
    """Choose what to say of each row.

    :param histories: of all rows, up to this look; see :func:`update_histories`.
    """
    present, gone, failed, repeat = [], [], [], []
    for member in desired.members:
        entry = reading.members.get(member.row)
        history = histories[member.row]
        if not member.wanted:
            # The file in force has no such member: what is not there has no key.
            if entry is not None and entry.state is not MemberState.DIFFERENT:
                gone.append(member.row)
        elif member.port_status is None:
            continue  # The port is gone; Neutron takes its row's membership away.
        elif _is_right(member, entry, options):
            if member.port_status != ACTIVE:
                present.append(member.row)
            elif _is_repeat_due(history, moment):
                repeat.append(member.row)
        elif _has_failed(member, entry, history, options, moment):
            failed.append((member.row, _explain_failure(entry, options)))
    return MemberReports(tuple(present), tuple(gone), tuple(failed), tuple(repeat))


def count_repeats(
    histories: Mapping[int, RowHistory], reports: MemberReports
) -> dict[int, RowHistory]:
    """Take into account that *reports* were said."""
    said = set(reports.repeat)
    return {
        row: attrs.evolve(history, repeats=history.repeats + 1) if row in said else history
        for row, history in histories.items()
    }


def _is_right(member: PartitionMember, entry: MemberReading | None, options: ReportOptions) -> bool:
    """Whether nothing more is awaited of a row."""
    if entry is None or entry.state is MemberState.DIFFERENT:
        return False
    if entry.state is MemberState.AS_DESIRED or not member.wanted:
        return True
    # A port that was there stays ACTIVE: its host or its guest is off, and the file has it.
    return options.activate_absent_ports or member.port_status == ACTIVE


def _is_repeat_due(history: RowHistory, moment: float) -> bool:
    if history.active_since is None or history.repeats >= len(REPEATS):
        return False
    return moment - history.active_since >= REPEATS[history.repeats]


def _has_failed(
    member: PartitionMember,
    entry: MemberReading | None,
    history: RowHistory,
    options: ReportOptions,
    moment: float,
) -> bool:
    if member.port_status == ERROR or history.waiting_since is None:
        return False
    if entry is None and member.port_status == ACTIVE:
        return False  # Not read is not wrong; the port was right once.
    return moment - history.waiting_since >= options.member_timeout


def _explain_failure(entry: MemberReading | None, options: ReportOptions) -> str:
    reason = "its P_Key table could not be read" if entry is None else entry.reason
    if entry is not None and entry.state is MemberState.NOT_ON_FABRIC:
        reason += (
            "; is its link down? [hpc_partitions]activate_absent_ports lets such ports become "
            "ACTIVE before their link is up"
        )
    return f"{reason} (after {options.member_timeout:.0f} seconds)"
