# SPDX-License-Identifier: Apache-2.0
"""Programs over all members: the guest's own command with tools that lie, or members that print."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import attrs
import pytest

from nova_hpc_client.accept import cluster_views
from nova_hpc_client.accept.cluster_result import ClusterAcceptance
from nova_hpc_client.accept.cluster_run import ClusterMeasuring
from nova_hpc_client.accept.cluster_terms import AcceptedHost, ClusterTerms
from nova_hpc_client.accept.link_rates import LINK_RATES, find_link_limit
from nova_hpc_client.accept.remote_member import RemoteMember, SetCall, measure_sets
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember
from nova_hpc_client.openstack import acceptance
from nova_hpc_common.wire.member_verdict import MemberVerdict
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.first_sample import FirstSample, write_first_sample
from nova_hpc_guest.accept.own_probes import parse_probes
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.sample import Reading, Sample, write_sample
from tests.unit.accept.cluster_world import ClusterWorld
from tests.unit.guest.accept_world import list_processes

MINE = parse_probes(
    "[mine]\nscope = whole\ncommand = mine {members} {hosts}\nfigure = took (\\S+) s\nunit = s\n"
    "better = lower\nseconds = 20\n"
)
#: A member that prints what the file of slow pairs and members makes of its words.
_MEMBER = """#!/bin/sh
exec FOLDER/member "$*"
"""
_PROGRAM = """#!/usr/bin/env python3
import re, sys
words, folder = sys.argv[1], "FOLDER"
def show(name):
    print(open(f"{folder}/{name}").read())
if "--first" in words:
    show("first")
    sys.exit()
if "--serve" in words:
    print("serving", flush=True)
    sys.stdin.read()
    sys.exit()
open(f"{folder}/asked", "a").write(words + "\\n")
peer = re.search("--peer ([0-9.]+)", words)
hosts = re.search("--hosts ([0-9.,]+)", words)
probe = re.search("--only (\\\\w+)", words)[1]
hosts = hosts[1].split(",") if hosts else [f"10.{peer[1].split('.')[1]}.0.NUMBER", peer[1]]
value = 1000.0
for line in open(f"{folder}/../faults"):
    part, *fault = line.split()
    if set(fault) <= set(hosts):
        if float(part) == 0:
            sys.exit("iperf3: unable to connect to server: No route to host")
        value = min(value, 1000 * float(part))
