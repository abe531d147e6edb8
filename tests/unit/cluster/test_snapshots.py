# SPDX-License-Identifier: Apache-2.0
"""Snapshots of clusters: of one moment, or none; a killed one goes on."""

from __future__ import annotations

import argparse
import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import commands, decide, verbs
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle import snapshot as life_cycle_snapshot
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError, Pace
from nova_hpc_client.cluster.members.model import Cluster, ClusterState
from nova_hpc_client.cluster.snapshots import ClusterSnapshot
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_client.openstack import options
from nova_hpc_client.openstack.snapshot_images import SnapshotImages
from nova_hpc_common.wire import cluster_wish, numbers
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from tests.unit.cluster import test_adoption as adopted_servers
from tests.unit.cluster.imaging_cloud import ImagingCloud
from tests.unit.cluster.model_cloud import Killed

IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
GROUP = "7c7fd52e-7b62-4a84-b3a4-6e2c0e6ad001"
WISH = ClusterWish("train", frozenset({1, 2, 3}), "42", image=IMAGE)
TURN = snapshots.new_turn(GROUP, 2, ("a",), runs=True)
PACE = Pace(sleep=lambda seconds: None, clock=lambda: 0.0)
KINDS = ("kill", "kill-after", "lose", "lose-after", "Forbidden: policy")
AGAIN = "openstack hpc cluster snapshot train"


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def made(wish: ClusterWish = WISH) -> ImagingCloud:
    cloud = ImagingCloud()
    commands.create_cluster(cloud, wish, Secrets(), Nearness(), "a77e", PACE)
    cloud.log.clear()
    cloud.calls = 0
    return cloud


def found(cloud: ImagingCloud) -> Cluster:
    (cluster,) = cloud.clusters()
    return cluster


def snap(cloud: ImagingCloud) -> ClusterSnapshot:
    return life_cycle_snapshot.snapshot_cluster(cloud, found(cloud), PACE)


def statuses(cloud: ImagingCloud) -> list[str]:
    ours = sorted(cloud.servers.values(), key=lambda server: server["name"])
    return [server["status"] for server in ours]


def member(cloud: ImagingCloud, number: int) -> dict[str, Any]:
    (server,) = [s for s in cloud.servers.values() if s["name"] == f"train-{number}"]
    return server


def let_nova_end(cloud: ImagingCloud) -> None:
    for _ in range(4):
        cloud.tick()


def killed(cloud: ImagingCloud, at: int, kind: str = "kill") -> None:
    cloud.calls, cloud.faults = 0, {at: kind}
    with pytest.raises(Killed):
        snap(cloud)
    cloud.revive()
    let_nova_end(cloud)


# -- one of them ---------------------------------------------------------------


def test_a_head_goes_on_and_has_no_image() -> None:
    cloud = made(attrs.evolve(WISH, head="7", head_image=IMAGE))
    whole = snap(cloud)
    assert (whole.problem, sorted(whole.active)) == ("", [1, 2, 3])
    assert cloud.is_of_one_moment(whole)
    assert cloud.log.count("os-stop") == cloud.log.count("os-start") == 3
    assert found(cloud).state is ClusterState.ACTIVE
    args = argparse.Namespace(from_snapshot=whole.id, head="7", head_image="")
    with pytest.raises(ClusterError, match="name its image with --head-image"):
        options._refuse_wrong_head(args)


def test_an_adopted_group_that_counts_from_0() -> None:
    cloud = ImagingCloud()
    group = cloud._id()
    cloud.groups[group] = {"id": group, "name": "stack-7", "policy": "affinity", "members": []}
    for name in ("train-0", "train-1"):
        adopted_servers.add(cloud, name)
    adopted_servers.adopt(cloud)
    whole = snap(cloud)
    assert (whole.problem, sorted(whole.active)) == ("", [0, 1])
    assert found(cloud).state is ClusterState.ACTIVE
    # One that fails leaves nothing.
    cloud.broken = {"train-1"}
    with pytest.raises(ClusterError, match="nothing is left of the snapshot"):
        snap(cloud)
    assert len(cloud.images) == 2


def head_of(cloud: ImagingCloud) -> dict[str, Any]:
    (server,) = [s for s in cloud.servers.values() if s["name"] == "train-head"]
    return server


