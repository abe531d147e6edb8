# SPDX-License-Identifier: Apache-2.0
"""The agent beside the subnet manager: rounds that put the desired partitions in force.

One round reads the whole desired state, gives it to the subnet manager, reads the ports until they
are as desired, and reports. A round compares states, not changes, so the next round makes up for
a lost message, report or signal. Only the end of the process ends the rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import attrs
from oslo_log import log

from nova_hpc.fabric.partitions import file_audit, first_write, hardening
from nova_hpc.fabric.partitions.backends.base import (
    AuditRow,
    MemberState,
    ReadBack,
    StaleReadingError,
    SubnetManager,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.harmful_changes import (
    ChangeWatch,
    compare_desired,
    describe_losses,
    find_lost_rows,
    keep_rows,
)
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember
from nova_hpc.fabric.partitions.pass_spacing import PassSpacing
from nova_hpc.fabric.partitions.report_choice import (
    REPEATS,
    MemberReports,
    ReportOptions,
    RowHistory,
    choose_reports,
    count_repeats,
    list_overdue_alarms,
    split_reports,
    update_histories,
)
from nova_hpc.fabric.partitions.watched_files import WATCH_INTERVAL, WatchedFiles

LOG: Final = log.getLogger(__name__)

#: Seconds that a round waits for rows that are not right yet.
LOOK_BOUND: Final = 1.5
#: Seconds between two looks: a sweep of a small fabric takes about as long.
_LOOK_PAUSE: Final = 0.02
#: Seconds from a round after which something is missing to the next one.
_BEHIND_PAUSE: Final = 0.2
#: Seconds to the next round while the subnet manager cannot take a change.
_FAULT_PAUSE: Final = 0.5
#: A row younger than this (seconds) makes a round look again; an older one is read once a round.
_FRESH: Final = 30.0
#: How often a stale reading is read again at once.
_STALE_TRIES: Final = 5
#: Seconds between two audits of the subnet manager's settings.
_AUDIT_INTERVAL: Final = 60.0


class PartitionServer(Protocol):
    """The agent's connection to Neutron's server, which has the desired partitions.

    Each method calls its callback twice a second while it waits, so that the agent still notices
    a file that others edit while the server does not answer.
    """

    def read_desired(self, meanwhile: Callable[[], None]) -> DesiredPartitions:
        """Read this fabric's rows of members, with a ticket that is higher than all before."""

    def report_members(
        self, ticket: int, reports: MemberReports, meanwhile: Callable[[], None]
    ) -> None:
        """Report to Neutron's server whether memberships (rows of its table) are in force."""


class WakeSignal(Protocol):
    """A flag that ends the agent's sleep, such as :class:`threading.Event`."""

    def is_set(self) -> bool:
        """Whether an event came since the last :meth:`clear`."""

    def clear(self) -> None:
        """Forget the events so far, so that the next one sets the flag again."""

    def wait(self, timeout: float) -> bool:
        """Sleep for at most *timeout* seconds, or until the next event."""


@attrs.frozen
class AgentStatus:
    """The agent's state, as its heartbeat reports it.

    :ivar ticket: of the last reading that is in force; 0 if none is.
    :ivar faults: sentences, the same as those of alarms.
    :ivar managers: GUIDs of all ports with a subnet manager; None if unknown.
    :ivar full: GUIDs of ports without a place for a network's key.
    """

    ticket: int = 0
    foreign_pkeys: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    managers: tuple[int, ...] | None = None
    full: tuple[int, ...] = ()


