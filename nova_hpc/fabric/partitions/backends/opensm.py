# SPDX-License-Identifier: Apache-2.0
"""Upstream's subnet manager, opensm.

It has P_Keys only for physical ports, so functions of one port cannot be separated. A file and
a signal change its partitions. It fails open: if it cannot parse the file, it gives all ports full
membership of the default partition. So the agent replaces the whole file, and only the tables read
back from the ports count as proof.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
from oslo_log import log

from nova_hpc.fabric.partitions.backends import opensm_trial
from nova_hpc.fabric.partitions.backends.base import (
    AuditRow,
    Capabilities,
    FileComparison,
    MemberReading,
    MemberState,
    ReadBack,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.opensm_checks import OpensmChecks, read_running
from nova_hpc.fabric.partitions.backends.opensm_files import (
    OpensmLog,
    PartitionStore,
    read_text,
    replace_text,
)
from nova_hpc.fabric.partitions.backends.opensm_process import (
    OpensmProcess,
    find_opensm,
    wake_opensm,
)
from nova_hpc.fabric.partitions.default_rule import read_default_rule
from nova_hpc.fabric.partitions.hardening import is_enforced
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions, parse_own_partitions
from nova_hpc.fabric.partitions.partition_file import (
    PartitionLayout,
    body_of_file,
    describe_manager_port,
    lay_out_partitions,
    parse_file,
    render_body,
    render_file,
)
from nova_hpc.fabric.partitions.port_reader import PortReader, ReaderSettings
from nova_hpc.fabric.partitions.port_tables import (
    FabricPorts,
    PortTables,
    Strangers,
    TableExpectations,
    compare_tables,
    describe_open_fabric,
    judge_member,
)
from nova_hpc.fabric.partitions.table_cache import TableCache

LOG: Final = log.getLogger(__name__)

#: Seconds after a write in which opensm may still be taking keys away.
_SETTLING: Final = 3.0
#: Seconds after a signal at which opensm gets another one while a row is not right: at first, and
#: at most. Each is a sweep of the whole fabric.
_FIRST_REPEAT, _LONGEST_REPEAT = 5.0, 60.0
_UNREAD: Final = PortTables(None, None)
_OWN_IN_FORCE: Final = "own-partitions.last-good.conf"


@attrs.frozen
class _Told:
    """The last file content that opensm was signalled to read, and the process of opensm."""

    process: OpensmProcess
    body: str
    at: float


class OpensmSubnetManager:
    """opensm on this host; see :class:`~nova_hpc.fabric.partitions.backends.base.SubnetManager`.

    :ivar reader: of the fabric.
    :ivar signals: number of signals sent to opensm, for measurements.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(separates_functions=False)

    def __init__(self, conf: Any) -> None:
        """Start nothing yet.

        :param conf: the group ``[hpc_fabric_agent]``.
        :raises SubnetManagerError: opensm's options cannot be read, or name another file.
        """
        self._conf = conf
        self._store = PartitionStore(Path(conf.partitions_file))
        self._own_path = Path(conf.own_partitions_file)
        self._log = OpensmLog(Path(conf.opensm_log))
        self._own_in_force = Path(conf.state_path) / _OWN_IN_FORCE
        self.reader = PortReader(self._choose_reader_settings())
        self._checks = OpensmChecks(conf, self._store, self.reader)
        self._tables = TableCache(self.reader, conf.poll_interval)
        self.signals = 0
        self._own: OwnPartitions | None = None
        #: The partitions before their last change, and the text of partitions that did harm.
        self._own_before: OwnPartitions | None = None
        self._refused_own: str | None = None
        self._own_complaint: str | None = None
        self._log_is_unread = False
        self._tried: set[str] = set()
        #: The last text that this agent saw in force; other text is by another program or person.
        self._written: str | None = None
        self._edited: str | None = None
        self._told: _Told | None = None
        self._retold = False
        self._signalled_at = 0.0
        self._repeat_pause = _FIRST_REPEAT
        self._saved_own: OwnPartitions | None = None
        self._managers: frozenset[int] = frozenset()
        #: The largest number of ports that this agent has found.
        self._most_ports = 0

    def _choose_reader_settings(self) -> ReaderSettings:
        options = self._read_options()
        return ReaderSettings(
            guid=_number_of(options, "guid"),
            m_key=_number_of(options, "m_key"),
            simulated_host=self._conf.simulated_host or None,
        )

    # -- the desired state ---------------------------------------------------------------

    def enforce(self, desired: DesiredPartitions) -> bool:
        """Write the file of partitions for *desired*, and signal opensm to read it.

        See :meth:`SubnetManager.enforce`.
        """
        # Keys of the fabric may have been changed.
        self.reader.use_settings(self._choose_reader_settings())
        with self._store.hold_lock():
            text = self._store.read()
            self._store.pass_fence(desired.ticket, text)
            own = self._choose_own(text, desired)
            body = render_body(self._lay_out(desired, own), own)
            if self._own is not None and self._own.text != own.text:
                self._own_before = self._own
            self._own = own
            changed = self._note_edit(text)
            if text is None or body_of_file(text) != body:
                self._write(render_file(body, desired.ticket))
                changed = True
            else:
                self._written = text
            return self._tell(body, force=changed) or changed

    def _lay_out(self, desired: DesiredPartitions, own: OwnPartitions) -> PartitionLayout:
        most = self.capabilities.most_pkeys_of_a_port
        return lay_out_partitions(desired, own, most, self._managers)

    def _read_options(self) -> Mapping[str, str]:
        path = Path(self._conf.opensm_config)
        options = read_running(self._conf).overlay_options(read_text(path)) or {}
        used = options.get("partition_config_file")
        if used is not None and Path(used).resolve() != self._store.path:
            raise SubnetManagerError(
                f"opensm reads its partitions from {used} ({path}), and "
                f"[hpc_fabric_agent]partitions_file is {self._store.path}: name one file in both"
            )
        return options

    def _note_edit(self, text: str | None) -> bool:
        """Whether a person or program other than an agent changed the file since it was written."""
        if self._written is None or text == self._written:
            return False
        if text is not None and body_of_file(text) is not None:
            return False  # Another agent's.
        what = "is gone" if text is None else "is empty" if not text else "was changed by others"
        self._edited = f"{self._store.path} {what}; it was written again"
        LOG.warning("%s", self._edited)
        return True

    def _write(self, text: str) -> None:
        replace_text(self._store.path, text)
        self._written = text
        self._told = None

    def _tell(self, body: str, force: bool) -> bool:
        """Have opensm read the file, unless this run of it got a signal for the same text.

        :raises SubnetManagerError: it does not run. It will read the file when it starts.
        """
        try:
            process = find_opensm(Path(self._conf.opensm_pid_file))
            told = self._told
            if not force and told is not None and (told.process, told.body) == (process, body):
                return False
            self._log.set_mark()
            wake_opensm(process)
        except SubnetManagerError:
            self._told = None
            raise
        self.signals += 1
        self._signalled_at = time.monotonic()
        self._told = _Told(process, body, self._signalled_at)
        self._retold = False
        self._tables.distrust()
        return True

    def _repeat_signal(self, is_due: bool) -> None:
        """Have opensm sweep once more while a row is not right, less and less often.

        It may have missed a link that came back between two of its own looks.
        """
        now = time.monotonic()
        if not is_due or self._told is None:
            self._repeat_pause = _FIRST_REPEAT
        elif now - self._signalled_at > self._repeat_pause:
            with contextlib.suppress(SubnetManagerError):
                wake_opensm(find_opensm(Path(self._conf.opensm_pid_file)))
                self.signals += 1
            self._signalled_at = now
            self._repeat_pause = min(2 * self._repeat_pause, _LONGEST_REPEAT)

    # -- the administrator's own partitions ----------------------------------------------

    def _choose_own(self, text: str | None, desired: DesiredPartitions) -> OwnPartitions:
        """Choose the administrator's own partitions to use: the file's, or the last ones in force.

        :param text: opensm's present file of partitions; None if it does not exist.
        :raises SubnetManagerError: the file is bad, and no own partitions were in force.
        """
        before = self._find_own(text)
        try:
            own = self._read_own(before).with_default(
                read_default_rule(text) if before is None else before.default
            )
            if before is not None and own.text == self._refused_own:
                raise ValueError("opensm opened the fabric with it: change it")
            if before is None or own.text != before.text:
                self._check_change(own, desired)
        except (SubnetManagerError, ValueError) as error:
            complaint = f"{self._own_path}: {error}"
            if before is None:
                self._own_complaint = complaint
                raise SubnetManagerError(
                    f"{complaint}; nothing is written until that is right"
                ) from error
            if complaint != self._own_complaint:
                LOG.error("%s; those that were in force stay", complaint)
            self._own_complaint = complaint
            return before
        self._own_complaint = None
        return own

    def _find_own(self, text: str | None) -> OwnPartitions | None:
        """Return the own partitions in force; after a start those of *text*, the present file.

        None if no readable file has them.
        """
        if self._own is not None:
            return self._own
        with contextlib.suppress(ValueError):
            if text is not None and body_of_file(text) is not None:
                return parse_file(text).own
        with contextlib.suppress(ValueError):
            saved = read_text(self._own_in_force)
            return None if saved is None else parse_file(saved).own
        return None

    def refuse_settings(self) -> None:
        """See :meth:`SubnetManager.refuse_settings`: the own partitions that came last."""
        if self._own is None or self._own_before is None:
            return
        self._refused_own, self._own = self._own.text, self._own_before
        self._own_before = None

    def _read_own(self, before: OwnPartitions | None) -> OwnPartitions:
        text = read_text(self._own_path)
        if not text and before is not None and before.partitions:
            what = "it is gone" if text is None else "it is empty"
            raise ValueError(
                f"{what}, and partitions of it are in force; if they are to go, write a line of "
                "comment into it"
            )
        return parse_own_partitions(text or "")

    def _check_change(self, own: OwnPartitions, desired: DesiredPartitions) -> None:
        """Check own partitions that are not in force yet.

        :raises ValueError: they cannot be used.
        """
        taken = own.pkeys() & {member.pkey for member in desired.members}
        if taken:
            raise ValueError(f"P_Key {min(taken):#06x} is one that a network has: take another one")
        digest = hashlib.sha256(own.text.encode("utf-8", "surrogateescape")).hexdigest()
        if not own.partitions or not self._conf.trial or digest in self._tried:
            return
        if not opensm_trial.can_try_file():
            return
        try:
            reason = opensm_trial.try_file(render_file(render_body(PartitionLayout(), own), 0))
        except (OSError, SubnetManagerError) as error:
            # The tables that are read back decide in any case.
            LOG.warning("own partitions could not be tried on a simulated fabric: %s", error)
            return
        if reason is not None:
            raise ValueError(f"opensm does not take it on a simulated fabric: {reason}")
        self._tried.add(digest)

    def foreign_pkeys(self) -> frozenset[int]:
        """See :meth:`SubnetManager.foreign_pkeys`: the P_Keys of the file and those in force."""
        pkeys: frozenset[int] = frozenset() if self._own is None else self._own.pkeys()
        try:
            return pkeys | parse_own_partitions(read_text(self._own_path) or "").pkeys()
        except (SubnetManagerError, ValueError):
            return pkeys

    # -- the state in force --------------------------------------------------------------

    def read_back(self, desired: DesiredPartitions) -> ReadBack:
        """Read the P_Key tables once and compare them with *desired*.

        See :meth:`SubnetManager.read_back`.
        """
        own = self._find_own(self._store.read()) or OwnPartitions()
        guids = frozenset(member.guid for member in desired.members)
        fabric = self._tables.refresh_ports(guids)
        written = render_body(self._lay_out(desired, own), own)
        self._managers = frozenset(fabric.managers)
        layout = self._lay_out(desired, own)
        complaints = self._read_complaints()
        not_in_force = self._explain_not_in_force(written) or next(iter(complaints), None)
        if not_in_force is not None:
            self._tables.distrust()
        expectations = self._expect_tables(layout, own, fabric)
        leaving = frozenset((member.guid, member.pkey) for member in desired.members)
        tables, strangers = self._tables.read(expectations, guids, leaving)
        shrunk = self._explain_shrunk(fabric)
        readings = {
            member.row: judge_member(
                member, expectations, tables.get(member.guid), strangers, not_in_force
            )
            for member in desired.members
            if shrunk is None or tables.get(member.guid, _UNREAD).own is not None
        }
        # No sweep helps a row that the file does not have.
        written_rows = (entry for row, entry in readings.items() if row not in layout.refused)
        coming_up = any(read.is_coming_up for read in tables.values())
        self._repeat_signal(coming_up or any(map(_is_unsettled, written_rows)))
        told = self._told
        settled = told is None or time.monotonic() - told.at > _SETTLING
        faults = [*complaints, *([] if shrunk is None else [shrunk])]
        if settled or strangers.full_defaults():
            faults.extend(strangers.sentences)
        faults.extend(describe_manager_port(guid) for guid in sorted(guids & self._managers))
        faults.extend(self._list_faults(layout))
        faults.extend(self._log.describe_other_managers(fabric))
        opened = next(iter(complaints), None) or _explain_open(strangers, fabric)
        if opened is None and not_in_force is None:
            self._save_own()
        managers = self._managers | ({fabric.manager} if fabric.manager else frozenset())
        full = expectations.find_full_ports(self.capabilities.most_pkeys_of_a_port)
        return ReadBack(readings, tuple(faults), opened, managers, full)

    def _explain_shrunk(self, fabric: FabricPorts) -> str | None:
        """Explain why absent ports prove nothing (under half of all answer); None if they do."""
        silent = fabric.silent_places
        answering = sum(port.facing not in silent for port in fabric.ports.values())
        self._most_ports = max(self._most_ports, answering)
        if 2 * answering >= self._most_ports:
            return None
        return (
            f"only {answering} of {self._most_ports} ports of the fabric answer: members that are "
            "missing keep their state; start the agent again if that is meant"
        )

    def _expect_tables(
        self, layout: PartitionLayout, own: OwnPartitions, fabric: FabricPorts
    ) -> TableExpectations:
        return TableExpectations(layout, own, fabric, is_enforced(self._read_options()))

    def _explain_not_in_force(self, body: str) -> str | None:
        """Explain why opensm does not use the rendered text; None if it does."""
        text = self._store.read()
        if text is None or body_of_file(text) != body:
            return f"{self._store.path} is not as it was written"
        if self._told is None or self._told.body != body:
            return "opensm has not been signalled to read the file yet"
        try:
            process = find_opensm(Path(self._conf.opensm_pid_file))
        except SubnetManagerError as error:
            return str(error)
        if process != self._told.process:
            return "opensm has restarted and has not been signalled to read the file yet"
        return None

    def _read_complaints(self) -> tuple[str, ...]:
        """Return the complaints about the file in opensm's log; () if the log cannot be read.

        A sweep that began before the write may still complain about the file before. So the first
        complaint leads to one more signal, and only complaints after that signal count.
        """
        try:
            complaints = self._log.read_complaints()
        except SubnetManagerError as error:
            if not self._log_is_unread:
                LOG.warning("%s", error)
            self._log_is_unread = True
            return ()
        self._log_is_unread = False
        if not complaints or self._told is None:
            return ()
        if not self._retold:
            # The check of opensm's process reports an opensm that has ended.
            with contextlib.suppress(SubnetManagerError):
                self._tell(self._told.body, force=True)
                self._retold = True
            return ()
        return (f"opensm has not taken {self._store.path}: {complaints[0].strip()}",)

    def _list_faults(self, layout: PartitionLayout) -> list[str]:
        faults = []
        if self._own_complaint is not None:
            faults.append(self._own_complaint)
        if self._edited is not None:
            faults.append(self._edited)
            self._edited = None
        levels = any(policy.service_level for policy in layout.policies.values())
        if levels and self._read_options().get("qos") != "TRUE":
            faults.append(
                "networks have service levels, and opensm drops them without a word: set qos TRUE "
                f"in {self._conf.opensm_config}"
            )
        return faults

    def _save_own(self) -> None:
        """Keep the own partitions that are in force, for a start with a damaged file."""
        if self._own is None or self._saved_own == self._own:
            return
        self._own_in_force.parent.mkdir(parents=True, exist_ok=True)
        body = render_body(PartitionLayout(), self._own)
        replace_text(self._own_in_force, render_file(body, ticket=0))
        self._saved_own = self._own

    # -- restore and undo ----------------------------------------------------------------

    def restore(self) -> None:
        """See :meth:`SubnetManager.restore`: keep only the default partition and the own ones.

        :raises SubnetManagerError: no agent had this fabric before.
        """
        with self._store.hold_lock():
            text = self._store.read()
            if text is not None and body_of_file(text) is not None:
                return  # Another agent wrote it before this one got the lock.
            ticket = self._store.latest_ticket(text)
            if not ticket:
                raise SubnetManagerError(f"no agent has written {self._store.path} before")
            own = self._choose_own(text, DesiredPartitions(ticket))
            body = render_body(PartitionLayout(), own)
            self._own = own
            self._write(render_file(body, ticket))
            self._tell(body, force=True)
        LOG.error("%s was damaged; it has no network until Neutron answers", self._store.path)

    # -- the rest ------------------------------------------------------------------------

    def watched_files(self) -> Sequence[Path]:
        """Return the files whose change wakes the agent; see the interface's method."""
        return (self._store.path, self._own_path, Path(self._conf.opensm_pid_file))

    def audit(self) -> Sequence[AuditRow]:
        """Check opensm's settings on which the isolation depends.

        See :meth:`SubnetManager.audit`.
        """
        return self._checks.audit()

    def plan_first_write(self, desired: DesiredPartitions) -> None:
        """Store the desired partitions, as the interface ``PlansFirstWrite`` requires."""
        self._checks.plan_first_write(desired)

    def accept_losses(self) -> tuple[str, ...]:
        """Keep the operator's decision on the first write; see :class:`OpensmChecks`."""
        return self._checks.accept_losses()

    def compare_with_file(self) -> FileComparison:
        """Compare the tables of all ports with the file as it is; changes nothing.

        :raises SubnetManagerError: the file is not the agent's, or nothing can be read.
        """
        text = self._store.read()
        try:
            file = parse_file(text or "")
        except ValueError as error:
            raise SubnetManagerError(f"{self._store.path}: {error}") from error
        fabric = self.reader.read_ports()
        tables = self.reader.read_tables(list(fabric.ports.values()))
        return compare_tables(self._expect_tables(file.layout, file.own, fabric), tables)

    def close(self) -> None:
        """Close the reader of the fabric; idempotent.

        See :meth:`SubnetManager.close`.
        """
        self.reader.close()


def _is_unsettled(reading: MemberReading) -> bool:
    return reading.state in (MemberState.DIFFERENT, MemberState.UNKNOWN)


def _explain_open(strangers: Strangers, fabric: FabricPorts) -> str | None:
    """Explain why all partitions are in doubt: most ports are full default members; else None."""
    opened = strangers.full_defaults()
    return describe_open_fabric(opened) if 2 * len(opened) > len(fabric.ports) else None


def _number_of(options: Mapping[str, str], name: str) -> int:
    try:
        return int(options.get(name, "0"), 0)
    except ValueError as error:
        raise SubnetManagerError(
            f"opensm's option {name} is {options[name]!r}, and no number"
        ) from error