@pytest.mark.parametrize(
    "values",
    [
        {"status": "PAUSED"},
        {"status": "SHELVED_OFFLOADED", "hostId": ""},
        {"status": "ERROR", "fault": {"message": "broken"}},
        {"status": "SHUTOFF"},
        {"status": "SHUTOFF", "locked": True},
        {"locked": True},
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_head_stays_as_it_is(values: dict[str, Any], late: bool) -> None:
    cloud = made(attrs.evolve(WISH, head="7", head_image=IMAGE))
    head = head_of(cloud)
    if late:
        killed(cloud, 8, "kill-after")
    head |= values
    before, change = dict(head), cloud.set_wish

    def set_wish(wish: ClusterWish, group: str, server: str) -> None:
        # As Nova: the metadata of a locked server does not change.
        if cloud.servers[server].get("locked"):
            raise ClusterCloudError("is locked")
        change(wish, group, server)

    cloud.set_wish = set_wish  # type: ignore[method-assign]
    assert not snap(cloud).problem
    assert head == before
    assert statuses(cloud) == ["ACTIVE"] * 3 + [before["status"]]
    assert snapshots.read_turn(found(cloud).wish) is None
    # What is stopped stays so.
    head["locked"] = False
    for at in (1, 2, 3):
        member(cloud, at)["status"] = "SHUTOFF"
    assert not snap(cloud).problem
    assert statuses(cloud) == ["SHUTOFF"] * 3 + [before["status"]]


@pytest.mark.parametrize("values", [{"locked": True}, {"status": "ERROR"}, {"status": "PAUSED"}])
def test_one_that_does_not_start_stops_no_other(values: dict[str, Any]) -> None:
    cloud = made()
    killed(cloud, 11)
    member(cloud, 1).update(values)
    with pytest.raises(
        ClusterError, match=r"train-1.*openstack.*\n.*cluster snapshot train goes on"
    ):
        snap(cloud)
    assert statuses(cloud)[1:] == ["ACTIVE"] * 2
    (whole,) = cloud.snapshots()
    assert not whole.problem
    member(cloud, 1).update(status="SHUTOFF", locked=False)
    assert snap(cloud).id == whole.id
    assert found(cloud).state is ClusterState.ACTIVE


def test_another_client_has_ended_it() -> None:
    cloud = made()
    killed(cloud, 11)
    look, looks = cloud.look, [0]

    def meanwhile(group: str) -> Cluster:
        looks[0] += 1
        if looks[0] == 1:
            assert not snap(cloud).problem
            verbs.change_members(cloud, found(cloud), verbs.STOP, PACE)
        return look(group)

    cluster = found(cloud)
    cloud.look = meanwhile  # type: ignore[method-assign]
    assert not life_cycle_snapshot.snapshot_cluster(cloud, cluster, PACE).problem
    assert found(cloud).state is ClusterState.STOPPED


def test_members_of_a_changed_cluster_run_again() -> None:
    cloud = made()
    killed(cloud, 11)
    commands.scale_cluster(cloud, found(cloud), {1, 2}, Secrets(), PACE)
    assert not snap(cloud).problem
    cluster = found(cloud)
    assert (cluster.state, cluster.wanted) == (ClusterState.ACTIVE, {1, 2})


def test_images_of_all_members_at_rest() -> None:
    cloud = made()
    whole = snap(cloud)
    assert cloud.log == [
        *["wish"] * 3,
        *["os-stop"] * 3,
        *["image"] * 3,
        "tag",
        *["os-start"] * 3,
        *["wish"] * 3,
    ]
    assert (whole.problem, sorted(whole.active)) == ("", [1, 2, 3])
    assert cloud.is_of_one_moment(whole)
    assert found(cloud).state is ClusterState.ACTIVE
    names = sorted(image["name"] for image in cloud.images.values())
    assert names == [f"train-{at}-snapshot-{whole.id}" for at in (1, 2, 3)]
    assert whole.wish is not None
    assert attrs.evolve(whole.wish, turn="", generation=1) == WISH
    # The next one is another one.
    assert snap(cloud).id != whole.id
    assert len(cloud.snapshots()) == 2


def lose_all(cloud: ImagingCloud) -> None:
    """All members are deleted, and the cluster is finished again: its generation begins again."""
    for server in list(cloud.servers):
        cloud.delete_server(server)
    let_nova_end(cloud)
    commands.resume_cluster(cloud, found(cloud), None, Secrets(), PACE)
    cloud.log.clear()


def test_new_members_have_a_new_snapshot() -> None:
    cloud = made()
    first = snap(cloud)
    lose_all(cloud)
    second = snap(cloud)
    assert second.id != first.id
    assert (cloud.log.count("os-stop"), cloud.log.count("image")) == (3, 3)
    assert {image.server for image in second.images} == set(cloud.servers)
    assert [each.problem for each in cloud.snapshots()] == ["", ""]


def test_an_id_that_has_images_is_not_taken_again() -> None:
    cloud = made()
    old = {id: dict(server["metadata"]) for id, server in cloud.servers.items()}
    first = snap(cloud)
    # A user writes the old metadata again, or releases an adopted cluster and adopts it again.
    for id, items in old.items():
        cloud.servers[id]["metadata"] = items
    second = snap(cloud)
    assert second.id != first.id
    assert [each.problem for each in cloud.snapshots()] == ["", ""]
    assert cloud.is_of_one_moment(second)


def test_a_whole_one_of_members_that_were_replaced() -> None:
    cloud = made()
    killed(cloud, 11)
    (whole,) = cloud.snapshots()
    assert not whole.problem
    lost = found(cloud).members[1]
    life_cycle_run.remove_members(cloud, found(cloud).id, [lost], PACE)
    wish = found(cloud).wish
    assert wish is not None
    cloud.make_servers(wish, found(cloud).id, [2], (), Secrets())
    let_nova_end(cloud)
    with pytest.raises(
        ClusterError, match=f"{whole.id} is whole, but has no image of members that came"
    ):
        snap(cloud)
    assert found(cloud).state is ClusterState.ACTIVE
    again = snap(cloud)
    assert again.id != whole.id
    assert {image.server for image in again.images} == set(cloud.servers)


def test_images_that_a_rebuilt_member_inherits_are_not_ours() -> None:
    cloud = made()
    whole = snap(cloud)
    ours = set(cloud.images)
    for at, image in whole.active.items():
        server = member(cloud, at)["id"]
        cloud.rebuild_from(server, image.id)
        # The same name is the user's own doing.
        for name in (f"train-{at}-shelved", "mine", image.name):
            cloud.make_image(server, name, {})
            let_nova_end(cloud)
    (again,) = cloud.snapshots()
    assert {image.id for image in again.images} == ours
    assert {image.id for image in cloud.snapshot_images(whole.id)} == ours
    assert not again.problem
    # The next snapshot is one of its own, although each member has its disk from the first.
    second = snap(cloud)
    assert (second.problem, len(second.images)) == ("", 3)
    assert {image.id for image in cloud.snapshot_images(whole.id)} == ours


def test_no_image_before_the_last_member_rests() -> None:
    cloud = made()
    go_on, looks = cloud._go_on, [0]

    def slowly(server: dict[str, Any]) -> None:
        if server["name"] == "train-3" and server["OS-EXT-STS:task_state"] == "powering-off":
            looks[0] += 1
            if looks[0] < 5:
                assert cloud.images == {}
                return
        go_on(server)

    cloud._go_on = slowly  # type: ignore[method-assign]
    assert not snap(cloud).problem
    assert looks == [5]


def test_no_member_has_two_images_in_the_end() -> None:
    cloud = made()
    killed(cloud, 8, "kill-after")
    image = cloud.images[min(cloud.images)]
    # Two clients have asked at once: Nova leaves one image empty, or makes both.
    cloud.images |= {
        "empty": {**image, "id": "empty", "status": "queued", "created_at": "2026-01-01T00:00:00Z"},
        "again": {**image, "id": "again", "created_at": "2026-01-02T00:00:00Z"},
    }
    whole = snap(cloud)
    assert (whole.problem, len(cloud.images)) == ("", 3)
    assert image["id"] in cloud.images


def test_what_is_stopped_stays_so() -> None:
    cloud = made()
    verbs.change_members(cloud, found(cloud), verbs.STOP, PACE)
    assert not snap(cloud).problem
    assert found(cloud).state is ClusterState.STOPPED
    assert "os-start" not in cloud.log


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"status": "PAUSED"}, "before a snapshot all members run.*unpause train-2"),
        ({"status": "SHUTOFF"}, "openstack hpc cluster start train, or openstack hpc cluster stop"),
        ({"OS-EXT-STS:task_state": "powering-off"}, "create --resume train"),
        ({"locked": True}, "train-2 is locked: openstack server unlock train-2"),
        ({"status": "ERROR"}, "replace train train-2"),
        ({"OS-EXT-STS:task_state": "deleting"}, "1 of 3 members are missing; first"),
    ],
)
def test_refused_before_the_first_member(values: dict[str, Any], why: str) -> None:
    cloud = made()
    server = member(cloud, 2)
    server |= values
    before = statuses(cloud)
    with pytest.raises(ClusterError, match=f"(?s){why}"):
        snap(cloud)
    assert (cloud.log, cloud.images) == ([], {})
    assert statuses(cloud) == before


