# SPDX-License-Identifier: Apache-2.0
"""A new cluster comes to be with good members alone, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from nova_hpc_client.accept.cluster_result import ClusterAcceptance, MemberAcceptance
from nova_hpc_client.accept.new_cluster import settle_cluster
from nova_hpc_client.cluster.life_cycle import commands
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError, Pace
from nova_hpc_client.cluster.members.model import Cluster, number_members
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from nova_hpc_common.wire.member_verdict import KEY
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.refusal import Refusal
from nova_hpc_guest.accept.result import AcceptanceResult
from tests.unit.accept.rows import acceptance_row
from tests.unit.cluster.model_cloud import ModelCloud

NET = "11111111-2222-4333-8444-555555555555"
WISH = ClusterWish("train", frozenset({1, 2, 3}), "42", image="img", nics=(Nic(NET, "direct"),))
PACE = Pace(sleep=lambda seconds: None, clock=lambda: 0.0)


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def result_of(word: str) -> AcceptanceResult:
    rows = {
        "accepted": (acceptance_row("cpu_one", 1.0),),
        "slow": (acceptance_row("cpu_one", 0.5),),
        "undecided": (acceptance_row("cpu_one", 0.95),),
    }
    refused = Refusal("busy", "2.0 of 2 CPUs") if word == "refused" else None
    failed = {"turn": "ssh: no route"} if word == "not measurable" else {}
    made = AcceptanceResult(
        "quick", None, GuestFacts(), rows=rows.get(word, ()), refused=refused, failed=failed
    )
    assert made.verdict == word
    return made


class Measured:
    """What each measuring of a cluster finds: words of the members, one string a time."""

    def __init__(self, *times: Sequence[str]) -> None:
        self.times = list(times)
        #: Writes a server's verdict, as the command does once it is known.
        self.write: Callable[[str, str], None] = lambda server, text: None
        self.seen: list[list[str]] = []

    def __call__(self, cluster: Cluster) -> ClusterAcceptance:
        by_number = number_members(cluster).by_number
        self.seen.append([member.id for member in by_number.values()])
        words = self.times[len(self.seen) - 1]
        members = tuple(
            MemberAcceptance(number, member.name, member.id, result_of(word))
            for (number, member), word in zip(by_number.items(), words, strict=True)
        )
        for member in members:
            self.write(member.server, member.make_verdict(7).dumps())
        return ClusterAcceptance(cluster.name, "quick", members)


def create(cloud: ModelCloud, measure: Measured, told: list[str] | None = None) -> Cluster:
    tell = ([] if told is None else told).append
    measure.write = lambda server, text: cloud.servers[server]["metadata"].update({KEY: text})
    return commands.create_cluster(
        *(cloud, WISH, Secrets(), Nearness(), "a77e", PACE),
        settle=lambda cluster: settle_cluster(cloud, cluster, Secrets(), PACE, measure, tell),
    )


GOOD = ("accepted",) * 3


def verdicts_of(cluster: Cluster) -> tuple[str, ...]:
    by_number = number_members(cluster).by_number
    return tuple(
        "" if member.verdict is None else member.verdict.verdict for member in by_number.values()
    )


def test_good_members_stay() -> None:
    cloud, measure, told = ModelCloud(), Measured(GOOD), list[str]()
    made = create(cloud, measure, told)
    assert told == []
    assert sorted(member.id for member in made.members) == sorted(measure.seen[0])
    assert len(measure.seen) == 1
    assert verdicts_of(made) == GOOD


def test_a_last_look_that_fails_ends_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, measure = ModelCloud(), Measured(GOOD)
    look = cloud.look

    def look_once(group: str) -> Cluster:
        if measure.seen:
            raise ClusterCloudError("503")
        return look(group)

    monkeypatch.setattr(cloud, "look", look_once)
    assert sorted(member.id for member in create(cloud, measure).members) == sorted(cloud.servers)


@pytest.mark.parametrize("word", ["slow", "not measurable"])
def test_a_rejected_member_is_replaced_once(word: str) -> None:
    cloud, measure = ModelCloud(), Measured(("accepted", word, "accepted"), GOOD)
    told: list[str] = []
    made = create(cloud, measure, told)
    # The server goes, and with it what its metadata say.
    (text,) = told
    assert f"train-2: {word}" in text
    assert "train-1" not in text
    first, second = measure.seen
    assert [first[0], first[2]] == [second[0], second[2]]
    assert first[1] != second[1]
    assert sorted(member.name for member in made.members) == ["train-1", "train-2", "train-3"]
    assert sorted(cloud.servers) == sorted(second)
    assert len(cloud.ports) == 3
    # The verdict of the new member as well.
    assert verdicts_of(made) == GOOD


BAD = ("slow", "not measurable", "undecided", "refused")


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(("slow", "not measurable"), BAD))
)
def test_a_replacement_that_is_no_better_ends_the_cluster(first: str, second: str) -> None:
    cloud = ModelCloud()
    measure = Measured(("accepted", first, "accepted"), ("accepted", second, "accepted"))
    with pytest.raises(ClusterError) as error:
        create(cloud, measure)
    assert len(measure.seen) == 2
    text = str(error.value)
    assert f"train-2: {second}" in text
    assert "train-2 had been replaced once before" in text
    assert text.endswith("nothing is left of the cluster")
    assert (cloud.servers, cloud.ports, cloud.groups) == ({}, {}, {})


@pytest.mark.parametrize("word", ["undecided", "refused"])
def test_what_no_other_member_would_decide_ends_the_cluster(word: str) -> None:
    cloud, measure = ModelCloud(), Measured(("accepted", "accepted", word))
    with pytest.raises(ClusterError, match=f"cluster train is not accepted: {word}"):
        create(cloud, measure)
    assert len(measure.seen) == 1
    assert (cloud.servers, cloud.ports, cloud.groups) == ({}, {}, {})


def test_a_finished_cluster_stays_where_it_is_not_accepted() -> None:
    cloud = ModelCloud()
    made = commands.create_cluster(cloud, WISH, Secrets(), Nearness(), "a77e", PACE)
    measure = Measured(("accepted", "accepted", "undecided"))
    with pytest.raises(ClusterError):
        settle_cluster(cloud, made, Secrets(), PACE, measure)
    assert len(cloud.servers) == 3
