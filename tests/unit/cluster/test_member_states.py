# SPDX-License-Identifier: Apache-2.0
"""Every status, task and power state of a member: the cluster's state, the next command, success.

That no status of Nova's is missing is a test beside Nova (``tests/functional``).
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from nova_hpc_client.cluster.life_cycle import commands, decide
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.life_cycle.steps import Done, Stuck, Wait
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.members.server_state import LEAVING_TASKS, RUNNING_TASKS, STATUSES
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish
from tests.unit.cluster.model_cloud import ModelCloud

WISH = ClusterWish("train", frozenset({1, 2}), "42", image="img")
PACE = Pace(limit=200.0, sleep=lambda seconds: None, clock=iter(range(0, 10**6, 5)).__next__)
PAGE = Path(__file__).parents[3] / "docs/source/user/clusters.rst"

RESUME = "openstack hpc cluster create --resume train"
END = f"{RESUME}, or openstack hpc cluster delete train"
START = "openstack hpc cluster start train"
UNSHELVE = "openstack hpc cluster unshelve train"
STOP, SHELVE = "openstack hpc cluster stop train", "openstack hpc cluster shelve train"
HARD = "openstack server reboot --hard train-1"
REPLACE = "openstack hpc cluster replace train train-1"

#: Status, task, power state -> state of the cluster in which the other member runs, its next
#: command, what `create --resume` makes of it.
ROWS = (
    ("ACTIVE", None, 1, "ACTIVE", "", Done),
    ("ACTIVE", None, None, "ACTIVE", "", Done),
    *(("ACTIVE", task, 1, "ACTIVE", "", Done) for task in RUNNING_TASKS),
    # Its guest has switched itself off, and Nova stops it soon; or libvirt has lost it.
    *(("ACTIVE", None, power, "CHANGING", RESUME, Wait) for power in (0, 4, 6, 7)),
    ("ACTIVE", None, 3, "DEGRADED", HARD, Stuck),
    *(
        ("ACTIVE", task, 1, "CHANGING", RESUME, Wait)
        for task in (
            *("powering-off", "pausing", "suspending", "rescuing", "shelving"),
            *("shelving_image_pending_upload", "shelving_image_uploading", "a new one"),
        )
    ),
    ("BUILD", "spawning", 0, "BUILDING", END, Wait),
    ("BUILD", None, 0, "BUILDING", END, Wait),
    *(
        (status, task, 1, "CHANGING", RESUME, Wait)
        for status, task in (
            ("REBOOT", "reboot_started"),
            ("HARD_REBOOT", "reboot_started_hard"),
            ("PASSWORD", "updating_password"),
            ("REBUILD", "rebuild_spawning"),
            ("MIGRATING", "migrating"),
            ("RESIZE", "resize_migrating"),
            ("REVERT_RESIZE", "resize_reverting"),
        )
    ),
    ("VERIFY_RESIZE", None, 1, "DEGRADED", "openstack server resize confirm train-1", Stuck),
    ("VERIFY_RESIZE", "resize_confirming", 1, "CHANGING", RESUME, Wait),
    ("SHUTOFF", None, 4, "DEGRADED", f"{START}, or {STOP}", Stuck),
    ("SHUTOFF", "powering-on", 4, "CHANGING", RESUME, Wait),
    ("SHUTOFF", "image_uploading", 4, "CHANGING", RESUME, Wait),
    ("PAUSED", None, 3, "DEGRADED", "openstack server unpause train-1", Stuck),
    ("PAUSED", "unpausing", 3, "CHANGING", RESUME, Wait),
    ("SUSPENDED", None, 4, "DEGRADED", "openstack server resume train-1", Stuck),
    ("SUSPENDED", "resuming", 4, "CHANGING", RESUME, Wait),
    ("RESCUE", None, 1, "DEGRADED", "openstack server unrescue train-1", Stuck),
    ("RESCUE", "unrescuing", 1, "CHANGING", RESUME, Wait),
    ("SHELVED", None, 4, "DEGRADED", f"{UNSHELVE}, or {SHELVE}", Stuck),
    ("SHELVED", "shelving_offloading", 4, "CHANGING", RESUME, Wait),
    ("SHELVED_OFFLOADED", None, 0, "DEGRADED", f"{UNSHELVE}, or {SHELVE}", Stuck),
    ("SHELVED_OFFLOADED", "unshelving", 0, "CHANGING", RESUME, Wait),
    ("SHELVED_OFFLOADED", "spawning", 0, "CHANGING", RESUME, Wait),
    ("ERROR", None, 0, "ERROR", REPLACE, Stuck),
    ("ERROR", "rebooting_hard", 0, "ERROR", REPLACE, Stuck),
    ("UNKNOWN", None, 1, "DEGRADED", "openstack server show train-1", Stuck),
    ("OF_A_LATER_RELEASE", None, 1, "DEGRADED", "openstack server show train-1", Stuck),
    # It goes: a member is missing.
    ("SOFT_DELETED", None, 4, "INCOMPLETE", END, Wait),
    ("DELETED", None, 0, "INCOMPLETE", END, Wait),
    ("ACTIVE", "deleting", 1, "INCOMPLETE", END, Wait),
    ("SHUTOFF", "soft-deleting", 4, "INCOMPLETE", END, Wait),
)


def made() -> tuple[ModelCloud, Cluster]:
    cloud = ModelCloud()
    cluster = commands.create_cluster(cloud, WISH, Secrets(), Nearness(), "a77e", PACE)
    return cloud, cluster


def keep(cloud: ModelCloud, status: str, task: str | None, power: int | None) -> None:
    """Nova goes on, and the first member stays as it is."""
    tick = cloud.tick

    def on() -> None:
        if task not in LEAVING_TASKS:
            tick()
            put(cloud, 1, status, task, power)

    cloud.tick = on  # type: ignore[method-assign]
    put(cloud, 1, status, task, power)


def put(cloud: ModelCloud, number: int, status: str, task: str | None, power: int | None) -> None:
    (server,) = [s for s in cloud.servers.values() if s["name"] == f"train-{number}"]
    server |= {"status": status, "OS-EXT-STS:task_state": task, "OS-EXT-STS:power_state": power}


@pytest.mark.parametrize(("status", "task", "power", "state", "command", "kind"), ROWS)
def test_each_state(
    status: str, task: str | None, power: int | None, state: str, command: str, kind: type
) -> None:
    cloud, _ = made()
    keep(cloud, status, task, power)
    (cluster,) = cloud.clusters()
    assert (cluster.state.value, decide.format_finish_commands(cluster)) == (state, command)
    move = decide.plan_fulfilment(WISH, cluster)
    assert isinstance(move, kind), move
    if isinstance(move, Stuck):
        assert move.reason.startswith("train-1 "), move
        if status != "ERROR":
            assert move.reason.endswith(f": {command}"), move
    if kind is Done:
        commands.resume_cluster(cloud, cluster, None, Secrets(), PACE)
        return
    # None of the commands that promise members that run ends with success.
    before = sorted(cloud.servers)
    with pytest.raises(ClusterError):
        commands.resume_cluster(cloud, cluster, None, Secrets(), PACE)
    with pytest.raises(ClusterError):
        commands.scale_cluster(cloud, cluster, {1, 2, 3}, Secrets(), PACE)
    assert sorted(cloud.servers) == before
    (cluster,) = cloud.clusters()
    if state != "INCOMPLETE":
        with pytest.raises(ClusterError, match=r"train-1|building"):
            commands.replace_members(cloud, cluster, [2], Secrets(), PACE)
        if kind is Stuck and state != "ERROR":
            assert sorted(cloud.servers) == before


def test_no_status_is_missing_in_the_rows_and_on_the_page() -> None:
    assert {row[0] for row in ROWS} == {*STATUSES, "OF_A_LATER_RELEASE"}
    page = PAGE.read_text().partition(".. _member-states:")[2].partition(".. _")[0]
    for status, meaning in STATUSES.items():
        (row,) = [
            row for row in page.split("\n   * - ") if f"``{status}``" in row.partition("     - ")[0]
        ]
        if meaning.verb and status != "UNKNOWN":
            kind, verb = (
                ("hpc cluster", meaning.whole) if meaning.whole else ("server", meaning.verb)
            )
            assert f"``openstack {kind} {verb}" in row, row


@pytest.mark.parametrize(
    ("first", "second", "state", "command"),
    [
        ("SHUTOFF", "SHUTOFF", "STOPPED", START),
        ("SHELVED", "SHELVED_OFFLOADED", "SHELVED", UNSHELVE),
        ("SHUTOFF", "SHELVED", "DEGRADED", f"{UNSHELVE}, or {SHELVE}"),
        # Only its own verb helps the one, so that comes first.
        ("SHUTOFF", "PAUSED", "DEGRADED", "openstack server unpause train-2"),
        ("SHELVED_OFFLOADED", "RESCUE", "DEGRADED", "openstack server unrescue train-2"),
    ],
)
def test_two_that_do_not_run(first: str, second: str, state: str, command: str) -> None:
    cloud, _ = made()
    put(cloud, 1, first, None, 4)
    put(cloud, 2, second, None, 4)
    (cluster,) = cloud.clusters()
    assert (cluster.state.value, decide.format_finish_commands(cluster)) == (state, command)
    with pytest.raises(ClusterError, match=r"and 1 more do not run\): openstack"):
        commands.resume_cluster(cloud, cluster, None, Secrets(), PACE)


def test_a_member_that_stops_while_others_come_undoes_the_growth() -> None:
    cloud, cluster = made()
    tick = ModelCloud.tick
    looks = [0]

    def later() -> None:
        looks[0] += 1
        if looks[0] == 3:
            put(cloud, 1, "SHUTOFF", None, 4)
        tick(cloud)

    cloud.tick = later  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"(?s)train-1 is SHUTOFF.*has its 2 members as before"):
        commands.scale_cluster(cloud, cluster, {1, 2, 3}, Secrets(), PACE)
    assert sorted(server["name"] for server in cloud.servers.values()) == ["train-1", "train-2"]


def test_a_cluster_shrinks_with_members_that_do_not_run() -> None:
    cloud, cluster = made()
    put(cloud, 1, "SHUTOFF", None, 4)
    (cluster,) = cloud.clusters()
    left = commands.scale_cluster(cloud, cluster, {1}, Secrets(), PACE)
    assert (left.state.value, len(left.members)) == ("STOPPED", 1)


def test_nothing_goes_that_no_member_can_record() -> None:
    """Nova changes no metadata of a shelved server, so nothing would say that a member goes."""
    cloud, _ = made()
    put(cloud, 1, "SHELVED_OFFLOADED", None, 0)
    (cluster,) = cloud.clusters()
    with pytest.raises(ClusterError, match=f"Nova changes no metadata then: {UNSHELVE}"):
        commands.scale_cluster(cloud, cluster, {1}, Secrets(), PACE)
    assert len(cloud.servers) == 2


def test_a_member_that_cannot_be_written_does_not_stop_the_others() -> None:
    cloud, cluster = made()
    wish = attrs.evolve(WISH, members=frozenset({1, 2, 3}))
    commands.scale_cluster(cloud, cluster, wish.members, Secrets(), PACE)
    put(cloud, 1, "SHELVED", None, 4)
    (cluster,) = cloud.clusters()
    left = commands.scale_cluster(cloud, cluster, {1, 2}, Secrets(), PACE)
    assert left.wanted == {1, 2}
    assert len(left.members) == 2
