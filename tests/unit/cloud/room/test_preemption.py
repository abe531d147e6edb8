# SPDX-License-Identifier: Apache-2.0
"""The fewest preemptible servers whose removal makes room, against every choice of them."""

from __future__ import annotations

import os

import attrs
import pytest

from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc_tools.cloud.room import preemption
from nova_hpc_tools.cloud.room.moves import RoomMiss
from nova_hpc_tools.cloud.room.preemption import PreemptionPlan, find_preemption
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.snapshot import Server, Snapshot
from tests.unit.cloud.room import trials
from tests.unit.cloud.room.random_clouds import fits, flavor_of, without
from tests.unit.snapshot import clouds

EXAMPLES = int(os.environ.get("NOVA_HPC_EXAMPLES", "12")) * 10
FOUR = flavor_of(4, "host")
FABRIC = FabricMap(places=tuple(FabricPlace(host, leaf="l") for host in "abc"))


@pytest.mark.parametrize("start", range(4))
def test_no_choice_has_fewer_servers(start: int) -> None:
    for seed in range(start, EXAMPLES, 4):
        trial = trials.try_preemption(seed)
        assert not trial.fault, trial
        assert trial.proven, trial


def a_cloud(word: str = "yes") -> Snapshot:
    """The example of the planner."""
    nodes = [
        clouds.node("a", [["r", "r"], ["s", "s"]]),
        clouds.node("b", [["t", "t"], ["u", "v"]]),
        clouds.node("c", [["w", None], 2]),
    ]
    specs = {"hpc:preemptible": word}
    servers = [
        Server(uuid, uuid, node.host, node.node, "any", specs)
        for node in nodes
        for uuid in dict.fromkeys(use.server for device in node.devices for use in device.used)
    ]
    return attrs.evolve(clouds.cloud(*nodes, flavors=[FOUR]), servers=tuple(servers), problems=())


def ask(cloud: Snapshot, members: int = 1) -> RoomQuestion:
    return RoomQuestion.of(cloud, FOUR.name, FABRIC, members, FabricLevel.LEAF)


def names_of(plan: PreemptionPlan | RoomMiss) -> list[str]:
    assert isinstance(plan, PreemptionPlan), plan
    return [server.uuid for server in plan.servers]


def test_the_example() -> None:
    cloud = a_cloud()
    assert names_of(find_preemption(cloud, ask(cloud))) == ["w"]
    assert names_of(find_preemption(cloud, ask(cloud, 2))) == ["r", "s", "w"]
    assert names_of(find_preemption(without(cloud, "w"), ask(cloud))) == []


@pytest.mark.parametrize("word", ["no", "Yes", "true", ""])
def test_no_other_word_makes_a_server_preemptible(word: str) -> None:
    cloud = a_cloud(word)
    assert find_preemption(cloud, ask(cloud)) == RoomMiss(
        "leaf l has room for 0 of 1 without all preemptible servers"
    )


def test_only_chosen_servers_leave() -> None:
    cloud = a_cloud()
    assert names_of(find_preemption(cloud, ask(cloud), only={"r", "s", "t"})) == ["r", "s"]
    assert isinstance(find_preemption(cloud, ask(cloud), only={"r", "t"}), RoomMiss)


def test_a_server_in_a_move_stays() -> None:
    """It has devices of two hosts."""
    cloud = a_cloud()
    twice = clouds.node("b", [["w", "w"], ["w", "w"]])
    cloud = attrs.evolve(cloud, hosts=(cloud.hosts[0], twice, cloud.hosts[2]))
    assert names_of(find_preemption(cloud, ask(cloud))) == ["r", "s"]


def test_a_search_that_is_cut_short_still_finds_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "_CHOICES", 1)
    cloud = a_cloud()
    plan = find_preemption(cloud, ask(cloud, 3))
    assert isinstance(plan, PreemptionPlan)
    assert not plan.proven
    assert fits(without(cloud, names_of(plan)), ask(cloud, 3))
    late = find_preemption(cloud, ask(cloud, 2), seconds=-1)
    assert isinstance(late, PreemptionPlan)
    assert not late.proven
    assert fits(without(cloud, names_of(late)), ask(cloud, 2))