print(open(f"{folder}/round").read().replace("PROBE", probe).replace("4711.0", str(value)))
"""


class WholeWorld(ClusterWorld):
    """Members that know which sets of addresses are slow; ``10.1.0.1`` is member 1 on rail1."""

    def __init__(self, folder: Path, size: int, probe: str = "all_reduce") -> None:
        super().__init__(folder, size)
        (folder / "faults").write_text("")
        for number, member in self.members.items():
            facts = GuestFacts(model="Some CPU", online=(0, 1), allowed=(0, 1))
            lacking = {"ib_bw": "no RDMA device", "nccl_all": "no GPU", "nccl_topo": "no GPU"}
            if probe not in ("all_reduce", "mine"):
                facts = facts._replace(devices={"10de:2330": 2}, rdma={"mlx5_0": 400.0})
                lacking = {"ib_bw": "no RDMA device"}
            first = FirstSample(Sample(facts, {"clock": Reading(40.0)}), obstacles=lacking)
            sample = Sample(facts, {"PROBE": Reading(4711.0, wall=1.0)})
            home = member.folder
            (home / "first").write_text(write_first_sample(first, None) + "\n")
            (home / "round").write_text(write_sample(sample) + "\n")
            member.tool("nova-hpc-guest", _MEMBER.replace("FOLDER", str(home)))
            program = home / "member"
            text = _PROGRAM.replace("FOLDER", str(home)).replace("NUMBER", str(number))
            program.write_text(text)
            program.chmod(0o755)

    def slow(self, *faults: str) -> None:
        """Each fault: the part of the speed, and the addresses that have it together."""
        (self.folder / "faults").write_text("\n".join(faults))

    def hosts(self, *_: object) -> list[AcceptedHost]:
        """The members with two networks."""
        rails = {"rail0": "10.0.0", "rail1": "10.1.0"}
        return [
            attrs.evolve(
                host,
                rails={name: f"{start}.{host.number}" for name, start in rails.items()},
            )
            for host in super().hosts()
        ]


def measure(world: ClusterWorld, *only: str, **more: object) -> ClusterAcceptance:
    return world.measure(only, **{"tier": "cluster", **more})


def says_of(measured: ClusterAcceptance) -> dict[str, tuple[str, str]]:
    return {one.probe: (one.verdict, one.says) for one in measured.whole}


@pytest.fixture
def world(tmp_path: Path) -> WholeWorld:
    return WholeWorld(tmp_path, 3)


@pytest.mark.long
def test_members_that_are_alike_are_accepted(world: WholeWorld) -> None:
    measured = measure(world)
    assert (measured.verdict, measured.status, measured.rounds) == ("accepted", 0, 0)
    assert says_of(measured) == {
        "all_reduce": ("accepted", ""),
        "link_bw@rail0": ("accepted", ""),
        "link_bw@rail1": ("accepted", ""),
    }
    rows = [[row.probe for row in member.result.rows] for member in measured.members]
    assert rows == [["all_reduce", "link_bw@rail0", "link_bw@rail1"]] * 3
    # No member is measured by itself.
    asked = (world.members[1].folder / "asked").read_text()
    assert "--sample --only all_reduce" in asked
    assert "cpu_one" not in asked


def test_members_are_asked_for_the_tier() -> None:
    words = RemoteMember(list, "cluster").build_first_words(False)
    assert words[:3] == ["accept", "--tier", "cluster"]


def test_the_member_that_slows_all_is_named(world: WholeWorld) -> None:
    world.slow("0.4 10.0.0.2")
    measured = measure(world, "all_reduce")
    assert (measured.verdict, measured.status) == ("slow", 1)
    assert says_of(measured) == {"all_reduce": ("slow", "train-2")}
    assert [member.name for member in measured.rejected] == ["train-2"]
    (bad,) = measured.rejected
    assert list(bad.reasons) == ["slows the all_reduce of all members"]
    (row,) = bad.result.rows
    assert (row.ratio, row.verdict) == (pytest.approx(0.4), "slow")
    text = cluster_views.format_cluster_text(measured)
    assert "all members: all_reduce 400 GB/s: slow: train-2\n" in text
    assert "note: all_reduce is not compared with the rate of links: one rank of a member" in text
    assert cluster_views.list_member_rows(measured)[-1] == (
        *("all members", "slow", "all_reduce", "", "train-2", ""),
    )
    picture = ElementTree.fromstring(cluster_views.draw_cluster(measured))
    texts = [element.text for element in picture.iter() if element.text]
    assert texts[-3:] == ["all members", "slow", "all_reduce 400 GB/s: slow: train-2"]
    suites = ElementTree.fromstring(cluster_views.format_cluster_junit(measured))
    assert [failure.get("message") for failure in suites[-1].iter("failure")] == ["slow: train-2"]


def test_a_slow_link_blames_no_member(world: WholeWorld) -> None:
    world.slow("0.4 10.0.0.1 10.0.0.3")
    measured = measure(world, "all_reduce", "link_bw")
    link = "the link between train-1 and train-3"
    assert says_of(measured) == {
        "all_reduce": ("slow", link),
        "link_bw@rail0": ("slow", f"{link} on rail0"),
        "link_bw@rail1": ("accepted", ""),
    }
    assert (measured.verdict, measured.rejected) == ("slow", ())
    text = cluster_views.format_cluster_text(measured)
    assert text.endswith(f"(cluster, 0 rounds): slow: {link}; {link} on rail0\n")
    assert [member.make_verdict(1).rejects for member in measured.members] == [False] * 3
    assert [member.result.verdict for member in measured.members] == ["accepted"] * 3


def test_a_network_without_tcp_is_left_out(world: WholeWorld) -> None:
    """InfiniBand rails whose members have no child interfaces: no member is to blame."""
    world.slow(*(f"0 10.1.0.{one} 10.1.0.{other}" for one, other in ((1, 2), (1, 3), (2, 3))))
    measured = measure(world, "link_bw")
    assert says_of(measured) == {"link_bw@rail0": ("accepted", "")}
    assert (measured.verdict, measured.status) == ("accepted", 0)
    (note,) = [note for note in measured.notes if "rail1" in note]
    assert note.startswith("link_bw@rail1 was left out: no two members reach each other there (")
    assert "No route to host" in note


def test_a_member_without_a_network_is_blamed(world: WholeWorld) -> None:
    """The links of the others show that the network carries TCP."""
    world.slow("0 10.1.0.2")
    measured = measure(world, "link_bw")
    assert measured.status == 2
    assert not [note for note in measured.notes if "was left out: no two" in note]
    assert [member.name for member in measured.members if member.result.failed] == ["train-2"]
    assert says_of(measured)["link_bw@rail0"] == ("accepted", "")


def test_no_network_with_tcp_is_not_measurable(world: WholeWorld) -> None:
    pairs = ((1, 2), (1, 3), (2, 3))
    world.slow(*(f"0 10.{rail}.0.{one} 10.{rail}.0.{two}" for rail in (0, 1) for one, two in pairs))
    measured = measure(world, "link_bw")
    assert says_of(measured)["link_bw"][0] == "not measurable"
    assert measured.status == 2


def test_the_slow_rail_of_a_member_is_named(world: WholeWorld) -> None:
    world.slow("0.4 10.1.0.2")
    measured = measure(world, "all_reduce", "link_bw")
    assert says_of(measured)["link_bw@rail1"] == ("slow", "train-2 on rail1")
    assert says_of(measured)["all_reduce"][0] == "accepted"
    (bad,) = measured.rejected
    assert list(bad.reasons) == ["all of its links on rail1 are slow, and no others are"]
    assert bad.slow == ("link_bw@rail1",)


def test_eight_members_are_halved(tmp_path: Path) -> None:
    world = WholeWorld(tmp_path, 8)
    world.slow("0.4 10.0.0.7")
    steps: list[tuple[str, int, int]] = []
    terms = ClusterTerms("cluster", 6, 600.0, ("all_reduce",), busy=True)
    measured = ClusterMeasuring(
        *("train", world.hosts(), terms, lambda *step: steps.append(step))
    ).measure()
    assert [member.name for member in measured.rejected] == ["train-7"]
    texts = list(dict.fromkeys(text for text, _, _ in steps[1:]))
    assert texts == ["all_reduce over sets of 4 members", "all_reduce over sets of 2 members"]
    assert all(done < total for _, done, total in steps[1:])


def test_two_slow_members_have_no_name(tmp_path: Path) -> None:
    world = WholeWorld(tmp_path, 4)
    world.slow("0.4 10.0.0.1", "0.4 10.0.0.3")
    measured = measure(world, "all_reduce")
    assert says_of(measured) == {
        "all_reduce": ("undecided", "not located: several members or links are slow")
    }
    assert (measured.verdict, measured.rejected) == ("undecided", ())


def test_the_budget_ends_the_search(world: WholeWorld) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    measured = measure(world, "all_reduce", budget=8.0, clock=clock)
    reason = "the budget ended; not done: all_reduce over sets of 2 members"
    assert says_of(measured) == {"all_reduce": ("undecided", reason)}
    assert measured.status == 3


def test_two_members_have_one_link(tmp_path: Path) -> None:
    measured = measure(WholeWorld(tmp_path, 2), "all_reduce", "link_bw")
    reason = "two members have one link, and nothing to compare it with"
    assert set(says_of(measured).values()) == {("accepted", reason)}


def test_a_single_member_that_answers_is_not_compared(world: WholeWorld) -> None:
    for number in (1, 2):
        world.say_at_login(number, "exit 255")
    measured = measure(world)
    assert measured.whole == ()
    assert "nothing is compared" in measured.notes[0]


def test_gpus_are_compared_with_the_links_and_the_topology_file(tmp_path: Path) -> None:
    world = WholeWorld(tmp_path, 3, "nccl_all")
    # Two GPUs use the one adapter of 50 GB/s.
    world.slow("0.046 10.0.0.1", "0.046 10.0.0.2", "0.046 10.0.0.3")
    measured = measure(world, "all_reduce", "nccl_all", "nccl_topo")
    assert [one.probe for one in measured.whole] == ["nccl_all", "nccl_all", "nccl_topo"]
    assert [one.verdict for one in measured.whole] == ["accepted"] * 3
    assert measured.whole[1].says == (
        "93% (93%-93%) of the limit of the links, 49.68 GB/s; floor 81%"
    )
    assert measured.whole[2].says == "1.00 (1.00-1.00) of nccl_all"
    world.slow("0.03 10.0.0.1", "0.03 10.0.0.2", "0.03 10.0.0.3")
    measured = measure(world, "nccl_all")
    # All members are equally slow: no name, but the links allow more.
    assert [one.verdict for one in measured.whole] == ["accepted", "slow"]
    assert (measured.verdict, measured.rejected) == ("slow", ())


def test_a_rate_without_a_floor_is_not_judged(tmp_path: Path) -> None:
    world = WholeWorld(tmp_path, 3, "nccl_all")
    for member in world.members.values():
        first = member.folder / "first"
        first.write_text(first.read_text().replace("400.0", "100.0"))
    world.slow("0.003 10.0.0.1", "0.003 10.0.0.2", "0.003 10.0.0.3")
    measured = measure(world, "nccl_all")
    assert says_of(measured) == {"nccl_all": ("accepted", "")}
    assert measured.notes == (
        "nccl_all has 24% (24%-24%) of the limit of the links, 12.42 GB/s; not judged: "
        "no floor of a source",
    )


def test_the_limit_of_links_is_computed() -> None:
    # The names of rates are data rates, but for those of InfiniBand's first generations.
    names = {name: float(rate.line * rate.encoding) for name, rate in LINK_RATES.items()}
    assert {name for name, data in names.items() if name != data} == {20.0, 56.0}
    # NVIDIA's maintainers expect 12, 24 and 48 GB/s (nccl-tests' issues 119 and 267).
    for name, usual in ((100.0, 12.0), (200.0, 24.0), (400.0, 48.0)):
        assert 0.96 < usual / LINK_RATES[name].most < 1
    facts = GuestFacts(devices={"10de:2330": 2}, rdma={"a": 400.0, "b": 400.0, "c": 100.0})
    limit = find_link_limit(facts)
    assert limit == (pytest.approx(100 * 4096 / 4122), pytest.approx(80 / 100 * 4122 / 4096))
    mixed = find_link_limit(facts._replace(rdma={"a": 400.0, "c": 100.0}))
    assert mixed == (pytest.approx(62.5 * 4096 / 4122), None)
    assert find_link_limit(facts._replace(rdma={"a": 57.0})) is None
    assert find_link_limit(facts._replace(rdma={})) is None
    assert find_link_limit(facts._replace(devices={})) is None


# -- verdicts in metadata --------------------------------------------------------------


class _Cloud:
    """Keeps the verdicts that are written."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}

    def set_verdict(self, server: str, verdict: MemberVerdict) -> None:
        self.written[server] = verdict.dumps().partition(":1")[0]


