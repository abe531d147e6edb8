# SPDX-License-Identifier: Apache-2.0
"""UFM as subnet manager, against a server that speaks the recorded contract."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP, register_agent_options
from nova_hpc.fabric.partitions.agent_round import PartitionAgent
from nova_hpc.fabric.partitions.backends import ufm as ufm_backend
from nova_hpc.fabric.partitions.backends import ufm_client
from nova_hpc.fabric.partitions.backends.base import (
    AuditState,
    MemberState,
    StaleReadingError,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.ufm import UfmSubnetManager
from nova_hpc.fabric.partitions.backends.ufm_client import UfmAccess
from nova_hpc.fabric.partitions.backends.ufm_partitions import read_partitions
from nova_hpc.fabric.partitions.backends.ufm_record import read_ufm_record
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import (
    DesiredPartitions,
    PartitionMember,
    PartitionPolicy,
)
from nova_hpc.fabric.partitions.report_choice import MemberReports
from nova_hpc.fabric.partitions.watched_files import WatchedFiles
from tests.unit.fabric_partitions.ufm_server import (
    CONTRACT,
    PASSWORD,
    USER,
    RecordedUfm,
    serve_ufm,
)

A, B, C = 0x0002C90000200001, 0x0002C90000200002, 0x0002C90000200003
TEXT = {guid: f"{guid:016x}" for guid in (A, B, C)}


@pytest.fixture
def ufm() -> RecordedUfm:
    ufm = RecordedUfm()
    ufm.ports = [TEXT[A], TEXT[B]]
    ufm.virtual_ports = [TEXT[C]]
    return ufm


@pytest.fixture
def conf(ufm: RecordedUfm, tmp_path: Path) -> Iterator[cfg.ConfigOpts]:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    register_agent_options(conf)
    with serve_ufm(ufm) as url:
        for option, value in {
            "ufm_url": url,
            "ufm_user": USER,
            "ufm_password": PASSWORD,
            "state_path": str(tmp_path / "state"),
            "opensm_config": str(tmp_path / "conf" / "opensm" / "opensm.conf"),
        }.items():
            conf.set_override(option, value, group=AGENT_GROUP.name)
        yield conf


@pytest.fixture
def manager(conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch) -> Iterator[UfmSubnetManager]:
    # Only the seconds between repetitions, and until a silent server is given up.
    monkeypatch.setattr(
        ufm_backend,
        "UfmAccess",
        lambda **options: UfmAccess(**options, retry_wait=0.001, timeouts=(1.0, 0.5)),
    )
    manager = UfmSubnetManager(conf[AGENT_GROUP.name])
    yield manager
    manager.close()


def want(
    ticket: int, *members: tuple[int, int, Membership], **policies: object
) -> DesiredPartitions:
    rows = tuple(
        PartitionMember(row=row, port_id=f"port-{row}", guid=guid, pkey=pkey, membership=membership)
        for row, (pkey, guid, membership) in enumerate(members, start=1)
    )
    return DesiredPartitions(ticket, rows, policies.get("policies", {}))


FULL, LIMITED = Membership.FULL, Membership.LIMITED
TWO = ((0x101, A, FULL), (0x102, B, FULL), (0x102, C, LIMITED))


def states(manager: UfmSubnetManager, desired: DesiredPartitions) -> list[MemberState]:
    readings = manager.read_back(desired).members
    return [readings[row].state for row in sorted(readings)]


def test_makes_partitions_and_reads_them_back(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    assert manager.enforce(want(1, *TWO))

    assert ufm.members("0x101") == {TEXT[A]: "full"}
    assert ufm.members("0x102") == {TEXT[B]: "full", TEXT[C]: "limited"}
    assert ufm.partitions["0x101"]["partition"] == "nova-hpc-0x0101"
    read = manager.read_back(want(1, *TWO))
    assert {one.state for one in read.members.values()} == {MemberState.AS_DESIRED}
    assert read.faults == ()
    assert not manager.enforce(want(2, *TWO))


def test_asks_for_nothing_that_the_guide_has_not(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    for ticket, members in enumerate((TWO, TWO[1:], ((0x102, B, LIMITED),), ()), start=1):
        manager.enforce(want(ticket, *members))
        assert manager.read_back(want(ticket, *members)).faults == ()

    assert set(ufm.partitions) == {"0x7fff"}
    methods = {f"{method} {path.split('/')[1]}" for method, path in ufm.seen}
    assert methods == {"GET resources", "GET app", "POST resources", "DELETE resources"}


@pytest.mark.parametrize("release", ["6.15.1", "6.19.6-1", "6.22.1", "6.24.1-3", "later"])
def test_names_partitions_where_the_release_takes_names(
    manager: UfmSubnetManager, ufm: RecordedUfm, release: str
) -> None:
    ufm.version = release

    manager.enforce(want(1, TWO[0]))

    named = ufm.partitions["0x101"]["partition"] == "nova-hpc-0x0101"
    assert named == release.startswith(("6.22", "6.24"))
    assert states(manager, want(1, TWO[0])) == [MemberState.AS_DESIRED]


def test_takes_a_guid_out_before_it_puts_it_elsewhere(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    manager.enforce(want(1, (0x101, A, FULL), (0x101, B, FULL)))
    ufm.seen.clear()

    manager.enforce(want(2, (0x102, A, FULL), (0x101, B, FULL)))

    changes = [(method, path) for method, path in ufm.seen if method != "GET"]
    assert changes == [
        ("DELETE", f"/resources/pkeys/0x101/guids/{TEXT[A]}"),
        ("POST", "/resources/pkeys/add"),
        ("POST", "/resources/pkeys/"),
    ]
    assert ufm.members("0x101") == {TEXT[B]: "full"}
    assert ufm.members("0x102") == {TEXT[A]: "full"}


def test_changes_a_membership_by_way_of_none(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, (0x101, A, FULL), (0x101, B, FULL)))

    manager.enforce(want(2, (0x101, A, LIMITED), (0x101, B, FULL)))

    assert ufm.members("0x101") == {TEXT[A]: "limited", TEXT[B]: "full"}


def test_heals_what_somebody_else_changes(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, *TWO))
    ufm.partitions["0x101"]["guids"].append(
        {"guid": TEXT[B], "membership": "full", "index0": False}
    )
    ufm.partitions.pop("0x102")

    read = manager.read_back(want(2, *TWO))
    assert {one.state for one in read.members.values()} == {
        MemberState.AS_DESIRED,
        MemberState.DIFFERENT,
    }
    assert "has what nobody wants" in read.faults[0]
    assert manager.enforce(want(3, *TWO))
    assert set(states(manager, want(3, *TWO))) == {MemberState.AS_DESIRED}


def test_leaves_an_administrators_partitions_alone(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    ufm.put("0x300", "storage", **{f"g{TEXT[A]}": "full"})
    before = dict(ufm.partitions["0x300"])

    assert manager.foreign_pkeys() == {0x300}
    manager.enforce(want(1, *TWO))
    read = manager.read_back(want(1, *TWO))

    assert ufm.partitions["0x300"] == before
    # The port can talk to others: that is not its network alone.
    assert read.members[1].state is MemberState.DIFFERENT
    assert "0x0300 full" in read.members[1].reason
    assert manager.foreign_pkeys() == {0x300}


def test_does_not_take_over_a_partition_with_a_wanted_key(
    manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
) -> None:
    ufm.put("0x101", "somebody", **{f"g{TEXT[C]}": "full"})

    manager.enforce(want(1, *TWO))

    read = manager.read_back(want(1, *TWO))
    assert ufm.members("0x101") == {TEXT[C]: "full"}
    assert read.members[1].state is MemberState.DIFFERENT
    assert read.members[2].state is MemberState.AS_DESIRED
    assert "(somebody) at UFM is not ours" in read.faults[0]
    # The cure that the fault names.
    record = Path(conf[AGENT_GROUP.name].state_path, "ufm-partitions")
    with record.open("a") as file:
        file.write("0x0101\n")
    manager.enforce(want(2, *TWO))
    assert set(states(manager, want(2, *TWO))) == {MemberState.AS_DESIRED}


def test_knows_named_partitions_without_its_record(
    manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
) -> None:
    manager.enforce(want(1, *TWO))
    Path(conf[AGENT_GROUP.name].state_path, "ufm-partitions").unlink()

    assert manager.foreign_pkeys() == frozenset()
    manager.enforce(want(2, TWO[0]))

    assert set(ufm.partitions) == {"0x7fff", "0x101"}


def test_refuses_an_earlier_reading(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(7, *TWO))
    ufm.seen.clear()

    with pytest.raises(StaleReadingError, match=r"reading 6 .* older than .* 7"):
        manager.enforce(want(6))

    assert ufm.seen == []


def test_says_what_ufm_has_not_on_the_fabric(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    ufm.ports.remove(TEXT[B])
    ufm.virtual_ports = None
    manager.enforce(want(1, *TWO))

    assert states(manager, want(1, *TWO)) == [
        MemberState.AS_DESIRED,
        MemberState.NOT_ON_FABRIC,
        MemberState.NOT_ON_FABRIC,
    ]


def test_one_guid_that_ufm_does_not_know_keeps_no_other_out(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    ufm.unknown_guids = {TEXT[B]}
    members = ((0x101, A, FULL), (0x101, B, FULL), (0x101, C, FULL))

    manager.enforce(want(1, *members))

    assert ufm.members("0x101") == {TEXT[A]: "full", TEXT[C]: "full"}
    read = manager.read_back(want(1, *members))
    assert read.members[2].state is MemberState.DIFFERENT
    assert f"no port {TEXT[B]}" in read.members[2].reason
    assert read.members[1].state is read.members[3].state is MemberState.AS_DESIRED
    ufm.unknown_guids = set()
    manager.enforce(want(2, *members))
    assert set(states(manager, want(2, *members))) == {MemberState.AS_DESIRED}


def test_follows_jobs_to_their_end(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, TWO[0]))
    ufm.in_jobs = True
    both = ((0x101, A, FULL), (0x101, B, FULL))

    assert manager.enforce(want(2, *both))
    read = manager.read_back(want(2, *both))
    assert read.members[2].state is MemberState.DIFFERENT
    assert "job 1" in read.members[2].reason
    ufm.finish_jobs()

    assert set(states(manager, want(2, *both))) == {MemberState.AS_DESIRED}


def test_says_how_a_job_failed(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, TWO[0]))
    ufm.in_jobs = True
    both = ((0x101, A, FULL), (0x101, B, FULL))
    manager.enforce(want(2, *both))
    ufm.jobs["1"]["Summary"] = "no such port\x1b[2J"

    ufm.finish_jobs("Completed With Errors")

    read = manager.read_back(want(2, *both))
    assert read.members[2].reason == (
        "UFM's job 1 ended as Completed With Errors: no such port\\u001b[2J"
    )
    ufm.in_jobs = False
    manager.enforce(want(3, *both))
    assert set(states(manager, want(3, *both))) == {MemberState.AS_DESIRED}


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_repeats_what_passes(manager: UfmSubnetManager, ufm: RecordedUfm, status: int) -> None:
    ufm.failures = [status, status]

    manager.enforce(want(1, *TWO))

    assert set(states(manager, want(1, *TWO))) == {MemberState.AS_DESIRED}


def test_a_server_in_trouble_is_an_error_and_no_change(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    manager.enforce(want(1, *TWO))
    ufm.failures = [500] * 50

    with pytest.raises(SubnetManagerError, match="with 500"):
        manager.enforce(want(2))

    ufm.failures = []
    assert set(ufm.partitions) == {"0x7fff", "0x101", "0x102"}


def test_an_answer_in_the_middle_that_is_lost_is_asked_for_again(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    changes = itertools.count(1)
    original = ufm.answer

    def answer(*request: object) -> object:
        if request[0] == "POST" and next(changes) == 3:
            ufm.failures = [503] * 4
        return original(*request)

    ufm.answer = answer  # type: ignore[method-assign,assignment]
    with pytest.raises(SubnetManagerError, match="503"):
        manager.enforce(want(1, *TWO))
    assert MemberState.DIFFERENT in states(manager, want(1, *TWO))

    manager.enforce(want(2, *TWO))

    assert set(states(manager, want(2, *TWO))) == {MemberState.AS_DESIRED}


def test_gives_a_silent_server_up(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    ufm.delay = 1.0

    with pytest.raises(SubnetManagerError, match=r"does not answer GET /resources/pkeys"):
        manager.read_back(want(1))


def test_names_the_options_of_a_wrong_password(conf: cfg.ConfigOpts) -> None:
    conf.set_override("ufm_password", "wrong", group=AGENT_GROUP.name)
    manager = UfmSubnetManager(conf[AGENT_GROUP.name])

    with pytest.raises(
        SubnetManagerError, match=r"refuses the user agent .401.*ufm_password"
    ) as at:
        manager.enforce(want(1))

    assert "wrong" not in str(at.value)


@pytest.mark.parametrize("option", ["ufm_url", "ufm_user", "ufm_password"])
def test_names_an_option_that_is_not_set(conf: cfg.ConfigOpts, option: str) -> None:
    conf.set_override(option, None, group=AGENT_GROUP.name)

    with pytest.raises(SubnetManagerError, match=rf"\[hpc_fabric_agent\]{option} is not set"):
        UfmSubnetManager(conf[AGENT_GROUP.name])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://ufm.example.org", "clear text"),
        ("ufm.example.org", "must be like https"),
        ("ftp://ufm", "must be like https"),
    ],
)
def test_refuses_an_address(url: str, why: str) -> None:
    with pytest.raises(SubnetManagerError, match=why):
        UfmAccess(url, USER, PASSWORD)


def test_does_not_print_the_password() -> None:
    assert PASSWORD not in repr(UfmAccess("https://ufm", USER, PASSWORD))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([], "no object"),
        ({}, "lacks the default one"),
        ({"0x7fff": {}}, "has no name"),
        ({"default": {"partition": "x", "guids": []}}, "no hexadecimal number"),
        ({"0x7fff": {"partition": "m"}, "0x1": {"partition": "a"}}, "does not say who is in it"),
        ({"0x1": {"partition": "a", "guids": [{"guid": "1"}]}}, "a member of partition 0x0001"),
        (
            {"0x1": {"partition": "a", "guids": [{"guid": "1", "membership": "both"}]}},
            "a member of partition 0x0001",
        ),
        ({"0x7fff": {"partition": "m", "membership": "some"}}, "the membership of partition"),
        (
            {"0x1": {"partition": "a", "guids": []}, "0x8001": {"partition": "b", "guids": []}},
            "two partitions have one P_Key",
        ),
    ],
)
def test_takes_no_answer_that_says_too_little(answer: object, why: str) -> None:
    with pytest.raises(SubnetManagerError, match=why):
        read_partitions(answer)


def test_an_empty_list_changes_nothing(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, *TWO))
    there = dict(ufm.partitions)
    ufm.partitions.clear()
    ufm.seen.clear()

    with pytest.raises(SubnetManagerError, match="lacks the default one"):
        manager.enforce(want(2, *TWO))

    assert [method for method, _ in ufm.seen] == ["GET"]
    assert there


def test_reads_answers_of_a_later_release(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    ufm.later = True

    manager.enforce(want(1, *TWO))

    assert set(states(manager, want(1, *TWO))) == {MemberState.AS_DESIRED}


def test_reads_the_recorded_list() -> None:
    example = next(
        one["answer"] for one in CONTRACT["exchanges"] if one["name"] == "list partitions"
    )

    partitions = read_partitions(example)

    assert partitions[0x12].members == {A: FULL, B: LIMITED}
    assert partitions[0x7FFF].default_membership is LIMITED


def test_an_open_fabric_is_a_fault_and_nobody_is_isolated(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    manager.enforce(want(1, *TWO))
    ufm.partitions["0x7fff"]["membership"] = "full"

    read = manager.read_back(want(1, *TWO))

    assert {one.state for one in read.members.values()} == {MemberState.DIFFERENT}
    assert "the fabric is open" in read.faults[0]


def test_a_full_member_of_the_default_partition_is_not_isolated(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    manager.enforce(want(1, *TWO))
    ufm.partitions["0x7fff"]["guids"] = [{"guid": TEXT[A], "membership": "full", "index0": True}]

    assert states(manager, want(1, *TWO)) == [
        MemberState.DIFFERENT,
        MemberState.AS_DESIRED,
        MemberState.AS_DESIRED,
    ]


def test_judges_rows_that_have_to_go(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    manager.enforce(want(1, *TWO))
    gone = PartitionMember(row=9, port_id="port-9", guid=B, pkey=0x102, wanted=False)
    desired = DesiredPartitions(2, (gone,))
    assert manager.read_back(desired).members[9].state is MemberState.DIFFERENT

    manager.enforce(desired)

    assert manager.read_back(desired).members[9].state is MemberState.AS_DESIRED


def test_restores_what_was_read_back_as_right(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    with pytest.raises(SubnetManagerError, match="nothing was read back as right yet"):
        manager.restore()
    manager.enforce(want(1, *TWO))
    manager.read_back(want(1, *TWO))
    # One has to go since, one has come.
    manager.enforce(want(2, TWO[0], TWO[1], (0x103, C, FULL)))

    manager.restore()

    assert ufm.members("0x101") == {TEXT[A]: "full"}
    assert ufm.members("0x102") == {TEXT[B]: "full"}
    assert "0x103" not in ufm.partitions


def test_puts_nothing_back_over_a_later_reading(
    manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
) -> None:
    manager.enforce(want(1, *TWO))
    manager.read_back(want(1, *TWO))
    other = UfmSubnetManager(conf[AGENT_GROUP.name])
    other.enforce(want(2, TWO[0]))
    other.close()

    with pytest.raises(StaleReadingError, match="the reading 2 since"):
        manager.restore()

    assert set(ufm.partitions) == {"0x7fff", "0x101"}


def test_the_agents_rounds_work_with_it(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    ufm.manager = dict(TestAudit.SECURE)
    said: list[MemberReports] = []
    alarms: list[str] = []

    class Server:
        ticket = 0
        members: tuple[tuple[int, int, Membership], ...] = TWO

        def read_desired(self) -> DesiredPartitions:
            self.ticket += 1
            desired = want(self.ticket, *self.members)
            down = [attrs.evolve(member, port_status="DOWN") for member in desired.members]
            return DesiredPartitions(self.ticket, tuple(down))

        def report_members(self, ticket: int, reports: MemberReports) -> None:
            said.append(reports)

    server = Server()
    agent = PartitionAgent(
        manager=manager,
        server=server,
        tell_alarms=lambda new, gone: alarms.extend(new),
        wake=threading.Event(),
        files=WatchedFiles(manager.watched_files),
        now=time.monotonic,
        pause=time.sleep,
        poll_interval=5.0,
    )

    assert agent.check_start() == ()
    agent.make_round()
    assert [one.present for one in said] == [(1, 2, 3)]
    assert alarms == []
    # Somebody at UFM's window; the next round heals it, and says it.
    ufm.partitions["0x101"]["guids"].clear()
    agent.make_round()
    assert ufm.members("0x101") == {TEXT[A]: "full"}
    assert agent.changes == 2
    assert agent.status.foreign_pkeys == ()


def test_sets_the_quality_that_is_configured(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    policies = {0x101: PartitionPolicy(service_level=3, rate=16)}

    assert manager.enforce(want(1, *TWO, policies=policies))

    assert ufm.qualities["0x101"] == {"mtu_limit": 2, "service_level": 3, "rate_limit": 100}
    assert ufm.qualities["0x102"]["service_level"] == 0
    assert not manager.enforce(want(2, *TWO, policies=policies))


def test_refuses_a_rate_that_ufm_has_not(manager: UfmSubnetManager) -> None:
    policies = {0x101: PartitionPolicy(rate=99)}

    with pytest.raises(SubnetManagerError, match=r"rates has 99; UFM knows 2 to 18"):
        manager.enforce(want(1, *TWO, policies=policies))


def test_many_guids_are_asked_for_in_pieces(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    many = [(0x101, A + number, FULL) for number in range(250)]
    manager.enforce(want(1, *many))
    assert len(ufm.members("0x101")) == 250

    manager.enforce(want(2, many[0]))

    assert len(ufm.members("0x101")) == 1
    assert max(len(path) for _, path in ufm.seen) < 2000


@pytest.mark.parametrize(
    "text",
    ["", "# ticket 1\n", "# nova-hpc-ufm-partitions 2\n# ticket 1\n0x0101\n", "\xff"],
)
def test_a_record_that_cannot_be_read_stops_everything(
    manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts, text: str
) -> None:
    record = Path(conf[AGENT_GROUP.name].state_path, "ufm-partitions")
    record.parent.mkdir(parents=True)
    record.write_bytes(text.encode("latin-1"))

    with pytest.raises(SubnetManagerError, match="nobody knows which partitions at UFM are ours"):
        manager.enforce(want(1, *TWO))

    assert set(ufm.partitions) == {"0x7fff"}


def test_writes_its_record_before_it_asks(
    manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
) -> None:
    ufm.version = "6.19.6-1"
    original = ufm.answer

    def die_at_the_first_change(*request: object) -> object:
        if request[0] == "POST":
            ufm.failures = [503] * 9
        return original(*request)

    ufm.answer = die_at_the_first_change  # type: ignore[method-assign,assignment]
    with pytest.raises(SubnetManagerError):
        manager.enforce(want(1, TWO[0]))

    record = read_ufm_record(Path(conf[AGENT_GROUP.name].state_path, "ufm-partitions"))
    assert record is not None
    assert record.ticket == 1
    assert record.partitions == {0x101: {A: FULL}}
    # What was made before the trouble is known as ours, without a name.
    ufm.failures = []
    assert manager.foreign_pkeys() == frozenset()


def test_two_agents_of_one_host_do_not_mix(conf: cfg.ConfigOpts, ufm: RecordedUfm) -> None:
    """The lock is one of processes, as agents are."""

    def run(tickets: range) -> None:
        manager = UfmSubnetManager(conf[AGENT_GROUP.name])
        for ticket in tickets:
            # One that the other has overtaken.
            with contextlib.suppress(StaleReadingError):
                manager.enforce(want(ticket, (0x101, A if ticket % 2 else B, FULL)))

    fork = multiprocessing.get_context("fork")
    agents = [fork.Process(target=run, args=(range(first, 21, 2),)) for first in (1, 2)]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()

    assert [agent.exitcode for agent in agents] == [0, 0]
    assert ufm.members("0x101") == {TEXT[B]: "full"}


class TestAudit:
    """What UFM tells of its settings."""

    SECURE = {
        "sa_key": "0x3f1a9b77c20d4e58",
        "sm_key": "0x9d0be1f3a7c24861",
        "m_key": "0xffffffffffffffff",
        "m_key_protection_level": 2,
        "m_key_per_port": True,
        "no_partition_enforcement": False,
        "vs_key_enable": 2,
        "cc_key_enable": 2,
        "n2n_key_enable": 2,
        "allowed_sm_guids": "0x1070fd03001763d4,0x966daefffe2ac8d2",
        "sa_enhanced_trust_model": True,
        "virt_enabled": 2,
    }

    def test_by_the_api(self, manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
        ufm.manager = dict(self.SECURE)

        rows = {row.name: row for row in manager.audit()}

        for name in ("default_partition", "sa_key", "sm_key", "m_key", "vs_key", "virt_enabled"):
            assert rows[name].state is AuditState.MET, rows[name]
        assert rows["topoconfig"].state is AuditState.UNKNOWN
        assert all(row.state is AuditState.MET for row in rows.values() if row.needed)
        shown = repr(rows)
        assert not any(str(self.SECURE[key]) in shown for key in ("sa_key", "sm_key"))

    def test_what_is_not_told_is_unknown_and_not_unset(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        ufm.manager = {}
        del ufm.partitions["0x7fff"]["membership"]

        rows = {row.name: row for row in manager.audit()}

        assert {row.state for row in rows.values()} == {AuditState.UNKNOWN}
        ufm.manager = {"sm_key": "0x9d0be1f3a7c24861"}
        again = {row.name: row for row in manager.audit()}
        assert again["sm_key"].state is AuditState.MET
        assert again["virt_enabled"].state is AuditState.UNKNOWN
        assert "6.19" in rows["default_partition"].found

    def test_open(self, manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
        ufm.manager = {**self.SECURE, "sa_key": "0x1", "no_partition_enforcement": True}
        ufm.partitions["0x7fff"]["membership"] = "full"

        rows = {row.name: row for row in manager.audit()}

        for name in ("default_partition", "sa_key", "part_enforce"):
            assert rows[name].state is AuditState.NOT_MET
            assert rows[name].needed
            assert rows[name].cure

    def test_by_files_where_the_agent_is_on_ufms_host(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
    ) -> None:
        del ufm.partitions["0x7fff"]["membership"]
        options = Path(conf[AGENT_GROUP.name].opensm_config)
        options.parent.mkdir(parents=True)
        words = {True: "TRUE", False: "FALSE"}
        lines = [f"{key} {words.get(value, value)}" for key, value in self.SECURE.items()]
        options.write_text("\n".join(lines))
        gv_cfg = options.parent.parent / "gv.cfg"
        gv_cfg.write_text("[Server]\nx = 1\n[MngNetwork]\ndefault_membership = limited\n")

        rows = {row.name: row for row in manager.audit()}

        assert rows["default_partition"].state is AuditState.MET
        assert rows["topoconfig"].state is AuditState.NOT_MET
        assert not any(path == "/app/smconf" for _, path in ufm.seen)
        gv_cfg.write_text("[MngNetwork]\n")
        rows = {row.name: row for row in manager.audit()}
        assert rows["default_partition"].state is AuditState.NOT_MET

    def test_what_ufm_sets_by_its_own_file(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
    ) -> None:
        options = Path(conf[AGENT_GROUP.name].opensm_config)
        options.parent.mkdir(parents=True)
        options.write_text("sa_key 0x0000000000000001\nm_key 0x0000000000000000\n")
        rows = {row.name: row for row in manager.audit()}
        names = ("sa_key", "m_key", "m_key_per_port", "topoconfig")
        assert {rows[name].state for name in names} == {AuditState.NOT_MET}

        (options.parent.parent / "gv.cfg").write_text(
            "[SubnetManager]\nrandomize_sa_key = true\nm_key_per_port = True\n"
            "global_m_key_seed = 0xFFFFFFFFFFFFFFFF\ntopoconfig_enabled = true\n"
        )

        rows = {row.name: row for row in manager.audit()}
        assert {rows[name].state for name in names} == {AuditState.MET}


def test_verifies_certificates(tmp_path: Path, ufm: RecordedUfm) -> None:
    """A server with a certificate of its own is not trusted until it is named."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
         str(key), "-out", str(certificate), "-subj", "/CN=ufm", "-addext",
         "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with serve_ufm(ufm, certificate, key) as url:
        stranger = ufm_client.UfmClient(UfmAccess(url, USER, PASSWORD, retries=0))
        with pytest.raises(SubnetManagerError, match=r"is not trusted.*ufm_ca_file"):
            stranger.get("/app/ufm_version")
        named = ufm_client.UfmClient(UfmAccess(url, USER, PASSWORD, ca_file=str(certificate)))
        assert named.get("/app/ufm_version") == {"ufm_release_version": "6.22.1-2"}
