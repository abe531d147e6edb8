# SPDX-License-Identifier: Apache-2.0
"""Members that somebody has locked: a command is refused before it changes or deletes anything."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from nova_hpc_client.cluster.life_cycle import commands, decide, verbs
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.run import ClusterError
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish
from tests.unit.cluster.model_cloud import ModelCloud
from tests.unit.cluster.test_renamed import PACE, cluster_of, create, names_of, resume, server_of

PLAIN = ClusterWish("k", frozenset({1, 2, 3}), "42", image="img")
HOSTS = attrs.evolve(PLAIN, hosts=True)
HEADED = attrs.evolve(PLAIN, head="7", head_image="himg")

_Command = Callable[[ModelCloud, Cluster], object]


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def scale(*numbers: int) -> _Command:
    return lambda cloud, cluster: commands.scale_cluster(cloud, cluster, numbers, Secrets(), PACE)


def replace(*numbers: int) -> _Command:
    return lambda cloud, cluster: commands.replace_members(cloud, cluster, numbers, Secrets(), PACE)


def delete(cloud: ModelCloud, cluster: Cluster) -> None:
    commands.delete_cluster(cloud, cluster, PACE)


def turn(verb: str, image: str = "") -> _Command:
    return lambda cloud, cluster: verbs.turn_members(cloud, cluster, verb, PACE, image)


@pytest.mark.parametrize(
    ("wish", "locked", "command"),
    [
        (PLAIN, "k-1", scale(1, 2)),
        (PLAIN, "k-3", scale(1, 2)),
        (PLAIN, "k-1", scale(1, 2, 3, 4)),
        (PLAIN, "k-2", replace(2)),
        (HOSTS, "k-1", replace(2)),
        (PLAIN, "k-3", delete),
        (HEADED, "k-head", delete),
        (HEADED, "k-head", scale(1, 2)),
        (HEADED, "k-head", turn("rebuild", "img2")),
        (HEADED, "k-head", turn("reboot")),
    ],
)
def test_a_command_is_refused_before_it_changes_anything(
    wish: ClusterWish, locked: str, command: _Command
) -> None:
    cloud = create(wish)
    server_of(cloud, locked)["locked"] = True
    with pytest.raises(ClusterError) as refused:
        command(cloud, cluster_of(cloud))
    assert f"{locked} is locked: openstack server unlock " in str(refused.value)
    assert "nothing has changed" in str(refused.value)
    assert "undoing" not in str(refused.value)
    assert cloud.log == []


def test_a_member_that_nothing_is_written_to_may_be_locked() -> None:
    cloud = create(PLAIN)
    server_of(cloud, "k-1")["locked"] = True
    replace(2)(cloud, cluster_of(cloud))
    assert names_of(cloud) == ["k-1", "k-2", "k-3"]


def test_a_host_list_that_a_locked_member_does_not_get_names_the_cure() -> None:
    cloud = create(HOSTS)
    cloud.delete_server(server_of(cloud, "k-2")["id"])
    server_of(cloud, "k-1")["locked"] = True
    with pytest.raises(ClusterError, match="k-1 is locked: openstack server unlock"):
        resume(cloud)
    cluster = cluster_of(cloud)
    assert (cluster.state.value, cluster.reason) == (
        "CHANGING",
        "1 members do not have the newest host list",
    )
    cure = decide.format_finish_commands(cluster)
    assert cure.startswith("openstack server unlock ")
    server_of(cloud, "k-1")["locked"] = False
    assert resume(cloud).reason == ""


def test_what_resume_cannot_delete_names_the_cure() -> None:
    cloud = create(PLAIN)
    cluster = cluster_of(cloud)
    cloud.calls, cloud.faults = 0, {3: "Forbidden"}
    with pytest.raises(ClusterError, match="Forbidden"):
        scale(1, 2)(cloud, cluster)
    cloud.revive()
    server_of(cloud, "k-3")["locked"] = True
    cloud.log.clear()
    with pytest.raises(ClusterError, match="k-3 is locked: openstack server unlock"):
        resume(cloud)
    assert cloud.log == []


def test_a_command_has_the_id_where_another_server_has_the_name() -> None:
    cloud = create(HEADED)
    head = server_of(cloud, "k-head")
    cloud.servers["mine"] = {
        "id": "mine",
        "name": "k-head",
        "status": "ACTIVE",
        "OS-EXT-STS:task_state": None,
    }
    head["status"] = "PAUSED"
    command = f"openstack server unpause {head['id']}"
    assert decide.format_finish_commands(cluster_of(cloud)) == command
