# SPDX-License-Identifier: Apache-2.0
"""Random histories of one UFM: binds, administrators, jobs, lost answers, and agents that end.

The oracle looks at every GUID in every partition at each change of UFM, bound or not, and at UFM
whenever the agent reports. It knows what administrators have put where, and nothing of the agent.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
from oslo_config import cfg

from nova_hpc.fabric.partitions.agent_round import PartitionAgent
from nova_hpc.fabric.partitions.keys import Membership, format_guid, format_pkey
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember
from nova_hpc.fabric.partitions.report_choice import MemberReports
from nova_hpc.fabric.partitions.watched_files import WatchedFiles
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import RawAnswer, RecordedUfm
from tests.unit.fabric_partitions.ufm_world import SECURE

GUIDS = tuple(0x0002C90000200001 + number for number in range(6))
NETWORKS = (0x101, 0x102, 0x103, 0x104)
THEIRS = (0x300, 0x301)
#: Seconds after which UFM makes a change of which the answer was lost.
LATEST = 50.0
Place = tuple[int, int]


@attrs.define
class History:
    """One UFM with its fabric, one Neutron, and one agent at a time."""

    seed: int
    ufm: RecordedUfm
    conf: cfg.GroupAttr
    clock: float = 0.0
    ticket: int = 0
    rows: dict[int, PartitionMember] = attrs.field(factory=dict)
    told: list[str] = attrs.field(factory=list)
    events: list[str] = attrs.field(factory=list)
    wrongs: list[str] = attrs.field(factory=list)
    #: Changes that UFM makes late: moment, and change.
    late: list[tuple[float, str, Place, Callable[[], None]]] = attrs.field(factory=list)
    #: Members of others' making in our partitions, and partitions of others.
    strangers: set[Place] = attrs.field(factory=set)
    theirs: dict[str, dict[str, str]] = attrs.field(factory=dict)
    moments: int = 0
    reported: int = 0
    removed_strangers: int = 0
    _before: set[Place] = attrs.field(factory=set)
    _acting: bool = False
    _dice: random.Random = attrs.field(init=False)
    _agent: PartitionAgent = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self.ufm.ports = [f"{guid:016x}" for guid in GUIDS]
        self.ufm.manager = dict(SECURE)
        self.ufm.watch = self._look
        original = self.ufm.answer
        self._mode = ""

        def answer(method: str, path: str, *rest: object) -> object:
            if method == "GET" or not self._mode:
                return original(method, path, *rest)  # type: ignore[arg-type]
            mode, self._mode = self._mode, ""
            if mode == "made":
                original(method, path, *rest)  # type: ignore[arg-type]
            elif mode == "late" and path == "/resources/pkeys/":
                self._delay(original, method, path, *rest)
            return 504, {"error": "no answer"}, {}

        self.ufm.answer = answer  # type: ignore[method-assign,assignment]
        self._start_agent()

    _mode: str = attrs.field(init=False)

    def _delay(self, original: Callable[..., object], *request: object) -> None:
        body = request[3]
        assert isinstance(body, dict)
        place = (int(body["pkey"], 16), int(body["guids"][0], 16))
        self.late.append(
            (self.clock + self._dice.uniform(0, LATEST), "add", place, lambda: original(*request))
        )

    def _start_agent(self) -> None:
        manager = UfmSubnetManager(self.conf, now=lambda: self.clock)
        self._agent = PartitionAgent(
            manager=manager,
            server=self,
            tell_alarms=lambda new, gone: self.told.extend(new),
            wake=threading.Event(),
            files=WatchedFiles(manager.watched_files),
            now=lambda: self.clock,
            pause=self._pass_time,
            poll_interval=5.0,
        )

    def _pass_time(self, seconds: float) -> None:
        self.clock += seconds
        due = [one for one in self.late if one[0] <= self.clock]
        self.late = [one for one in self.late if one[0] > self.clock]
        for _, _, _, act in due:
            with self.ufm.lock:
                act()

    # -- Neutron ---------------------------------------------------------------------------

    def read_desired(self, meanwhile: Callable[[], None]) -> DesiredPartitions:
        self.ticket += 1
        return DesiredPartitions(self.ticket, tuple(self.rows.values()))

    def report_members(
        self, ticket: int, reports: MemberReports, meanwhile: Callable[[], None]
    ) -> None:
        self.reported += 1
        for row in reports.present:
            member = self.rows[row]
            if self._members(member.pkey).get(member.guid) != member.membership:
                self._note(
                    f"row {row} is said to be present ({member}), and UFM has "
                    f"{self.ufm.partitions.get(f'{member.pkey:#x}')}; late: {self._coming()}; "
                    f"jobs: {self.ufm.jobs}; {self.ufm.seen[-12:]}"
                )
            self._set_status(row, "ACTIVE")
        for row in reports.gone:
            place = (self.rows[row].pkey, self.rows[row].guid)
            again = any((one.pkey, one.guid) == place and one.wanted for one in self.rows.values())
            if not again and (place in self._places() or place in self._coming()):
                self._note(f"row {row} is said to be gone, and UFM has it, or makes it yet")
            del self.rows[row]
        for row, reason in (*reports.failed, *getattr(reports, "lost", ())):
            member = self.rows[row]
            right = self._members(member.pkey).get(member.guid) == member.membership
            if member.port_status == "ACTIVE" and right:
                self._note(f"row {row} was ACTIVE, has its key, and fails: {reason}")
            self._set_status(row, "ERROR")

    def _set_status(self, row: int, status: str) -> None:
        self.rows[row] = attrs.evolve(self.rows[row], port_status=status)

    def _bound(self) -> set[int]:
        return {member.guid for member in self.rows.values() if member.wanted}

    def bind(self) -> None:
        free = sorted(set(GUIDS) - self._bound())
        if free:
            self._add_row(self._dice.choice(free), self._dice.choice(NETWORKS))

    def _add_row(self, guid: int, pkey: int) -> None:
        row = max([0, *self.rows]) + 1 + len(self.events)
        membership = self._dice.choice(list(Membership))
        member = PartitionMember(row, f"port-{row}", guid, pkey, membership, port_status="DOWN")
        self.rows[row] = member

    def unbind(self) -> PartitionMember | None:
        wanted = [member for member in self.rows.values() if member.wanted]
        if not wanted:
            return None
        member = self._dice.choice(wanted)
        self.rows[member.row] = attrs.evolve(member, wanted=False, port_status=None)
        return member

    def move(self) -> None:
        member = self.unbind()
        if member is not None:
            others = [pkey for pkey in NETWORKS if pkey != member.pkey]
            self._add_row(member.guid, self._dice.choice(others))

    # -- administrators and UFM --------------------------------------------------------------

    def change_theirs(self) -> None:
        pkey = f"{self._dice.choice(THEIRS):#x}"
        guid = f"{self._dice.choice(GUIDS):016x}"
        members = self.theirs.setdefault(pkey, {})
        if members.pop(guid, None) is None:
            members[guid] = self._dice.choice(["full", "limited"])
        if self._dice.random() < 0.1:
            del self.theirs[pkey]
            self.ufm.partitions.pop(pkey, None)
        else:
            self.ufm.put(pkey, "storage", **{f"g{one}": word for one, word in members.items()})

    def _choose_ours(self) -> str | None:
        ours = sorted(set(self.ufm.partitions) - set(self.theirs) - {"0x7fff"})
        return self._dice.choice(ours) if ours else None

    def intrude(self) -> None:
        pkey, guid = self._choose_ours(), self._dice.choice(GUIDS)
        if pkey is not None and (int(pkey, 16), guid) not in self._places():
            self.ufm.admit(pkey, f"{guid:016x}", self._dice.choice(["full", "limited"]))
            self.strangers.add((int(pkey, 16), guid))

    def spoil_ours(self) -> None:
        pkey = self._choose_ours()
        if pkey is None:
            return
        entries = self.ufm.partitions[pkey]["guids"]
        if entries and self._dice.random() < 0.5:
            entries.pop(self._dice.randrange(len(entries)))
        elif entries:
            entry = self._dice.choice(entries)
            entry["membership"] = "limited" if entry["membership"] == "full" else "full"
        else:
            del self.ufm.partitions[pkey]

    def end_job(self) -> None:
        if self.ufm.waiting:
            status = "Completed" if self._dice.random() < 0.8 else "Completed With Errors"
            self.ufm.finish_job(self._dice.randrange(len(self.ufm.waiting)), status)
        if self._dice.random() < 0.2:
            running = {job for job, _ in self.ufm.waiting}
            self.ufm.jobs = {job: one for job, one in self.ufm.jobs.items() if job in running}

    def toggle_jobs(self) -> None:
        self.ufm.in_jobs = not self.ufm.in_jobs

    def toggle_pages(self) -> None:
        self.ufm.page_length = None if self.ufm.page_length else 2

    def trouble(self) -> None:
        self.ufm.failures = [self._dice.choice([500, 503, 404, 401])] * self._dice.randrange(1, 6)

    def lose_answer(self) -> None:
        self._mode = self._dice.choice(["lost", "made", "late"])

    def confuse(self) -> None:
        self.ufm.raw = [
            RawAnswer(
                self._dice.choice(
                    [b"<html>", b"{}", b"[]", b'{"0x7fff": {"partition": "m"}}', b'{"0x7fff": 1}']
                )
            )
        ]

    def break_record(self) -> None:
        pkey = self._choose_ours()
        if pkey is not None:
            entries = self.ufm.partitions[pkey].pop("guids")
            self.make_round()
            self.ufm.partitions[pkey]["guids"] = entries

    def end_agent(self) -> None:
        self._agent.manager.close()
        self._start_agent()

    def make_round(self) -> None:
        self._acting = True
        try:
            pause = self._agent.try_round()
        finally:
            self._acting = False
        self._pass_time(min(pause, 5.0))

    # -- the oracle --------------------------------------------------------------------------

    def _members(self, pkey: int) -> dict[int, str]:
        entries = self.ufm.partitions.get(f"{pkey:#x}", {}).get("guids", [])
        return {int(entry["guid"], 16): entry["membership"] for entry in entries}

    def _places(self) -> set[Place]:
        return {(pkey, guid) for pkey in NETWORKS for guid in self._members(pkey)}

    def _coming(self) -> set[Place]:
        return {place for _, kind, place, _ in self.late if kind == "add"}

    def _look(self) -> None:
        """Look at UFM after each of its changes."""
        self.moments += 1
        if any("guids" not in body for body in self.ufm.partitions.values()):
            return
        places = self._places()
        gone = self.strangers - places
        if self._acting:
            self._judge_removals(gone)
        self.strangers &= places
        for guid in GUIDS:
            held = {pkey for pkey, one in places - self.strangers if one == guid}
            if len(held) > 1:
                self._note(f"{format_guid(guid)} is in {sorted(map(format_pkey, held))}")
        for pkey, members in self.theirs.items():
            entries = self.ufm.partitions.get(pkey, {}).get("guids", [])
            if {entry["guid"]: entry["membership"] for entry in entries} != members:
                self._note(f"the administrator's partition {pkey} was changed")
        self._before = places

    def _judge_removals(self, gone: set[Place]) -> None:
        named = {(member.pkey, member.guid) for member in self.rows.values()}
        for pkey, guid in gone - named:
            self.removed_strangers += 1
            if not any(
                format_pkey(pkey) in text and format_guid(guid) in text for text in self.told
            ):
                self._note(f"{format_guid(guid)} was removed from {format_pkey(pkey)} silently")

    def _note(self, wrong: str) -> None:
        self.wrongs.append(f"seed {self.seed}, after {self.events[-12:]}: {wrong}")

    # -- one history -------------------------------------------------------------------------

    def run(self, steps: int) -> Sequence[str]:
        """Let it happen, then let UFM come to rest; the result is what was wrong."""
        happenings = [
            *[self.bind] * 4, *[self.unbind] * 2, *[self.move] * 3, self.change_theirs,
            *[self.intrude] * 2, self.spoil_ours, *[self.end_job] * 3, self.toggle_jobs,
            self.toggle_pages, self.trouble, *[self.lose_answer] * 2, self.confuse,
            self.break_record, self.end_agent, *[self.make_round] * 12,
        ]  # fmt: skip
        for _ in range(steps):
            happening = self._dice.choice(happenings)
            self.events.append(happening.__name__)
            happening()
            self._look()
        self._settle()
        return self.wrongs

    def _settle(self) -> None:
        self.events.append("settle")
        self.ufm.failures, self.ufm.raw, self._mode, self.ufm.in_jobs = [], [], "", False
        self.ufm.finish_jobs()
        for _ in range(60):
            self.make_round()
            if "suddenly" in " ".join(self._agent.status.faults):
                # The operator's word: UFM has really lost them.
                Path(self.conf.state_path, "ufm-partitions.good").unlink(missing_ok=True)
        wanted = {
            (member.pkey, member.guid, str(member.membership)) for member in self.rows.values()
        }
        at_ufm = {
            (pkey, guid, word) for pkey in NETWORKS for guid, word in self._members(pkey).items()
        }
        if wanted != at_ufm:
            self._note(f"at rest UFM has {sorted(at_ufm)}, and has to have {sorted(wanted)}")
        statuses = {member.port_status for member in self.rows.values()}
        if not statuses <= {"ACTIVE"}:
            self._note(f"at rest ports are {statuses}: {self._agent.status.faults}")