def test_volumes_and_other_turns_are_in_the_way() -> None:
    cloud = made(attrs.evolve(WISH, boot_gib=9))
    with pytest.raises(ClusterError, match="boot from volumes, which have no images"):
        snap(cloud)
    cloud = made()
    cloud.faults = {6: "kill"}
    with pytest.raises(Killed):
        verbs.turn_members(cloud, found(cloud), verbs.REBOOT, PACE)
    cloud.revive()
    let_nova_end(cloud)
    with pytest.raises(ClusterError, match="first openstack hpc cluster reboot train"):
        snap(cloud)


def test_a_killed_one_is_in_the_list_and_goes_on() -> None:
    cloud = made()
    # Two images are asked for.
    killed(cloud, 8, "kill-after")
    cluster = found(cloud)
    assert (cluster.state, cluster.reason) == (
        ClusterState.CHANGING,
        "its snapshot is not finished",
    )
    assert decide.format_finish_commands(cluster) == AGAIN
    (half,) = cloud.snapshots()
    assert half.problem == "the images of members 3 are missing or not active"
    for verb in (verbs.REBOOT, verbs.REBUILD):
        with pytest.raises(
            ClusterError, match=f"first {AGAIN}, or openstack hpc snapshot delete {half.id}"
        ):
            verbs.turn_members(cloud, cluster, verb, PACE, IMAGE)
    assert statuses(cloud) == ["SHUTOFF"] * 3
    kept = set(cloud.images)
    whole = snap(cloud)
    assert (whole.id, whole.problem) == (half.id, "")
    assert kept < set(cloud.images)
    assert len(cloud.images) == 3
    assert found(cloud).state is ClusterState.ACTIVE