def test_only_a_named_member_and_former_verdicts_of_the_tier_are_recorded(
    world: WholeWorld,
) -> None:
    former = {
        "id-1": MemberVerdict("slow", "quick", 1),
        "id-3": MemberVerdict("slow", "cluster", 1),
    }
    members = tuple(
        ClusterMember(
            f"id-{number}", f"train-{number}", "ACTIVE", verdict=former.get(f"id-{number}")
        )
        for number in (1, 2, 3)
    )
    cluster = Cluster("train", members=members)
    world.slow("0.4 10.0.0.2")
    cloud: Any = _Cloud()
    acceptance.record_verdicts(cloud, measure(world, "all_reduce"), cluster)
    # Nothing is known of member 1 by itself, so its verdict stays; that of member 3 is taken back.
    assert cloud.written == {"id-2": "v1:slow:cluster", "id-3": "v1:accepted:cluster"}
    world.slow("0.4 10.0.0.1 10.0.0.2")
    cloud.written.clear()
    acceptance.record_verdicts(cloud, measure(world, "all_reduce"), cluster)
    assert cloud.written == {"id-3": "v1:accepted:cluster"}


# -- bad input -------------------------------------------------------------------------


def build_real(folder: Path, text: str, size: int = 3) -> ClusterWorld:
    world = ClusterWorld(folder, size, real=True)
    world.own = (MINE,)
    for member in world.members.values():
        member.tool("mine", f"#!/bin/sh\n{text}")
    return world


