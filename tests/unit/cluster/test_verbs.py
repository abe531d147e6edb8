# SPDX-License-Identifier: Apache-2.0
"""Commands for all members: whole, or refused before the first; a killed one goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster.life_cycle import commands, decide, verbs
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.life_cycle.verbs import REBOOT, REBUILD, SHELVE, START, STOP, UNSHELVE
from nova_hpc_client.cluster.members.model import Cluster, ClusterState
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.version import WireError
from tests.unit.cluster.model_cloud import Killed, ModelCloud

WISH = ClusterWish("train", frozenset({1, 2, 3}), "42", image="img")
HEADED = attrs.evolve(WISH, head="7", head_image="himg")
PACE = Pace(sleep=lambda seconds: None, clock=lambda: 0.0)
KINDS = ("kill", "kill-after", "lose", "lose-after", "Forbidden: policy")
ENDS = {"stop": "SHUTOFF", "start": "ACTIVE", "shelve": "SHELVED_OFFLOADED", "unshelve": "ACTIVE"}


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def made(wish: ClusterWish = WISH) -> ModelCloud:
    cloud = ModelCloud()
    commands.create_cluster(cloud, wish, Secrets(), Nearness(), "a77e", PACE)
    cloud.log.clear()
    cloud.calls = 0
    return cloud


def found(cloud: ModelCloud) -> Cluster:
    (cluster,) = cloud.clusters()
    return cluster


def change(cloud: ModelCloud, verb: Any, **more: Any) -> Cluster:
    if isinstance(verb, str):
        return verbs.turn_members(cloud, found(cloud), verb, PACE, **more)
    return verbs.change_members(cloud, found(cloud), verb, PACE)


def statuses(cloud: ModelCloud) -> list[str]:
    ours = sorted(cloud.servers.values(), key=lambda server: server["name"])
    return [server["status"] for server in ours]


def put(cloud: ModelCloud, number: int, **values: Any) -> None:
    (server,) = [s for s in cloud.servers.values() if s["name"] == f"train-{number}"]
    server |= values


def counts(cloud: ModelCloud, key: str) -> list[int]:
    ours = sorted(cloud.servers.values(), key=lambda server: server["name"])
    return [server.get(key, 0) for server in ours]


def test_a_night() -> None:
    cloud = made()
    assert change(cloud, STOP).state is ClusterState.STOPPED
    assert statuses(cloud) == ["SHUTOFF"] * 3
    assert change(cloud, START).state is ClusterState.ACTIVE
    assert change(cloud, SHELVE).state is ClusterState.SHELVED
    assert change(cloud, UNSHELVE).state is ClusterState.ACTIVE
    # One after the other finds a host.
    assert cloud.blind == []
    assert cloud.log == [
        *["os-stop"] * 3,
        *["os-start"] * 3,
        *["shelve"] * 3,
        *["unshelve"] * 3,
    ]
    # What is there already is not asked for.
    change(cloud, START)
    assert len(cloud.log) == 12


def test_each_member_is_rebooted_once() -> None:
    cloud = made()
    put(cloud, 2, status="SHUTOFF")
    assert change(cloud, REBOOT).state is ClusterState.ACTIVE
    assert counts(cloud, "_boots") == [1, 1, 1]
    wish = found(cloud).wish
    assert wish is not None
    assert (wish.turn, wish.image) == ("", "img")
    change(cloud, REBOOT)
    assert counts(cloud, "_boots") == [2, 2, 2]


def test_each_member_is_rebuilt_once_with_the_image() -> None:
    cloud = made()
    put(cloud, 3, status="SHUTOFF")
    change(cloud, REBUILD, image="img2")
    assert counts(cloud, "_rebuilt") == [1, 1, 1]
    # A stopped member is stopped afterwards, as Nova does it.
    assert statuses(cloud) == ["ACTIVE", "ACTIVE", "SHUTOFF"]
    assert cloud.log.index("rebuild") == 3  # after the turn was written down for all
    wish = found(cloud).wish
    assert wish is not None
    assert (wish.turn, wish.image) == ("", "img2")
    # New members get the new image.
    change(cloud, START)
    commands.scale_cluster(cloud, found(cloud), {1, 2, 3, 4}, Secrets(), PACE)


def test_an_image_that_does_not_start_harms_the_first_member_alone() -> None:
    cloud = made()
    with pytest.raises(ClusterError, match=r"(?s)train-1 failed: it does not boot: openstack hpc"):
        change(cloud, REBUILD, image="broken")
    assert statuses(cloud) == ["ERROR", "ACTIVE", "ACTIVE"]
    # Another image heals it, and the others follow.
    put(cloud, 1, **{"OS-SRV-USG:launched_at": "now"})
    assert change(cloud, REBUILD, image="img3").state is ClusterState.ACTIVE
    assert counts(cloud, "_rebuilt") == [2, 1, 1]


def test_a_refused_rebuild_leaves_no_turn() -> None:
    cloud = made()
    cloud.faults = {4: "the image is too large"}
    with pytest.raises(ClusterError, match=r"(?s)too large.*nothing has changed"):
        change(cloud, REBUILD, image="img2")
    cluster = found(cloud)
    assert cluster.state is ClusterState.ACTIVE
    assert cluster.wish is not None
    assert (cluster.wish.turn, cluster.wish.image) == ("", "img")
    assert counts(cloud, "_rebuilt") == [0, 0, 0]


def test_no_room_shelves_those_again_that_had_come() -> None:
    cloud = made()
    change(cloud, SHELVE)
    for number in (1, 2, 3):
        put(
            cloud,
            number,
            flavor={"extra_specs": {"hpc:fabric": "leaf"}},
        )
        (server,) = [s for s in cloud.servers.values() if s["name"] == f"train-{number}"]
        server["metadata"]["hpc_position"] = '{"v": 1, "leaf": "l-93c2"}'
    cloud.room = 2
    with pytest.raises(ClusterError) as caught:
        change(cloud, UNSHELVE)
    assert str(caught.value) == (
        "train-3 is still SHELVED_OFFLOADED, although Nova has accepted the request: openstack "
        "server event list train-3\n"
        "cluster train does not fit into its leaf l-93c2 any more: 2 of 3 members fit; those that "
        "had come back are shelved again"
    )
    assert statuses(cloud) == ["SHELVED_OFFLOADED"] * 3
    cloud.room = -1
    assert change(cloud, UNSHELVE).state is ClusterState.ACTIVE


def test_members_that_ran_before_are_not_shelved_for_others() -> None:
    cloud = made()
    change(cloud, SHELVE)
    put(cloud, 1, status="ACTIVE", hostId="some")
    cloud.room = 0
    cloud.no_host = "No leaf has room"
    text = r"does not fit any more: 1 of 3 members fit \(No leaf has room\); those"
    with pytest.raises(ClusterError, match=text):
        change(cloud, UNSHELVE)
    assert statuses(cloud) == ["ACTIVE", "SHELVED_OFFLOADED", "SHELVED_OFFLOADED"]


def test_that_there_is_no_room_is_not_said_of_other_failures() -> None:
    cloud = made()
    change(cloud, SHELVE)
    cloud.room, cloud.no_host = 1, None
    with pytest.raises(ClusterError) as caught:
        change(cloud, UNSHELVE)
    assert str(caught.value).endswith("train-2\nthose that had come back are shelved again")
    cloud.room, cloud.no_host = -1, ""
    cloud.calls, cloud.faults = 0, {2: "Quota exceeded"}
    with pytest.raises(ClusterError, match="Quota exceeded\nthose that had come back are shelved"):
        change(cloud, UNSHELVE)
    assert statuses(cloud) == ["SHELVED_OFFLOADED"] * 3


def test_stopped_ones_start_when_all_others_are_back() -> None:
    cloud = made()
    change(cloud, SHELVE)
    put(cloud, 1, status="SHUTOFF", hostId="some")
    put(cloud, 2, status="SHELVED", hostId="some")
    assert change(cloud, UNSHELVE).state is ClusterState.ACTIVE
    assert cloud.log[3:] == ["unshelve", "unshelve", "os-start"]


@pytest.mark.parametrize(
    ("verb", "values", "why"),
    [
        (STOP, {"status": "PAUSED"}, "train-2 is PAUSED: openstack server unpause train-2"),
        (STOP, {"status": "SHELVED"}, "train-2 is SHELVED: openstack hpc cluster unshelve train"),
        (STOP, {"locked": True}, "train-2 is locked: openstack server unlock train-2"),
        (REBOOT, {"locked": True}, "train-2 is locked"),
        (REBUILD, {"locked": True}, "train-2 is locked"),
        (REBUILD, {"status": "RESCUE"}, "train-2 is RESCUE: openstack server unrescue train-2"),
        (REBOOT, {"status": "SUSPENDED"}, "openstack server resume train-2"),
        (SHELVE, {"status": "RESCUE"}, "openstack server unrescue train-2"),
        (SHELVE, {"status": "VERIFY_RESIZE"}, "openstack server resize confirm train-2"),
        (STOP, {"status": "ERROR"}, "train-2 failed: .* openstack hpc cluster replace train"),
        (REBOOT, {"status": "ERROR"}, "train-2 failed"),
        (SHELVE, {"status": "OF_A_LATER_RELEASE"}, "openstack server show train-2"),
        (
            *(STOP, {"OS-EXT-STS:task_state": "deleting"}),
            r"INCOMPLETE: 1 of 3 members are missing; first openstack hpc cluster create --resume",
        ),
        (START, {"OS-EXT-STS:power_state": 3}, "power state 3.*reboot --hard train-2"),
    ],
)
def test_refused_before_the_first_member(verb: Any, values: dict[str, Any], why: str) -> None:
    cloud = made()
    put(cloud, 2, **values)
    if verb is START:
        put(cloud, 1, status="SHUTOFF")
    before = statuses(cloud)
    with pytest.raises(ClusterError, match=f"(?s){why}"):
        change(cloud, verb)
    assert cloud.log == []
    assert statuses(cloud) == before


def test_volumes_are_not_rebuilt() -> None:
    cloud = ModelCloud()
    wish = attrs.evolve(WISH, boot_gib=9)
    commands.create_cluster(cloud, wish, Secrets(), Nearness(), "a77e", PACE)
    with pytest.raises(ClusterError, match="boot from volumes"):
        change(cloud, REBUILD)
    assert change(cloud, REBOOT).state is ClusterState.ACTIVE


def test_a_member_that_does_not_start_is_named() -> None:
    cloud = made()
    change(cloud, STOP)
    go_on = cloud._go_on

    def fails(server: dict[str, Any]) -> None:
        if server["name"] == "train-2":
            server["OS-EXT-STS:task_state"] = None
        else:
            go_on(server)

    cloud._go_on = fails  # type: ignore[method-assign]
    with pytest.raises(ClusterError) as caught:
        change(cloud, START)
    assert str(caught.value) == (
        "train-2 is still SHUTOFF, although Nova has accepted the request: openstack server event "
        "list train-2\n"
        "openstack hpc cluster start train goes on, openstack hpc cluster stop train undoes it"
    )
    # Each was asked once.
    assert cloud.log[3:] == ["os-start"] * 3


def test_an_unfinished_turn_is_in_the_list_and_in_the_way() -> None:
    cloud = made()
    cloud.faults = {6: "kill"}
    with pytest.raises(Killed):
        change(cloud, REBOOT)
    cloud.revive()
    for _ in range(3):
        cloud.tick()
    cluster = found(cloud)
    assert cluster.state is ClusterState.CHANGING
    assert cluster.reason == "its reboot is not finished, 3 members are left"
    again = "openstack hpc cluster reboot train"
    assert decide.format_finish_commands(cluster) == again
    put(cloud, 1, status="ACTIVE")
    put(cloud, 2, status="ACTIVE")
    for command in (
        lambda: commands.resume_cluster(cloud, found(cloud), None, Secrets(), PACE),
        lambda: commands.scale_cluster(cloud, found(cloud), {1, 2, 3, 4}, Secrets(), PACE),
    ):
        with pytest.raises(ClusterError, match=f"{again}|start train"):
            command()
    # Members that the reboot has stopped would stay so; and the other way round.
    put(cloud, 1, status="SHUTOFF")
    with pytest.raises(ClusterError, match=f"is not finished; first {again}$"):
        change(cloud, REBUILD)
    assert counts(cloud, "_rebuilt") == [0, 0, 0]
    change(cloud, REBOOT)
    cloud.calls, cloud.faults = 0, {5: "kill"}
    with pytest.raises(Killed):
        change(cloud, REBUILD)
    cloud.revive()
    cloud.tick()
    with pytest.raises(ClusterError, match="first openstack hpc cluster rebuild train"):
        change(cloud, REBOOT)
    change(cloud, REBUILD)
    change(cloud, START)
    assert counts(cloud, "_rebuilt") == [1, 1, 1]


def meet(first: Callable[[], Any], second: Callable[[], Any], cloud: ModelCloud, at: int) -> None:
    """The second command runs as a whole at a look of the first."""
    look, looks = cloud.look, [0]

    def meanwhile(group: str) -> Cluster:
        looks[0] += 1
        if looks[0] == at:
            with contextlib.suppress(ClusterError):
                second()
        return look(group)

    cloud.look = meanwhile  # type: ignore[method-assign]
    with contextlib.suppress(ClusterError):
        first()


@given(
    st.sampled_from([STOP, START, SHELVE, UNSHELVE, REBOOT, REBUILD]),
    st.sampled_from([STOP, START, SHELVE, UNSHELVE, REBOOT, REBUILD]),
    st.sampled_from(["ACTIVE", "SHUTOFF", "SHELVED_OFFLOADED"]),
    st.integers(1, 9),
    st.sampled_from([WISH, HEADED]),
)
def test_two_clients_at_once_end(
    one: Any, other: Any, status: str, at: int, wish: ClusterWish
) -> None:
    """None of them goes on for ever, and a third one makes it whole."""
    cloud = made(wish)
    if status == "SHUTOFF":
        change(cloud, STOP)
    elif status != "ACTIVE":
        change(cloud, SHELVE)
    meet(lambda: change(cloud, one), lambda: change(cloud, other), cloud, at)
    cloud.look = ModelCloud.look.__get__(cloud)  # type: ignore[method-assign]
    for _ in range(4):
        cloud.tick()
    finish(cloud)


def finish(cloud: ModelCloud) -> None:
    """Follow the list until the cluster is whole."""
    for _ in range(5):
        cluster = found(cloud)
        if cluster.state in (ClusterState.ACTIVE, ClusterState.STOPPED, ClusterState.SHELVED):
            assert len(set(statuses(cloud))) == 1
            return
        command = decide.format_finish_commands(cluster).partition(", or ")[0]
        word = command.removeprefix("openstack hpc cluster ").split()[0]
        verb = {"start": START, "unshelve": UNSHELVE}.get(word, word)
        assert verb in (START, UNSHELVE, REBOOT, REBUILD), command
        change(cloud, verb)
    pytest.fail(f"{found(cloud).state}: {found(cloud).reason}")


@given(
    st.sampled_from([WISH, HEADED]),
    st.lists(
        st.tuples(
            st.sampled_from([STOP, START, SHELVE, UNSHELVE, REBOOT, REBUILD]),
            st.dictionaries(st.integers(1, 14), st.sampled_from(KINDS), max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_whatever_happens_the_same_command_goes_on(
    wish: ClusterWish, steps: list[tuple[Any, dict[int, str]]]
) -> None:
    """A killed command leaves a state from which itself, and the list's command, end it whole."""
    cloud = made(wish)
    names = sorted(cloud.servers)
    for verb, faults in steps:
        # Where the verb begins, so that none of the members is in its way.
        if found(cloud).state is ClusterState.SHELVED and verb not in (SHELVE, UNSHELVE):
            change(cloud, UNSHELVE)
        key = ({REBOOT: "_boots", REBUILD: "_rebuilt"}[verb]) if isinstance(verb, str) else ""
        begun = counts(cloud, key)
        cloud.calls, cloud.faults = 0, dict(faults)
        ended = False
        with contextlib.suppress(Killed, ClusterError):
            change(cloud, verb)
            ended = True
        cloud.revive()
        for _ in range(3):
            cloud.tick()
        cluster = found(cloud)
        if not ended and cluster.state is ClusterState.DEGRADED:
            words = {"start", "unshelve"} if verb is UNSHELVE else {getattr(verb, "name", verb)}
            shown = decide.format_finish_commands(cluster)
            assert any(f"openstack hpc cluster {word} train" in shown for word in words)
        pending = cluster.wish is not None and cluster.wish.turn_verb == verb
        if not ended and (pending or not key):
            change(cloud, verb)
        done = ended or pending
        if key:
            more = [after - before for before, after in zip(begun, counts(cloud, key), strict=True)]
            if wish.head and verb is REBUILD:
                # Sorted by name: the head is the last, and keeps its disk.
                assert more.pop() == 0
            # Each has had it once, or none has.
            assert set(more) == {1} if done else set(more) <= {0, 1}, (verb, more)
            assert len(set(more)) == 1
        else:
            assert set(statuses(cloud)) == {ENDS[verb.name]}
        assert sorted(cloud.servers) == names
        if found(cloud).state is ClusterState.STOPPED and verb is REBUILD:
            change(cloud, START)
    assert cloud.blind == []


@pytest.mark.parametrize(
    "turn", ["reboot", "reboot-", "-1", "reboot-1-$(x)", "Reboot-1", "reboot-1\n", "x" * 90 + "-1"]
)
def test_a_turn_that_is_none(turn: str) -> None:
    metadata = cluster_wish.to_metadata(attrs.evolve(WISH, turn=turn), "g")
    with pytest.raises(WireError):
        cluster_wish.from_metadata(metadata)