def test_whole_is_what_was_seen_to_be_of_one_moment() -> None:
    cloud = made()
    killed(cloud, 10)
    (half,) = cloud.snapshots()
    assert (sorted(half.active), half.problem) == ([1, 2, 3], "it is not finished")
    assert not snap(cloud).problem


def disturb(cloud: ImagingCloud, number: int) -> None:
    """Somebody starts a member, works and stops it."""
    for action in ("os-start", "os-stop"):
        cloud.ask_server(member(cloud, number)["id"], action)
        let_nova_end(cloud)


def test_a_member_that_ran_meanwhile() -> None:
    for number in (1, 3):
        cloud = made()
        killed(cloud, 8, "kill-after")
        disturb(cloud, number)
        with pytest.raises(ClusterError) as caught:
            snap(cloud)
        assert str(caught.value) == (
            f"train-{number} did not rest while images were made: Nova has recorded start\n"
            "nothing is left of the snapshot"
        )
        assert cloud.images == {}
        assert found(cloud).state is ClusterState.ACTIVE
        assert not snap(cloud).problem


def test_a_member_that_runs() -> None:
    cloud = made()
    killed(cloud, 8, "kill-after")
    cloud.ask_server(member(cloud, 2)["id"], "os-start")
    let_nova_end(cloud)
    with pytest.raises(ClusterError, match="train-2 runs, although images are made of members at"):
        snap(cloud)
    assert (cloud.images, found(cloud).state) == ({}, ClusterState.ACTIVE)


def test_a_refusal_leaves_the_cluster_as_it_was() -> None:
    cloud = made()
    cloud.faults = {8: "Quota exceeded for images"}
    with pytest.raises(ClusterError, match="Quota exceeded for images\nnothing is left of the"):
        snap(cloud)
    assert (cloud.images, found(cloud).state) == ({}, ClusterState.ACTIVE)
    wish = found(cloud).wish
    assert wish is not None
    assert (wish.turn, wish.generation) == ("", 3)


def test_images_that_never_come() -> None:
    cloud = made()
    cloud.broken = {"train-2"}
    with pytest.raises(ClusterError) as caught:
        snap(cloud)
    assert str(caught.value) == (
        "the image of train-2 failed, or was deleted: openstack server event list train-2\n"
        "nothing is left of the snapshot"
    )
    assert (cloud.images, found(cloud).state) == ({}, ClusterState.ACTIVE)
    # Nothing is at work on an image that is left.
    for status, cure in (("queued", "is queued"), ("killed", "is killed"), ("saving", "is saving")):
        cloud = made()
        killed(cloud, 8, "kill-after")
        image = next(iter(cloud.images.values()))
        image["status"] = status
        with pytest.raises(ClusterError, match=f"{cure}, not active: openstack image show"):
            snap(cloud)
        assert (cloud.images, found(cloud).state) == ({}, ClusterState.ACTIVE)


