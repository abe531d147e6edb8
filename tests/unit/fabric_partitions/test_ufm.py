# SPDX-License-Identifier: Apache-2.0
"""UFM as subnet manager, against a server that speaks the recorded contract."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP
from nova_hpc.fabric.partitions.agent_round import PartitionAgent
from nova_hpc.fabric.partitions.backends.base import (
    MemberState,
    StaleReadingError,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import (
    DesiredPartitions,
    PartitionMember,
    PartitionPolicy,
)
from nova_hpc.fabric.partitions.report_choice import MemberReports
from nova_hpc.fabric.partitions.watched_files import WatchedFiles
from nova_hpc_ufm.record import read_ufm_record
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import (
    RecordedUfm,
)
from tests.unit.fabric_partitions.ufm_world import (
    FULL,
    LIMITED,
    SECURE,
    TEXT,
    TWO,
    A,
    B,
    C,
    states,
    want,
)


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
    # The member of before is told first.
    assert "0x0002c90000200003 full" in manager.read_back(want(2, *TWO)).faults[0]
    manager.enforce(want(3, *TWO))
    assert set(states(manager, want(3, *TWO))) == {MemberState.AS_DESIRED}


def test_knows_named_partitions_without_its_record(
    manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
) -> None:
    manager.enforce(want(1, *TWO))
    Path(conf[AGENT_GROUP.name].state_path, "ufm-partitions").unlink()

    assert manager.foreign_pkeys() == frozenset()
    manager.enforce(want(2, TWO[0]))
    # Without the record the members of the other one are unknown, so they are told first.
    assert "0x0102 at UFM has members" in manager.read_back(want(2, TWO[0])).faults[0]
    manager.enforce(want(3, TWO[0]))

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


def test_the_agents_rounds_work_with_it(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    ufm.manager = dict(SECURE)
    said: list[MemberReports] = []
    alarms: list[str] = []

    class Server:
        ticket = 0
        members: tuple[tuple[int, int, Membership], ...] = TWO

        def read_desired(self, meanwhile: Callable[[], None]) -> DesiredPartitions:
            self.ticket += 1
            desired = want(self.ticket, *self.members)
            down = [attrs.evolve(member, port_status="DOWN") for member in desired.members]
            return DesiredPartitions(self.ticket, tuple(down))

        def report_members(
            self, ticket: int, reports: MemberReports, meanwhile: Callable[[], None]
        ) -> None:
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


def test_a_policy_that_ufm_cannot_have_is_named(
    manager: UfmSubnetManager, ufm: RecordedUfm
) -> None:
    """The other networks, and the rest of this policy, are as configured."""
    policies = {
        0x101: PartitionPolicy(service_level=3, rate=99, mtu=1),
        0x102: PartitionPolicy(mtu=5),
    }

    manager.enforce(want(1, *TWO, policies=policies))

    assert ufm.qualities["0x101"] == {"mtu_limit": 2, "service_level": 3, "rate_limit": 2.5}
    assert ufm.qualities["0x102"]["mtu_limit"] == 4
    read = manager.read_back(want(1, *TWO, policies=policies))
    assert {one.state for one in read.members.values()} == {MemberState.AS_DESIRED}
    assert read.faults == (
        "partition 0x0101: [hpc_partitions]rates has 99; UFM takes 2 to 18",
        "partition 0x0101: [hpc_partitions]mtus has 256 bytes; UFM takes 2048 and 4096",
    )


def test_qualities_are_not_read_in_each_round(manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
    policies = {0x101: PartitionPolicy(service_level=3)}
    manager.enforce(want(1, *TWO, policies=policies))
    manager.enforce(want(2, *TWO, policies=policies))
    ufm.seen.clear()

    manager.enforce(want(3, *TWO, policies=policies))

    assert ufm.seen == [("GET", "/resources/pkeys")]


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

    with pytest.raises(SubnetManagerError, match="unknown which partitions at UFM are ours"):
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
