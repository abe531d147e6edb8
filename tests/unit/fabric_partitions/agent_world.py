# SPDX-License-Identifier: Apache-2.0
"""A model of a subnet manager, of Neutron's server and of time, for the agent's rounds."""

from pathlib import Path

import attrs

from nova_hpc.fabric.partitions import hardening
from nova_hpc.fabric.partitions.agent_round import PartitionAgent
from nova_hpc.fabric.partitions.backends.base import (
    Capabilities,
    MemberReading,
    MemberState,
    ReadBack,
    StaleReadingError,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.members import ACTIVE, DOWN, ERROR, DesiredPartitions
from nova_hpc.fabric.partitions.members import PartitionMember as Member
from nova_hpc.fabric.partitions.watched_files import WatchedFiles

KEYS = (
    "sa_key 0x9d31c60ab84ef217\nsm_key 0x71f0e1c29ab35d48\nm_key 0x0c95b3ee61d2748a\n"
    "m_key_protection_level 2\n"
)
LIMITED = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n"


class Time:
    """A clock that runs only while somebody sleeps, and what happens meanwhile."""

    def __init__(self):
        self.at = 1000.0
        self.events = []
        self.is_woken = False
        self.slept = []

    def now(self):
        return self.at

    def later(self, seconds, happens):
        self.events.append((self.at + seconds, happens))

    def _advance(self, seconds, wakes=False):
        end = self.at + seconds
        for moment, happens in sorted(self.events, key=lambda event: event[0]):
            if moment <= end:
                self.events.remove((moment, happens))
                self.at = max(self.at, moment)
                happens()
                if wakes and self.is_woken:
                    return
        self.at = end

    def pause(self, seconds):
        assert seconds > 0
        self._advance(seconds)

    # As of an event.

    def is_set(self):
        return self.is_woken

    def set(self):
        self.is_woken = True

    def clear(self):
        self.is_woken = False

    def wait(self, timeout):
        assert timeout > 0
        self.slept.append(timeout)
        if not self.is_woken:
            self._advance(timeout, wakes=True)
        return self.is_woken


class Manager:
    """A subnet manager whose ports follow its file after *delay* seconds."""

    capabilities = Capabilities(separates_functions=False)

    def __init__(self, time, folder):
        self.time = time
        self.delay = 0.05
        self.is_running = True
        self.absent = set()
        #: GUIDs of ports that are up and do not answer.
        self.hung = set()
        self.managers = frozenset({0xF})
        #: Which files opensm makes something else of, and what; None: everybody reaches everybody.
        self.spoils, self.spoiled = None, None
        self.ticket = 0
        self.file = frozenset()
        self.tables = frozenset()
        self.writes, self.restores, self.refusals, self.closed = [], 0, 0, False
        self.config, self.partitions = KEYS, LIMITED
        self.path = Path(folder) / "partitions.conf"
        self.faults = ()
        self.unreadable = False

    def enforce(self, desired):
        if desired.ticket < self.ticket:
            raise StaleReadingError(f"{self.ticket} is in force")
        if not self.is_running:
            raise SubnetManagerError("opensm does not run")
        self.ticket = desired.ticket
        entries = frozenset((member.guid, member.pkey) for member in desired.wanted())
        if entries == self.file and self.path.exists():
            return False
        self._write(entries)
        return True

    def _write(self, entries):
        self.file = entries
        self.writes.append((self.time.at, entries))
        self.path.write_text(f"{len(self.writes)} {sorted(entries)}")
        if self.spoils is not None and self.spoils(entries):
            self.time.later(self.delay, lambda: self._take(self.spoiled))
        else:
            self.time.later(self.delay, lambda: self._take(entries))

    def _take(self, entries):
        if self.is_running:
            self.tables = entries

    def read_back(self, desired):
        if self.unreadable:
            raise SubnetManagerError("the reader has died")
        readings = {}
        for member in desired.members:
            entry = member.guid, member.pkey
            there = self.tables is not None and entry in self.tables
            if member.guid in self.absent:
                reading = MemberReading(MemberState.NOT_ON_FABRIC, "not there")
            elif member.guid in self.hung:
                reading = MemberReading(MemberState.UNKNOWN, "no answer")
            elif self.tables is None:
                reading = MemberReading(MemberState.DIFFERENT, "the fabric is open", False)
            elif there == member.wanted:
                reading = MemberReading(MemberState.AS_DESIRED, kept=there)
            else:
                reading = MemberReading(MemberState.DIFFERENT, f"row {member.row}", there)
            readings[member.row] = reading
        faults, self.faults = self.faults, ()
        opened = "the fabric is open" if self.tables is None else None
        return ReadBack(readings, faults + ((opened,) if opened else ()), opened, self.managers)

    def restore(self):
        self.restores += 1
        if not self.ticket:
            raise SubnetManagerError("no agent has written it before")
        self.partitions = LIMITED
        self._write(frozenset())

    def refuse_settings(self):
        self.refusals += 1

    def foreign_pkeys(self):
        return frozenset((0x22, 0x11))

    def watched_files(self):
        return (self.path,)

    def audit(self):
        return hardening.audit_opensm(self.config, self.partitions)

    def close(self):
        self.closed = True


class Server:
    """Rows, as Neutron's server keeps them; each method may fail."""

    def __init__(self, time):
        self.time = time
        self.rows = {}
        self.ticket = 0
        self.calls, self.reports = 0, []
        self.away_until = 0.0
        self.seconds = 0.0
        self.stale = 0

    def put(self, *members):
        self.rows |= {member.row: member for member in members}

    def bind(self, row, guid, pkey=0x101, **more):
        self.put(Member(row, f"port-{row}", guid, pkey, port_status=DOWN, **more))

    def unbind(self, row):
        self.rows[row] = attrs.evolve(self.rows[row], wanted=False, port_status=None)

    def status(self, row):
        return self.rows[row].port_status if row in self.rows else None

    def _answer(self, meanwhile):
        self.calls += 1
        if self.time.at < self.away_until:
            for _ in range(20):
                self.time.pause(0.5)
                meanwhile()
            raise TimeoutError("no answer in 10 seconds")

    def read_desired(self, meanwhile):
        self._answer(meanwhile)
        self.ticket += 1
        if self.stale:
            self.stale -= 1
            return DesiredPartitions(0)
        return DesiredPartitions(self.ticket, tuple(self.rows.values()))

    def report_members(self, ticket, reports, meanwhile):
        self._answer(meanwhile)
        if self.seconds:
            self.time.pause(self.seconds)
        assert ticket == self.ticket
        self.reports.append(reports)
        for row in reports.present:
            self.rows[row] = attrs.evolve(self.rows[row], port_status=ACTIVE)
        for row, _ in reports.lost:
            assert self.rows[row].port_status == ACTIVE
            self.rows[row] = attrs.evolve(self.rows[row], port_status=DOWN)
        for row, _ in reports.failed:
            self.rows[row] = attrs.evolve(self.rows[row], port_status=ERROR)
        for row in reports.gone:
            assert not self.rows[row].wanted
            del self.rows[row]


class Bench:
    """An agent with its surroundings."""

    def __init__(self, folder):
        self.time = Time()
        self.manager = Manager(self.time, folder)
        self.server = Server(self.time)
        self.alarms = []
        self.agent = self.make_agent()

    def make_agent(self, **more):
        return PartitionAgent(
            manager=self.manager,
            server=self.server,
            tell_alarms=lambda new, gone: self.alarms.append((tuple(new), tuple(gone))),
            wake=self.time,
            files=WatchedFiles(self.manager.watched_files),
            now=self.time.now,
            pause=self.time.pause,
            poll_interval=5.0,
            **more,
        )

    def run(self, seconds):
        end = self.time.at + seconds
        self.agent.run(lambda: self.time.at >= end)

    def new_alarms(self):
        return [text for new, _ in self.alarms for text in new]