def test_an_image_that_is_deleted_meanwhile_is_made_again() -> None:
    cloud = made()
    killed(cloud, 8, "kill-after")
    del cloud.images[min(cloud.images)]
    assert not snap(cloud).problem
    assert len(cloud.images) == 3


def test_a_member_that_is_deleted_meanwhile() -> None:
    cloud = made()
    killed(cloud, 8, "kill-after")
    life_cycle_run.remove_members(cloud, found(cloud).id, [found(cloud).members[1]], PACE)
    with pytest.raises(ClusterError, match="1 of 3 members are missing"):
        snap(cloud)
    (half,) = cloud.snapshots()
    cluster = found(cloud)
    turn = snapshots.read_turn(cluster.wish)
    assert turn is not None
    assert turn.id == half.id
    life_cycle_snapshot.withdraw_snapshot(cloud, cluster, turn, PACE)
    assert cloud.images == {}
    assert statuses(cloud) == ["ACTIVE"] * 2


def test_a_cluster_that_shrinks_meanwhile() -> None:
    cloud = made()
    killed(cloud, 10)
    commands.scale_cluster(cloud, found(cloud), {1, 2}, Secrets(), PACE)
    with pytest.raises(ClusterError, match="has changed since the first image was made\nnothing"):
        snap(cloud)
    assert (cloud.images, found(cloud).state) == ({}, ClusterState.ACTIVE)


def test_a_renamed_member() -> None:
    cloud = made()
    member(cloud, 2)["name"] = "mine $(x)"
    whole = snap(cloud)
    assert not whole.problem
    assert sorted(image.name for image in whole.images) == [
        f"train-{at}-snapshot-{whole.id}" for at in (1, 2, 3)
    ]


# -- clients that die, and two of them -------------------------------------------


def withdraw(cloud: ImagingCloud) -> None:
    turn = snapshots.read_turn(found(cloud).wish)
    if turn is not None:
        life_cycle_snapshot.withdraw_snapshot(cloud, found(cloud), turn, PACE)


def check_truth(cloud: ImagingCloud) -> None:
    for stored in cloud.snapshots():
        if not stored.problem:
            assert cloud.is_of_one_moment(stored)
            assert len(stored.images) == 3


