# SPDX-License-Identifier: Apache-2.0
"""Members that their user has renamed: no command deletes a server that ran over its name."""

from __future__ import annotations

import contextlib
from typing import Any

import attrs
import pytest

from nova_hpc_client.cluster.life_cycle import commands, decide
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.members.model import Cluster, ClusterState, number_members
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish
from tests.unit.cluster.model_cloud import Killed, ModelCloud

WISH = ClusterWish("k", frozenset({1, 2, 3}), "42", image="img", networks="none")
HEADED = attrs.evolve(WISH, head="7", head_image="himg", networks="auto")
PACE = Pace(sleep=lambda seconds: None, clock=lambda: 0.0)


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def create(wish: ClusterWish = WISH, *renames: tuple[str, str]) -> ModelCloud:
    cloud = ModelCloud()
    commands.create_cluster(cloud, wish, Secrets(), Nearness(), "a77e", PACE)
    rename(cloud, *renames)
    cloud.log.clear()
    return cloud


def rename(cloud: ModelCloud, *renames: tuple[str, str]) -> None:
    for server, name in [(server_of(cloud, old), new) for old, new in renames]:
        server["name"] = name


def server_of(cloud: ModelCloud, name: str) -> dict[str, Any]:
    (server,) = (server for server in cloud.servers.values() if server["name"] == name)
    return server


def names_of(cloud: ModelCloud) -> list[str]:
    return sorted(server["name"] for server in cloud.servers.values())


def cluster_of(cloud: ModelCloud) -> Cluster:
    (cluster,) = cloud.clusters()
    return cluster


def resume(cloud: ModelCloud) -> Cluster:
    return commands.resume_cluster(cloud, cluster_of(cloud), None, Secrets(), PACE)


def scale(cloud: ModelCloud, *numbers: int) -> Cluster:
    return commands.scale_cluster(cloud, cluster_of(cloud), numbers, Secrets(), PACE)


@pytest.mark.parametrize("name", ["k-5", "k-3", "k-head", "login"])
@pytest.mark.parametrize("wish", [WISH, HEADED])
def test_a_renamed_member_keeps_its_place_and_its_disk(wish: ClusterWish, name: str) -> None:
    cloud = create(wish, ("k-1", name))
    cluster = cluster_of(cloud)
    assert (cluster.state, cluster.reason) == (ClusterState.ACTIVE, "")
    before = set(cloud.servers)
    resume(cloud)
    assert cloud.log == []
    commands.replace_members(cloud, cluster, [2], Secrets(), PACE)
    assert len(before - cloud.servers.keys()) == 1
    assert names_of(cloud) == sorted(
        [*([] if wish is WISH else ["k-head"]), "k-2", "k-3", name],
    )
    assert cluster_of(cloud).state is ClusterState.ACTIVE


def test_the_command_for_a_renamed_member_has_its_number() -> None:
    cloud = create(WISH, ("k-2", "k-5"))
    server_of(cloud, "k-5").update(status="ERROR", fault={"message": "x"})
    assert decide.format_finish_commands(cluster_of(cloud)) == ("openstack hpc cluster replace k 2")


@pytest.mark.parametrize(
    ("renames", "numbers", "left"),
    [
        ([("k-2", "k-5")], (1, 2), ["k-1", "k-5"]),
        ([("k-2", "k-5")], (1, 3), ["k-1", "k-3"]),
        ([("k-2", "login"), ("k-3", "data")], (1, 3), ["data", "k-1"]),
        ([("k-2", "k-5"), ("k-3", "login")], (1, 2), ["k-1", "login"]),
    ],
)
def test_scale_removes_the_member_with_the_number_that_goes(
    renames: list[tuple[str, str]], numbers: tuple[int, ...], left: list[str]
) -> None:
    cloud = create(WISH, *renames)
    by_number = number_members(cluster_of(cloud)).by_number
    assert sorted(by_number[number].name for number in numbers) == left
    scale(cloud, *numbers)
    assert names_of(cloud) == left
    assert cluster_of(cloud).state is ClusterState.ACTIVE


def test_a_scale_that_was_killed_is_finished_where_no_name_is_in_doubt() -> None:
    for call in range(1, 5):
        cloud = create(WISH)
        cloud.calls, cloud.faults = 0, {call: "kill"}
        with contextlib.suppress(Killed):
            scale(cloud, 1)
        cloud.revive()
        resume(cloud)
        assert names_of(cloud) == (["k-1", "k-2", "k-3"] if call == 1 else ["k-1"])


def test_a_scale_that_was_killed_deletes_none_of_which_one_was_renamed() -> None:
    cloud = create(WISH, ("k-2", "k-5"))
    # Written down, and nothing is deleted yet.
    cloud.calls, cloud.faults = 0, {3: "kill"}
    with pytest.raises(Killed):
        scale(cloud, 1, 2)
    cloud.revive()
    cluster = cluster_of(cloud)
    assert (cluster.state.value, cluster.reason) == (
        "INCOMPLETE",
        "1 of these are members, and their names do not say which: k-5, k-3",
    )
    command = "openstack server set --name k-2 SERVER"
    assert decide.format_finish_commands(cluster) == command
    cloud.log.clear()
    for act in (
        lambda: resume(cloud),
        lambda: commands.replace_members(cloud, cluster_of(cloud), [1], Secrets(), PACE),
        lambda: scale(cloud, 1, 2, 3),
    ):
        with pytest.raises(ClusterError, match=command):
            act()
    assert cloud.log == []
    rename(cloud, ("k-5", "k-2"))
    resume(cloud)
    assert names_of(cloud) == ["k-1", "k-2"]


def test_a_scale_that_fails_leaves_a_renamed_member() -> None:
    cloud = create(WISH, ("k-2", "k-9"))
    before = set(cloud.servers)
    cloud.fates = ["ACTIVE", "No valid host"]
    with pytest.raises(ClusterError, match="has its 3 members as before"):
        scale(cloud, 1, 2, 3, 4, 5)
    assert set(cloud.servers) == before


def test_a_server_that_never_ran_and_is_not_wanted_goes() -> None:
    cloud = create(WISH)
    cluster = cluster_of(cloud)
    assert cluster.wish is not None
    cloud.make_servers(cluster.wish, cluster.id, (7,), (), Secrets())
    cloud.delete_server(server_of(cloud, "k-2")["id"])
    resume(cloud)
    assert names_of(cloud) == ["k-1", "k-2", "k-3"]