@pytest.mark.long
def test_a_program_of_the_user_runs_over_all_members(tmp_path: Path) -> None:
    slow = 'case "$2" in *0.2*) echo took 9 s ;; *) echo took 3 s ;; esac\n'
    world = build_real(tmp_path, slow)
    measured = world.measure(("mine",))
    assert says_of(measured) == {"mine": ("slow", "train-2")}
    assert measured.rounds == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "echo 'Permission denied (publickey).'; echo ----; echo 'ORTE was unable'; exit 1\n",
            "train-1 to train-3: mine: it ended with status 1: 'Permission denied (publickey).'",
        ),
        ("echo took 3 s; echo took 4 s\n", "figure matches 2 times"),
        ("echo took nan s\n", "'nan' is no number of the C locale"),
        ("echo garbage\n", "figure matches no line; the last one is 'garbage'"),
    ],
)
def test_a_program_that_fails_is_not_measurable(tmp_path: Path, text: str, reason: str) -> None:
    measured = build_real(tmp_path, text).measure(("mine",), tier="cluster")
    (one,) = measured.whole
    assert (one.verdict, measured.status) == ("not measurable", 2)
    assert reason in one.says


def test_a_member_that_dies_during_the_run_is_named(tmp_path: Path) -> None:
    mark = "319777"
    world = build_real(tmp_path, f"touch {tmp_path}/began; exec /bin/sleep {mark}\n")
    world.own = (parse_probes(MINE.text.replace("= 20", "= 2")),)
    world.say_at_login(3, f'[ -e {tmp_path}/began ] && exit 255; exec sh -c "$1"')
    measured = world.measure(("mine",), tier="cluster")
    assert "it was ended at its limit of 2 s" in measured.whole[0].says
    assert measured.members[2].result.failed["turn"].startswith("after a program over all")
    assert "turn" not in measured.members[0].result.failed
    assert not list_processes(mark)


def test_the_addresses_of_128_members_fit_into_a_command_line(world: WholeWorld) -> None:
    addresses = tuple(f"2001:db8:1111:2222:3333:4444:5555:{number:04x}" for number in range(128))
    (answer,) = measure_sets([SetCall(world.hosts()[0].remote, addresses)], PROBE_OF["all_reduce"])
    assert isinstance(answer, Sample)
    asked = (world.members[1].folder / "asked").read_text()
    assert ",".join(addresses) in asked