@given(
    st.lists(
        st.one_of(
            st.dictionaries(st.integers(1, 24), st.sampled_from(KINDS), max_size=3),
            st.tuples(st.sampled_from(["os-start", "os-stop"]), st.integers(1, 3)),
            st.sampled_from(["delete an image", "withdraw", "start", "stop"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_happens_a_whole_one_is_of_one_moment(events: list[Any]) -> None:
    cloud = made()
    for event in events:
        with contextlib.suppress(Killed, ClusterError, ClusterCloudError):
            if isinstance(event, dict):
                cloud.calls, cloud.faults = 0, dict(event)
                snap(cloud)
            elif isinstance(event, tuple):
                cloud.ask_server(member(cloud, event[1])["id"], event[0])
            elif event == "delete an image":
                cloud.images.pop(max(cloud.images, default=""), None)
            elif event == "withdraw":
                withdraw(cloud)
            else:
                verb = verbs.START if event == "start" else verbs.STOP
                verbs.change_members(cloud, found(cloud), verb, PACE)
        cloud.revive()
        let_nova_end(cloud)
        check_truth(cloud)
    # A third client makes the cluster whole, by what the list says.
    for _ in range(4):
        cluster = found(cloud)
        if cluster.state in (ClusterState.ACTIVE, ClusterState.STOPPED):
            break
        command = decide.format_finish_commands(cluster).partition(", or ")[0]
        assert command in (AGAIN, "openstack hpc cluster start train"), command
        with contextlib.suppress(ClusterError):
            if command == AGAIN:
                snap(cloud)
            else:
                verbs.change_members(cloud, cluster, verbs.START, PACE)
    stored = len([each for each in cloud.snapshots() if not each.problem])
    assert not snap(cloud).problem
    assert len([each for each in cloud.snapshots() if not each.problem]) == stored + 1
    assert len(set(statuses(cloud))) == 1
    check_truth(cloud)


@given(
    st.sampled_from(["snapshot", "start", "stop", "reboot", "rebuild", "withdraw"]),
    st.booleans(),
    st.integers(1, 12),
)
def test_two_clients_at_once_end(other: str, runs: bool, at: int) -> None:
    cloud = made()
    if not runs:
        verbs.change_members(cloud, found(cloud), verbs.STOP, PACE)
    seconds: dict[str, Callable[[], object]] = {
        "snapshot": lambda: snap(cloud),
        "start": lambda: verbs.change_members(cloud, found(cloud), verbs.START, PACE),
        "stop": lambda: verbs.change_members(cloud, found(cloud), verbs.STOP, PACE),
        "reboot": lambda: verbs.turn_members(cloud, found(cloud), verbs.REBOOT, PACE),
        "rebuild": lambda: verbs.turn_members(cloud, found(cloud), verbs.REBUILD, PACE),
        "withdraw": lambda: withdraw(cloud),
    }
    look, looks = cloud.look, [0]

    def meanwhile(group: str) -> Cluster:
        looks[0] += 1
        if looks[0] == at:
            with contextlib.suppress(ClusterError):
                seconds[other]()
        return look(group)

    cloud.look = meanwhile  # type: ignore[method-assign]
    with contextlib.suppress(ClusterError):
        snap(cloud)
    cloud.look = look  # type: ignore[method-assign]
    let_nova_end(cloud)
    check_truth(cloud)
    if other == "snapshot":
        # Both make the same one.
        assert [each.problem for each in cloud.snapshots()] in ([""], ["", ""])
        assert found(cloud).state is (ClusterState.ACTIVE if runs else ClusterState.STOPPED)


# -- what images say ---------------------------------------------------------------


def record(number: int, **more: Any) -> dict[str, Any]:
    """An image as Glance shows it."""
    turn = snapshots.new_turn(GROUP, 2, ("server1", "server2", "server3"), runs=True)
    wish = attrs.evolve(WISH, turn=turn.write(2), generation=2)
    return {
        **snapshots.build_properties(wish, GROUP, turn, number, f"server{number}"),
        "id": f"image{number}",
        "name": f"train-{number}-snapshot-{turn.id}",
        "status": "active",
        "size": 5,
        "created_at": "2026-01-01T10:00:00Z",
        "tags": [snapshots.TAG] if number == 1 else [],
        "instance_uuid": f"server{number}",
        **more,
    }


def read(*records: dict[str, Any]) -> list[ClusterSnapshot]:
    return snapshots.gather_snapshots(snapshots.read_images(records))


def test_a_whole_one() -> None:
    (whole,) = read(record(3), record(1), record(2))
    assert (whole.problem, list(whole.active), len(whole.images)) == ("", [1, 2, 3], 3)
    assert all(len(value) <= 255 for value in map(str, record(1).values()))


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([record(1), record(2)], "the images of members 3 are missing or not active"),
        (
            [record(1), record(2, status="saving"), record(3, status="deactivated")],
            "the images of members 2-3 are missing or not active",
        ),
        ([record(1, tags=[]), record(2), record(3)], "it is not finished"),
        ([record(1, hpc_cluster="1:{}")], "no image says what the cluster was"),
    ],
)
def test_what_is_not_whole(records: list[dict[str, Any]], problem: str) -> None:
    (half,) = read(*records)
    assert half.problem == problem


@pytest.mark.parametrize(
    "more",
    [
        # Of a server that was made from the image.
        {"instance_uuid": "another"},
        {"instance_uuid": None},
        {snapshots.KEY: "../x"},
        {snapshots.KEY: 3},
        {snapshots.MEMBER_KEY: "00"},
        {snapshots.MEMBER_KEY: "1\n"},
        {"created_at": "yesterday"},
        # Of a server that was rebuilt from the image: shelved, or by its owner.
        {"name": "train-1-shelved"},
        {"name": None},
        {"name": record(1)["name"] + "2"},
        {"name": record(2)["name"]},
    ],
)
def test_what_is_no_image_of_a_snapshot(more: dict[str, Any]) -> None:
    assert snapshots.read_image(record(1, **more)) is None


@given(
    st.from_regex(cluster_wish.NAME, fullmatch=True),
    st.integers(0, numbers.MOST),
    st.booleans(),
)
def test_each_image_that_is_made_can_be_read(name: str, number: int, adopted: bool) -> None:
    number = number or int(not adopted)
    own = ClusterWish(name, frozenset({number}), "42", image=IMAGE, adopted=adopted)
    image = snapshots.read_image(
        {
            **snapshots.build_properties(own, GROUP, TURN, number, "s"),
            "id": "i",
            "name": snapshots.image_name(wishes.member_name(own, number), TURN.id),
            "instance_uuid": "s",
            "created_at": "2026-01-01T10:00:00Z",
        }
    )
    assert image is not None
    assert (image.number, image.server, image.snapshot) == (number, "s", TURN.id)
    assert image.wish == own


@pytest.mark.parametrize(
    ("action", "begun", "found"),
    [
        ("start", "2026-01-01T10:00:01.000000", "start"),
        ("rebuild", "2026-01-01T10:00:02.500000", "rebuild"),
        ("ofALaterRelease", "2026-01-01T10:00:02.500000", "ofALaterRelease"),
        ("start", "no time", "start"),
        # Glance tells whole seconds.
        ("start", "2026-01-01T10:00:00.900000", ""),
        ("start", "2026-01-01T09:59:59.000000", ""),
        ("stop", "2026-01-01T10:00:05.000000", ""),
        ("createImage", "2026-01-01T10:00:05.000000", ""),
    ],
)
def test_what_disturbs(action: str, begun: str, found: str) -> None:
    since = datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)
    assert snapshots.find_disturbance([("stop", "x"), (action, begun)], since) == found


def test_the_turn_comes_back() -> None:
    for runs in (True, False):
        turn = snapshots.new_turn(GROUP, 7, ("a",), runs)
        wish = attrs.evolve(WISH, turn=turn.write(7))
        again = cluster_wish.from_metadata(cluster_wish.to_metadata(wish, GROUP))
        assert snapshots.read_turn(again) == turn
        assert again.turn_verb == "snapshot"
    for text in ("reboot-1", "snapshot-1-x", "snapshot-1-123456789abc-walk"):
        assert snapshots.read_turn(attrs.evolve(WISH, turn=text)) is None
    assert snapshots.read_turn(None) is None


# -- clusters from them ----------------------------------------------------------


class Images:
    """What a project has in Glance."""

    project = "p"

    def __init__(self, *records: dict[str, Any]) -> None:
        self.records = records

    def images(self, **query: str) -> Iterator[dict[str, Any]]:
        return (
            each
            for each in self.records
            if all(each.get(key) == value for key, value in query.items())
        )


def test_each_member_has_its_own_image() -> None:
    images = SnapshotImages(Images(record(1), record(2), record(3)))  # type: ignore[arg-type]
    id = record(1)[snapshots.KEY]
    own = snapshots.write_snapshot_image(id)
    assert [images.find_boot_image(own, at) for at in (1, 2, 3)] == ["image1", "image2", "image3"]
    # One that the snapshot did not have, as that cluster would have made it.
    assert images.find_boot_image(own, 4) == IMAGE
    assert images.find_boot_image(IMAGE, 4) == IMAGE
    wish = attrs.evolve(WISH, image=own)
    assert wishes.is_single(wish)
    assert not wishes.is_single(WISH)
    body = wishes.server_body(wish, GROUP, [2], Secrets(), {}, "", "image2")["server"]
    assert body["imageRef"] == "image2"
    volume = attrs.evolve(wish, boot_gib=9)
    body = wishes.server_body(volume, GROUP, [2], Secrets(), {}, "", "image2")["server"]
    assert body["block_device_mapping_v2"][0]["uuid"] == "image2"
    # A client that does not know snapshots asks Nova for an image that is none.
    body = wishes.server_body(wish, GROUP, [2], Secrets(), {})["server"]
    assert body["imageRef"] == f"snapshot:{id}"


def test_an_image_that_is_gone() -> None:
    id = record(1)[snapshots.KEY]
    own = snapshots.write_snapshot_image(id)
    for left, gone in (((), "is gone"), ((record(1), record(3)), "has no image of member 2 any")):
        images = SnapshotImages(Images(*left))  # type: ignore[arg-type]
        with pytest.raises(ClusterCloudError, match=f"{gone}.*: openstack hpc cluster delete ends"):
            images.find_boot_image(own, 2)
    # Somebody has written that one is of itself.
    wish = attrs.evolve(WISH, image=own)
    circle = {**record(1), **cluster_wish.to_metadata(wish, GROUP)}
    images = SnapshotImages(Images(circle))  # type: ignore[arg-type]
    with pytest.raises(ClusterCloudError, match="has no image of member 9 any more"):
        images.find_boot_image(own, 9)
    with pytest.raises(ClusterError, match="no snapshot has the ID x;"):
        images.find_snapshot("x")


def test_a_snapshot_that_a_cluster_needs_stays() -> None:
    id = record(1)[snapshots.KEY]
    cloud = made(attrs.evolve(WISH, image=snapshots.write_snapshot_image(id)))
    life_cycle_snapshot.refuse_needed(cloud.clusters(), id)
    cloud.delete_server(member(cloud, 3)["id"])
    let_nova_end(cloud)
    life_cycle_snapshot.refuse_needed(cloud.clusters(), "another")
    resume = "openstack hpc cluster create --resume train, or openstack hpc cluster delete train"
    with pytest.raises(ClusterError, match=f"members boot from snapshot {id}: first {resume}"):
        life_cycle_snapshot.refuse_needed(cloud.clusters(), id)


def test_a_rebuild_needs_an_image() -> None:
    id = record(1)[snapshots.KEY]
    cloud = made(attrs.evolve(WISH, image=snapshots.write_snapshot_image(id)))
    with pytest.raises(ClusterError, match="say --image for one image of all members"):
        verbs.turn_members(cloud, found(cloud), verbs.REBUILD, PACE)
    assert cloud.log == []
    verbs.turn_members(cloud, found(cloud), verbs.REBUILD, PACE, IMAGE)
    wish = found(cloud).wish
    assert wish is not None
    assert wish.image == IMAGE


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", action="store_true")
    options.add_cluster_options(parser)
    return parser.parse_args(words)


def stored(wish: ClusterWish) -> ClusterSnapshot:
    metadata = cluster_wish.to_metadata(wish, GROUP)
    (whole,) = read(*({**record(at), **metadata} for at in sorted(wish.members)))
    return whole


def test_options_that_were_not_given() -> None:
    wish = attrs.evolve(
        WISH,
        members=frozenset({1, 4}),
        nics=(Nic("a" * 8), Nic("b" * 8, "direct")),
        key="alice",
        zone="z",
        security_groups=("mpi",),
        config_drive=True,
        check=True,
        single=True,
        user_data="d" * 12,
    )
    args = parse()
    options.take_from_snapshot(args, stored(wish))
    given_back = (args.numbers, args.flavor, args.nics, args.security_group, args.key_name)
    assert given_back == (frozenset({1, 4}), "42", wish.nics, ["mpi"], "alice")
    assert (args.availability_zone, args.config_drive) == ("z", True)
    assert (args.guest_check, args.one_by_one, args.hosts) == (True, True, False)
    args = parse(
        "--hosts", "--no-config-drive", "--flavor", "43", "--network", "c", "--numbers=1,4"
    )
    options.take_from_snapshot(args, stored(wish))
    assert (args.hosts, args.config_drive, args.flavor, args.nics) == (
        True,
        False,
        "43",
        [Nic("c")],
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--members", "2"), "has the members 1-3: leave --members and --numbers out, and scale"),
        (("--numbers", "2-4"), "has the members 1-3"),
        (("--image", "i"), "leave --image and --volume out"),
        (("--volume", "v"), "leave --image and --volume out"),
    ],
)
def test_options_that_do_not_go_with_it(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ClusterError, match=why):
        options.take_from_snapshot(parse(*words), stored(WISH))


def test_a_resumed_cluster_may_have_been_scaled() -> None:
    args = parse("--resume", "--numbers", "1-4")
    options.take_from_snapshot(args, stored(WISH))
    assert args.numbers == frozenset({1, 2, 3, 4})


def test_a_member_0_comes_into_no_new_cluster() -> None:
    wish = attrs.evolve(WISH, members=frozenset({0, 1}), adopted=True)
    with pytest.raises(ClusterError, match=r"with a member 0,.* --property hpc_cluster_snap"):
        options.take_from_snapshot(parse(), stored(wish))
    args = parse()
    options.take_from_snapshot(args, stored(attrs.evolve(wish, members=frozenset({1, 2}))))
    assert args.numbers == frozenset({1, 2})


@pytest.mark.parametrize(
    ("user_data", "words", "told"),
    [
        ("d" * 12, (), "had user data, which no record gives back"),
        (cluster_wish.UNKNOWN, (), "no record says whether the members of the snapshot had"),
        ("", (), ""),
        (cluster_wish.UNKNOWN, ("--no-user-data",), ""),
        (cluster_wish.UNKNOWN, ("--user-data", "x"), ""),
    ],
)
def test_user_data_that_were_not_given(
    user_data: str, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options.take_from_snapshot(parse(*words), stored(attrs.evolve(WISH, user_data=user_data)))
    said = capsys.readouterr().err
    assert told in said if told else said == ""


def test_half_a_snapshot_makes_no_cluster() -> None:
    (half,) = read(record(1), record(3))
    with pytest.raises(
        ClusterError,
        match=r"is not whole: the images of members 2 are .*; openstack hpc snapshot delete",
    ):
        options.take_from_snapshot(parse(), half)
