# SPDX-License-Identifier: Apache-2.0
"""The reports of an agent to Neutron after it has looked at the fabric.

A row is reported until Neutron's status of the port is right. So the next round makes up for
a report that was lost, or a server that ended half-way through one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc.fabric.partitions.backends.base import MemberReading, MemberState, ReadBack
from nova_hpc.fabric.partitions.keys import format_pkey
from nova_hpc.fabric.partitions.members import ACTIVE, ERROR, DesiredPartitions, PartitionMember

#: Seconds after a port became ``ACTIVE`` at which Nova gets the event again. Nova drops an event
#: that its server does not wait for yet, and loses one while its API is away; it waits for 300 s
#: (``vif_plugging_timeout``).
REPEATS: Final = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 240.0)


#: The most rows of one report: Neutron takes up to 0.3 s for each.
MOST_REPORTED: Final = 8


@attrs.frozen
class ReportOptions:
    """The operator's options for reports; see ``[hpc_partitions]`` for both."""

    member_timeout: float = 30.0
    activate_absent_ports: bool = False


@attrs.frozen
class RowHistory:
    """The times at which the agent saw a member row change, by its own clock in seconds.

    :ivar waiting_since: the time since which it is not as desired; None if it is.
    :ivar seen_on_fabric: the tables of its port were read at least once.
    :ivar active_since: when the agent first saw the port ``ACTIVE``, if it saw another status
        before: the server may still be in the building.
    :ivar repeats: number of repeated events for Nova.
    """

    first_seen: float
    waiting_since: float | None = None
    seen_on_fabric: bool = False
    seen_inactive: bool = False
    active_since: float | None = None
    repeats: int = 0