@attrs.define
class PartitionAgent:
    """The main loop of the fabric agent, which makes the subnet manager follow Neutron's database.

    :ivar tell_alarms: gets the sentences that are new, and the sentences that no longer hold.
    :ivar now: a monotonic clock, in seconds.
    :ivar pause: sleeps, and wakes early when the process has to end.
    """

    manager: SubnetManager
    server: PartitionServer
    tell_alarms: Callable[[Sequence[str], Sequence[str]], None]
    wake: WakeSignal
    files: WatchedFiles
    now: Callable[[], float]
    pause: Callable[[float], object]
    poll_interval: float
    report_options: ReportOptions = attrs.field(factory=ReportOptions)
    spacing: PassSpacing = attrs.field(factory=PassSpacing)
    status: AgentStatus = attrs.field(factory=AgentStatus)
    #: How many changes were made, and how often tables were read, since the start.
    changes: int = 0
    looks: int = 0
    _in_force: DesiredPartitions | None = None
    #: Rows that were right, until they are not wanted any more: the last good state, row by row.
    _settled: frozenset[int] = frozenset()
    #: Rows that were right in the last look.
    _right: frozenset[int] = frozenset()
    _was_open: bool = False
    _passing_faults: tuple[str, ...] = ()
    _watch: ChangeWatch = attrs.field(factory=ChangeWatch)
    _histories: Mapping[int, RowHistory] = attrs.field(factory=dict)
    _failures: int = 0
    _audited: float = float("-inf")
    _audit_faults: tuple[str, ...] = ()

    # -- start ---------------------------------------------------------------------------

    def check_start(self) -> tuple[AuditRow, ...]:
        """Audit the subnet manager before anything is changed.

        A file of partitions that was damaged while no agent ran is closed first, if this fabric had
        an agent before. It gets no network, because the desired state is not read yet: an older
        copy could have keys of ports that belong to other projects by now. If the fabric never had
        an agent, only the operator may close it: ports in the default partition would be cut off.

        :returns: the rows that forbid the agent to work; () if it may.
        """
        rows = hardening.list_open_rows(self.manager.audit())
        if file_audit.DEFAULT_PARTITION in {row.name for row in rows}:
            try:
                self.manager.restore()
            except SubnetManagerError as error:
                LOG.info("The file of partitions before the start: %s", error)
            rows = hardening.list_open_rows(self.manager.audit())
        if first_write.FIRST_WRITE in {row.name for row in rows}:
            rows = self._audit_with_members(rows)
        faults = tuple(map(hardening.format_open_row, rows))
        self.status = attrs.evolve(self.status, faults=faults)
        # The first heartbeat has the managers, so that no port is bound on one of them.
        with contextlib.suppress(SubnetManagerError):
            self._note_managers(self.manager.read_back(DesiredPartitions(0)))
        return rows

    def _audit_with_members(self, rows: tuple[AuditRow, ...]) -> tuple[AuditRow, ...]:
        """Audit again with Neutron's members: another agent of the fabric may serve them already.

        :param rows: those before; they stay while Neutron does not answer.
        """
        if not isinstance(self.manager, first_write.PlansFirstWrite):
            return rows
        try:
            self.manager.plan_first_write(self.server.read_desired(lambda: None))
        except Exception as error:  # Broker, Neutron: the keys of networks are unknown then.
            LOG.warning("Keys of networks count as losses, as Neutron does not answer: %s", error)
            return rows
        return hardening.list_open_rows(self.manager.audit())

    # -- the loop ------------------------------------------------------------------------

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run rounds until *stopped* returns True; an error does not end the loop."""
        while not stopped():
            self.wake.clear()
            self._sleep(self.try_round(), stopped)
        self.manager.close()

    def try_round(self) -> float:
        """Run a round and catch every error.

        :returns: seconds after which the next one has to follow.
        """
        try:
            pause = self.make_round()
        except Exception as error:  # Broker, Neutron, files, the manager: all of it comes back.
            fault = f"the agent's round failed: {_describe_error(error)}"
            LOG.warning(
                "A round of the fabric agent failed and is tried again: %s",
                error,
                exc_info=not self._failures,
            )
            self._failures = min(self._failures + 1, 8)
            self._tell_faults((fault,))
            return min(self.poll_interval, float(_BEHIND_PAUSE * 2**self._failures))
        self._failures = 0
        return pause

    def _sleep(self, pause: float, stopped: Callable[[], bool]) -> None:
        end = self.now() + pause
        while not stopped() and (left := end - self.now()) > 0:
            if self.wake.wait(min(left, WATCH_INTERVAL)) or self.files.find_changes():
                break
        # Ports that are bound at about the same time become part of the same change.
        while not stopped() and (left := self.spacing.time_left(self.now())) > 0:
            self.pause(left)

    # -- one round -----------------------------------------------------------------------

    def make_round(self) -> float:
        """Run one round: read the desired rows, enforce them, read the tables back, and report.

        :returns: seconds after which the next one has to follow.
        """
        begun = self.now()
        desired, changed, faults = self._enforce_desired()
        served = self._watch.leave_out_held(desired, self.now())
        reading = self._look(served, changed, patient=not faults)
        lost = find_lost_rows(served, reading, self._settled)
        undone = self._watch.choose_undone(lost, reading, self.now())
        if undone is None:
            self._watch.take_reading(desired, served, reading, self.now())
        else:
            faults = [*faults, *self._undo(undone, desired, lost, reading)]
            # The rows that were harmed come back with it.
            served = self._watch.leave_out_held(desired, self.now())
            reading = self._look(served, changed=True, patient=True)
            lost = find_lost_rows(served, reading, self._settled)
        self._was_open = reading.opened is not None
        self._note_settled(served, reading)
        reading = self._watch.mark_held(reading, desired, self.now())
        self._update_status(reading)
        self._report(desired, reading)
        self._tell_faults(
            (
                *self._list_audit_faults(),
                *faults,
                *describe_losses(lost, reading),
                *self._list_overdue(desired, reading),
                *self._passing_faults,
                *reading.faults,
            )
        )
        self._passing_faults = ()
        if changed:
            self.spacing.note_end(begun, self.now())
        return _FAULT_PAUSE if faults else self._choose_pause(desired, reading)

    def _update_status(self, reading: ReadBack) -> None:
        self._note_managers(reading)
        self.status = attrs.evolve(
            self.status,
            ticket=0 if self._in_force is None else self._in_force.ticket,
            foreign_pkeys=self._list_foreign(),
            full=tuple(sorted(reading.full)),
        )

    def _note_managers(self, reading: ReadBack) -> None:
        if reading.managers is not None:
            self.status = attrs.evolve(self.status, managers=tuple(sorted(reading.managers)))

    def _list_overdue(self, desired: DesiredPartitions, reading: ReadBack) -> tuple[str, ...]:
        return list_overdue_alarms(
            desired, reading, self._histories, self.report_options, self.now()
        )

    def _report(self, desired: DesiredPartitions, reading: ReadBack) -> None:
        moment = self.now()
        self._histories = update_histories(
            self._histories, desired, reading, self.report_options, moment
        )
        reports = choose_reports(desired, reading, self._histories, self.report_options, moment)
        for part in split_reports(reports):
            self.server.report_members(desired.ticket, part, self._keep_in_force)
            self._histories = count_repeats(self._histories, part)

    def _choose_pause(self, desired: DesiredPartitions, reading: ReadBack) -> float:
        """Look often after new rows, and less and less often after rows that stay pending."""
        moment = self.now()
        pauses = [self.poll_interval, max(_BEHIND_PAUSE, self._watch.choose_pause(moment))]
        ages = [self._age_of(row) for row in list_pending_rows(desired, reading)]
        if ages:
            pauses.append(max(_BEHIND_PAUSE, min(ages) / 10))
        pauses += [
            max(_BEHIND_PAUSE, history.active_since + REPEATS[history.repeats] - moment)
            for history in self._histories.values()
            if history.active_since is not None and history.repeats < len(REPEATS)
        ]
        return min(pauses)

    def _age_of(self, row: int) -> float:
        """Return the seconds since this agent first saw a membership row; 0.0 if it has not."""
        moment = self.now()
        history = self._histories.get(row)
        return 0.0 if history is None else moment - history.first_seen

    def _enforce_desired(self) -> tuple[DesiredPartitions, bool, list[str]]:
        """Put the desired state in force; read it again if another agent read it later.

        :returns: the desired state, whether the manager got a change, and faults.
        """
        for _ in range(_STALE_TRIES):
            desired = self._read_desired()
            served = self._watch.leave_out_held(desired, self.now())
            if self._in_force is None:
                self._note_right_before(served)
            try:
                changed = self._enforce(served)
            except StaleReadingError as error:
                LOG.info("Ticket %d is stale and is read again: %s", desired.ticket, error)
                continue
            except SubnetManagerError as error:
                return desired, False, [f"the subnet manager: {error}"]
            return desired, changed, []
        raise StaleReadingError(
            f"{_STALE_TRIES} readings were stale one after the other: another agent of this "
            "fabric is at work, too"
        )

    def _enforce(self, served: DesiredPartitions) -> bool:
        """Put a desired state in force, without the rows that are kept back.

        :returns: whether the manager got a change.
        :raises SubnetManagerError: it cannot be done.
        """
        before = self._in_force
        try:
            changed = self.manager.enforce(served)
        finally:
            self.files.mark_files()
        if changed:
            self.changes += 1
            self.spacing.note_change(self.now())
            before = before or keep_rows(served, self._settled)
            self._watch.note_change(compare_desired(before, served, self.now(), self._was_open))
        self._in_force = served
        return changed

    def _read_desired(self) -> DesiredPartitions:
        """Read the server's rows; while it does not answer, keep the last state in force."""
        try:
            return self.server.read_desired(self._keep_in_force)
        except Exception:
            self._keep_in_force()
            raise

    def _keep_in_force(self) -> None:
        """Undo changes of others to the manager's files since the last change."""
        if self._in_force is not None and self.files.find_changes():
            # The next round compares the file again, and reports a change that the manager refuses.
            with contextlib.suppress(SubnetManagerError):
                self.manager.enforce(self._in_force)
            self.files.mark_files()

    def _note_right_before(self, served: DesiredPartitions) -> None:
        """Note the rows that are right already: the first change must not harm them either."""
        try:
            reading = self.manager.read_back(served)
        except SubnetManagerError as error:
            LOG.info("The rows that were right before are unknown: %s", error)
            return
        self._note_settled(served, reading)
        self._was_open = reading.opened is not None
        self._passing_faults = reading.faults

    def _look(self, desired: DesiredPartitions, changed: bool, patient: bool) -> ReadBack:
        """Read the tables until all is as desired, for a bounded time.

        :param changed: whether to wait for rows, too, that did not come for long.
        :param patient: False: nothing can come, so that once is enough.
        """
        end = self.now() + LOOK_BOUND
        pause = _LOOK_PAUSE
        faults = dict.fromkeys(self._passing_faults)
        while True:
            reading = self.manager.read_back(desired)
            self.looks += 1
            left = end - self.now()
            woken = self.wake.is_set() and not self.spacing.time_left(self.now())
            hopeful = self._is_hopeful(desired, reading, changed)
            if not (patient and hopeful) or left <= 0 or woken:
                self._passing_faults = tuple(faults)
                return reading
            # Some faults occur in one reading only, such as a file that was edited.
            faults |= dict.fromkeys(reading.faults)
            self.pause(min(pause, left))
            pause = min(2 * pause, _BEHIND_PAUSE)

    def _is_hopeful(self, desired: DesiredPartitions, reading: ReadBack, changed: bool) -> bool:
        """Whether another look within this round can find more rows right.

        A port that does not answer is left to the next round: each question costs its timeout.
        """
        pending = [
            row
            for row in list_pending_rows(desired, reading)
            if row not in reading.members or reading.members[row].state is not MemberState.UNKNOWN
        ]
        if not pending:
            return False
        return changed or any(row in self._right or self._age_of(row) < _FRESH for row in pending)

    def _undo(
        self,
        rows: frozenset[int],
        desired: DesiredPartitions,
        lost: Sequence[PartitionMember],
        reading: ReadBack,
    ) -> list[str]:
        """Undo the rows whose change did harm, and have the manager read the file at once.

        :returns: faults.
        """
        harm = reading.opened or describe_losses(lost, reading)[0]
        LOG.error("The last change did harm, and %d rows of it are undone: %s", len(rows), harm)
        self._watch.keep_back(rows, self.now())
        if not rows:
            self.manager.refuse_settings()
        try:
            self._enforce(self._watch.leave_out_held(desired, self.now()))
        except SubnetManagerError as error:
            return [f"the subnet manager: {error}"]
        return [
            f"the last change did harm and was undone: {harm}; {len(rows)} ports wait and are "
            "tried again"
        ]

    def _list_foreign(self) -> tuple[int, ...]:
        return tuple(sorted(self.manager.foreign_pkeys()))

    def _note_settled(self, desired: DesiredPartitions, reading: ReadBack) -> None:
        """Remember which membership rows are in force as desired, while they are wanted."""
        wanted = {member.row for member in desired.wanted()}
        self._right = frozenset(
            row
            for row, entry in reading.members.items()
            if row in wanted and entry.state is MemberState.AS_DESIRED
        )
        self._settled = self._right | (self._settled & wanted)

    # -- alarms ---------------------------------------------------------------------------

    def _list_audit_faults(self) -> tuple[str, ...]:
        if self.now() - self._audited >= _AUDIT_INTERVAL:
            self._audited = self.now()
            rows = hardening.list_open_rows(self.manager.audit())
            self._audit_faults = tuple(map(hardening.format_open_row, rows))
        return self._audit_faults

    def _tell_faults(self, faults: Sequence[str]) -> None:
        after = tuple(dict.fromkeys(faults))
        before, self.status = self.status.faults, attrs.evolve(self.status, faults=after)
        new = [entry for entry in after if entry not in before]
        gone = [entry for entry in before if entry not in after]
        if new or gone:
            self.tell_alarms(new, gone)


def list_pending_rows(desired: DesiredPartitions, reading: ReadBack) -> list[int]:
    """List the ids of membership rows that are not in force as desired, or could not be read."""
    return [
        member.row
        for member in desired.members
        if (entry := reading.members.get(member.row)) is None
        or entry.state in (MemberState.DIFFERENT, MemberState.UNKNOWN)
    ]


def _describe_error(error: Exception) -> str:
    text = str(error) or "no text"
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}"