@attrs.frozen
class MemberReports:
    """The reports on member rows to Neutron, by kind.

    :ivar present: the membership is in force: the port may be ``ACTIVE``.
    :ivar gone: the membership is gone: the row may go.
    :ivar lost: with the reason: an ``ACTIVE`` port has no membership now and becomes ``DOWN``.
    :ivar failed: with the reason: the port becomes ``ERROR``.
    :ivar repeat: ``ACTIVE`` already: Nova gets the event once more.
    """

    present: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    lost: tuple[tuple[int, str], ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    repeat: tuple[int, ...] = ()

    def is_empty(self) -> bool:
        """Return whether there is no report about a member to send to Neutron."""
        return not (self.present or self.gone or self.lost or self.failed or self.repeat)


def update_histories(
    histories: Mapping[int, RowHistory],
    desired: DesiredPartitions,
    reading: ReadBack,
    options: ReportOptions,
    moment: float,
) -> dict[int, RowHistory]:
    """Return the histories of membership rows after one more reading of the fabric.

    Rows missing in *desired* are dropped.

    :param moment: time of a monotonic clock, in seconds.
    :returns: id of the row -> its history.
    """
    after = {}
    for member in desired.members:
        history = histories.get(member.row) or RowHistory(moment)
        entry = reading.members.get(member.row)
        is_right = _is_right(member, entry, history, options)
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
            seen_on_fabric=history.seen_on_fabric or (entry is not None and entry.kept is not None),
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
    """Choose the report to Neutron for each member row.

    :param histories: of all rows, up to this look; see :func:`update_histories`.
    """
    present, gone, lost, failed, repeat = [], [], [], [], []
    for member in desired.members:
        entry = reading.members.get(member.row)
        history = histories[member.row]
        if not member.wanted:
            # The file in force has no such member, so a port off the fabric gets no key.
            if entry is not None and entry.state in _GONE_STATES:
                gone.append(member.row)
        elif member.port_status is None:
            continue  # The port is gone; Neutron takes its row's membership away.
        elif _is_right(member, entry, history, options):
            if member.port_status != ACTIVE:
                present.append(member.row)
            elif _is_repeat_due(history, moment):
                repeat.append(member.row)
        elif member.port_status == ACTIVE and entry is not None and entry.kept is False:
            lost.append((member.row, entry.reason))
        elif _has_failed(member, entry, history, options, moment):
            failed.append((member.row, _explain_failure(entry, options)))
    return MemberReports(tuple(present), tuple(gone), tuple(lost), tuple(failed), tuple(repeat))


def split_reports(reports: MemberReports) -> Iterator[MemberReports]:
    """Split reports into parts of at most :data:`MOST_REPORTED` rows.

    The order is *gone*, *present*, *lost*, *failed*, *repeat*: another row may wait for the key of
    a row that is gone, and repeated events can wait.
    """
    entries: list[tuple[str, Any]] = [
        (kind, entry)
        for kind in ("gone", "present", "lost", "failed", "repeat")
        for entry in getattr(reports, kind)
    ]
    for start in range(0, len(entries), MOST_REPORTED):
        part: defaultdict[str, tuple[Any, ...]] = defaultdict(tuple)
        for kind, entry in entries[start : start + MOST_REPORTED]:
            part[kind] += (entry,)
        yield MemberReports(**part)


def count_repeats(
    histories: Mapping[int, RowHistory], reports: MemberReports
) -> dict[int, RowHistory]:
    """Return *histories* with the repeated events of *reports* counted, after they were sent."""
    said = set(reports.repeat)
    return {
        row: attrs.evolve(history, repeats=history.repeats + 1) if row in said else history
        for row, history in histories.items()
    }


_GONE_STATES: Final = (MemberState.AS_DESIRED, MemberState.NOT_ON_FABRIC)
_UNSEEN_STATES: Final = (MemberState.NOT_ON_FABRIC, MemberState.UNKNOWN)


def _is_right(
    member: PartitionMember,
    entry: MemberReading | None,
    history: RowHistory,
    options: ReportOptions,
) -> bool:
    """Return whether a membership row needs nothing more: its port has the keys, or may lack them.

    A port that has left the fabric still needs its keys.
    """
    if entry is None or entry.state in (MemberState.DIFFERENT, MemberState.UNKNOWN):
        return False
    if entry.state is MemberState.AS_DESIRED or not member.wanted:
        return True
    # A port that was on the fabric and left it is not right, whatever the option is.
    return options.activate_absent_ports and not history.seen_on_fabric


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
    if member.port_status == ERROR:
        return False
    if entry is None and member.port_status == ACTIVE:
        return False  # Not read is not wrong; the port was right once.
    return _waits_too_long(history, options, moment)


def _waits_too_long(history: RowHistory, options: ReportOptions, moment: float) -> bool:
    waiting = history.waiting_since
    return waiting is not None and moment - waiting >= options.member_timeout


def _explain_failure(entry: MemberReading | None, options: ReportOptions) -> str:
    reason = "its P_Key table could not be read" if entry is None else entry.reason
    if entry is not None and entry.state is MemberState.NOT_ON_FABRIC:
        reason += (
            "; [hpc_partitions]activate_absent_ports lets such ports become "
            "ACTIVE before their link is up"
        )
    return f"{reason} (after {options.member_timeout:.0f} seconds)"


def list_overdue_alarms(
    desired: DesiredPartitions,
    reading: ReadBack,
    histories: Mapping[int, RowHistory],
    options: ReportOptions,
    moment: float,
) -> tuple[str, ...]:
    """List ports that are off the fabric or silent, or keep an old P_Key, for too long.

    :returns: one sentence for each membership row.
    """
    over = f", for over {options.member_timeout:.0f} seconds"
    sentences = []
    for member in desired.members:
        entry = reading.members.get(member.row)
        if entry is None or not _waits_too_long(histories[member.row], options, moment):
            continue
        if member.wanted and entry.state in _UNSEEN_STATES:
            sentences.append(f"port {member.port_id} of Neutron: {entry.reason}{over}")
        elif not member.wanted and entry.state not in _GONE_STATES:
            sentences.append(
                f"port {member.port_id} of Neutron is no member of P_Key "
                f"{format_pkey(member.pkey)} any more, and its physical port may still have the "
                f"key: {entry.reason}{over}"
            )
    return tuple(sentences)
