# SPDX-License-Identifier: Apache-2.0
"""A client that dies, is refused or loses answers at any step: another one finishes or ends it.

What is left is compared with plain sets of names, not with what the code calls complete.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster.life_cycle import commands, decide
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.members.model import Cluster, ClusterState
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from tests.unit.cluster.model_cloud import Killed, ModelCloud

NET = "11111111-2222-4333-8444-555555555555"
PLAIN = ClusterWish("train", frozenset({1, 2, 3}), "42", image="img", nics=(Nic(NET),))
PORTS = attrs.evolve(PLAIN, nics=(Nic(NET), Nic(NET, "direct")))
WISHES = [PLAIN, attrs.evolve(PLAIN, single=True), PORTS]
WISHES += [attrs.evolve(wish, hosts=True) for wish in WISHES]
HEADED = attrs.evolve(PLAIN, head="7", head_image="himg", hosts=True)
HEADED_PORTS = attrs.evolve(PORTS, head="7", head_image="himg", hosts=True)
WISHES += [HEADED, HEADED_PORTS]
PACE = Pace(sleep=lambda seconds: None, clock=lambda: 0.0)

KINDS = ("kill", "kill-after", "lose", "lose-after", "Forbidden: quota")


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def create(cloud: ModelCloud, wish: ClusterWish) -> Cluster:
    return commands.create_cluster(cloud, wish, Secrets(), Nearness(), "a77e", PACE)


def strangers(cloud: ModelCloud) -> None:
    """What is not ours and must never be touched."""
    group = cloud.make_group(attrs.evolve(PLAIN, name="other"), "0ther", "affinity", None)
    cloud.groups[group]["name"] = "somebody's"
    cloud.servers["s"] = {
        "id": "s",
        "name": "train-1",
        "metadata": {},
        "tags": ["mine"],
        "status": "ACTIVE",
        "OS-EXT-STS:task_state": None,
        "_ports": [],
    }
    cloud.ports["p"] = {"id": "p", "name": "train-1.1", "description": "", "device_id": ""}


def nothing_left(cloud: ModelCloud) -> None:
    assert cloud.servers.keys() == {"s"}
    assert cloud.ports.keys() == {"p"}
    assert [each["name"] for each in cloud.groups.values()] == ["somebody's"]


def complete(cloud: ModelCloud, wish: ClusterWish, numbers: set[int]) -> None:
    ours = {id: each for id, each in cloud.servers.items() if id != "s"}
    names = {f"train-{number}" for number in numbers} | ({"train-head"} if wish.head else set())
    assert sorted(each["name"] for each in ours.values()) == sorted(names)
    assert {each["status"] for each in ours.values()} == {"ACTIVE"}
    assert {each["OS-EXT-STS:task_state"] for each in ours.values()} == {None}
    made = [each for id, each in cloud.ports.items() if id != "p"]
    places = [place for place, nic in enumerate(wish.nics) if nic.vnic]
    assert sorted(each["name"] for each in made) == sorted(
        f"train-{number}.{place}" for number in numbers for place in places
    )
    for port in made:
        assert cloud.servers[port["device_id"]]["name"] == port["name"].split(".")[0]
    assert len(cloud.groups) == 2
    for server in ours.values() if wish.hosts else ():
        known = told(server)
        assert known.keys() == names
        for each in ours.values():
            address, keys = known[each["name"]]
            assert address == each["addresses"]["net"][0]["addr"]
            assert keys == each["metadata"]["hpc_host_keys"]


def told(server: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Name of a member -> its address and keys, as a server's metadata say."""
    items = server["metadata"]
    count, _, text = items["hpc_hosts"].partition(":")
    rest = (items[f"hpc_hosts_{at}"] for at in range(2, int(count) + 1))
    data = json.loads(text + "".join(rest))
    head = {"train-head": (data["h"][0], data["k"][data["h"][1]])} if "h" in data else {}
    return head | {
        f"{data['n']}-{number}": (address, data["k"][keys]) for number, address, keys in data["m"]
    }


def all_is_listed(cloud: ModelCloud) -> None:
    """Every thing that a client made is a part of some cluster in the list."""
    listed = cloud.clusters()
    assert {each.id for cluster in listed for each in cluster.servers} == cloud.servers.keys() - {
        "s"
    }
    assert {each.id for cluster in listed for each in cluster.ports} == cloud.ports.keys() - {"p"}
    groups = {id for id, each in cloud.groups.items() if each["name"].startswith("hpc:")}
    # A cluster has its name as long as anything of it is there.
    assert groups == {cluster.id for cluster in listed}


def start(fates: list[str], faults: dict[int, str]) -> ModelCloud:
    cloud = ModelCloud()
    strangers(cloud)
    cloud.fates, cloud.calls = fates, 0
    cloud.faults = faults
    return cloud


@pytest.mark.parametrize("wish", WISHES)
def test_create_and_delete(wish: ClusterWish) -> None:
    cloud = start([], {})
    cluster = create(cloud, wish)
    assert cluster.state is ClusterState.ACTIVE
    complete(cloud, wish, {1, 2, 3})
    assert cloud.log.count("servers") == (3 if wish.single or wish.nics[-1].vnic else 1)
    assert cloud.log.count("head") == bool(wish.head)
    # Nova's policies know of no member that has no host yet.
    assert cloud.blind == []
    commands.delete_cluster(cloud, cluster, PACE)
    nothing_left(cloud)


@given(
    wish=st.sampled_from(WISHES),
    faults=st.dictionaries(st.integers(1, 20), st.sampled_from(KINDS), max_size=3),
    fates=st.lists(st.sampled_from(["ACTIVE", "ACTIVE", "No valid host"]), max_size=4),
    resumes=st.booleans(),
)
def test_whatever_happens_somebody_finishes_or_ends_it(
    wish: ClusterWish, faults: dict[int, str], fates: list[str], resumes: bool
) -> None:
    cloud = start(fates, faults)
    killed, said = False, ""
    try:
        create(cloud, wish)
    except Killed:
        killed = True
    except ClusterError as error:
        said = str(error)
    else:
        complete(cloud, wish, {1, 2, 3})
    if "nothing is left" in said:
        nothing_left(cloud)
        return
    assert killed or not said or "openstack hpc cluster delete" in said
    cloud.revive()
    all_is_listed(cloud)
    left = cloud.clusters()
    if not killed and not said:
        assert [each.state for each in left] == [ClusterState.ACTIVE]
    # Two groups of one attempt: the first answer was lost, and then the client died.
    assert len(left) <= (2 if "lose-after" in faults.values() else 1)
    for each in left:
        if resumes and len(left) == 1:
            cloud.fates = []
            try:
                made = commands.resume_cluster(cloud, each, None, Secrets(), PACE)
            except ClusterError as error:
                pytest.fail(f"resume: {error}")
            assert made.state is ClusterState.ACTIVE
            complete(cloud, wish, {1, 2, 3})
            continue
        commands.delete_cluster(cloud, each, PACE)
    if not (resumes and len(left) == 1):
        nothing_left(cloud)


@given(
    wish=st.sampled_from([PLAIN, PORTS, attrs.evolve(PORTS, hosts=True), HEADED, HEADED_PORTS]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["scale", "replace", "replace head"]),
            st.sets(st.integers(1, 5), min_size=1, max_size=4),
            st.dictionaries(st.integers(1, 14), st.sampled_from(KINDS), max_size=2),
            st.lists(st.sampled_from(["ACTIVE", "ACTIVE", "No valid host"]), max_size=3),
        ),
        max_size=4,
    ),
)
def test_a_cluster_that_changes(
    wish: ClusterWish, steps: list[tuple[str, set[int], dict[int, str], list[str]]]
) -> None:
    """After each command, killed or not, one resume makes it whole; the list names all."""
    cloud = start([], {})
    create(cloud, wish)
    wanted = {1, 2, 3}
    for command, numbers, faults, fates in steps:
        (cluster,) = cloud.clusters()
        cloud.calls, cloud.faults, cloud.fates = 0, faults, list(fates)
        before, after = wanted, numbers if command == "scale" else wanted
        with contextlib.suppress(Killed, ClusterError):
            if command == "scale":
                commands.scale_cluster(cloud, cluster, numbers, Secrets(), PACE)
            else:
                some = sorted(numbers & wanted)
                head = bool(wish.head) and command == "replace head"
                commands.replace_members(cloud, cluster, some, Secrets(), PACE, head)
        cloud.revive()
        cloud.fates = []
        all_is_listed(cloud)
        (cluster,) = cloud.clusters()
        wanted = set(cluster.wanted)
        assert wanted in (before, after)
        ran = {id for id, each in cloud.servers.items() if each.get("OS-SRV-USG:launched_at")}
        commands.resume_cluster(cloud, cluster, None, Secrets(), PACE)
        complete(cloud, wish, wanted)
        # What ran and is still wanted was not made anew to make the cluster whole.
        kept = {cloud.servers[id]["name"] for id in ran & cloud.servers.keys()}
        assert len(kept) == len(ran & cloud.servers.keys())
    assert cloud.blind == []
    (cluster,) = cloud.clusters()
    commands.delete_cluster(cloud, cluster, PACE)
    nothing_left(cloud)


@given(
    st.sampled_from([PORTS, HEADED_PORTS]),
    st.integers(0, 30),
    st.sampled_from(("kill", "kill-after")),
)
def test_delete_that_is_killed_is_deleted_again(wish: ClusterWish, at: int, kind: str) -> None:
    cloud = start([], {})
    cluster = create(cloud, wish)
    cloud.calls, cloud.faults = 0, {at: kind}
    with contextlib.suppress(Killed):
        commands.delete_cluster(cloud, cluster, PACE)
    cloud.revive()
    all_is_listed(cloud)
    for each in cloud.clusters():
        commands.delete_cluster(cloud, each, PACE)
    nothing_left(cloud)


def test_a_group_that_somebody_deleted_leaves_a_cluster_that_delete_ends() -> None:
    cloud = start([], {})
    cluster = create(cloud, PORTS)
    del cloud.groups[cluster.id]
    (found,) = cloud.clusters()
    assert (found.name, found.state) == ("train", ClusterState.NO_GROUP)
    assert decide.format_finish_commands(found) == "openstack hpc cluster delete train"
    with pytest.raises(ClusterError, match="can only be deleted"):
        commands.resume_cluster(cloud, found, None, Secrets(), PACE)
    commands.delete_cluster(cloud, found, PACE)
    nothing_left(cloud)


def test_two_clients_that_resume_at_once_leave_one_of_each() -> None:
    cloud = start([], {4: "kill"})
    with pytest.raises(Killed):
        create(cloud, attrs.evolve(PLAIN, single=True))
    cloud.revive()
    (left,) = cloud.clusters()
    look = cloud.look
    once = [True]

    def meanwhile(group: str) -> Cluster:
        found = look(group)
        if once:
            once.clear()
            commands.resume_cluster(cloud, left, None, Secrets(), PACE)
        return found

    cloud.look = meanwhile  # type: ignore[method-assign]
    commands.resume_cluster(cloud, left, None, Secrets(), PACE)
    complete(cloud, PLAIN, {1, 2, 3})


def test_that_members_go_is_written_down_first() -> None:
    cloud = start([], {})
    cluster = create(cloud, PLAIN)
    cloud.log.clear()
    commands.scale_cluster(cloud, cluster, {1, 2}, Secrets(), PACE)
    assert cloud.log == ["wish", "wish", "delete server"]


def test_a_server_that_is_not_ours_stops_delete() -> None:
    cloud = start([], {})
    cluster = create(cloud, PLAIN)
    cloud.groups[cluster.id]["members"].append("s")
    (found,) = cloud.clusters()
    with pytest.raises(ClusterError, match="not the cluster's: train-1; delete them first"):
        commands.delete_cluster(cloud, found, PACE)
    complete(cloud, PLAIN, {1, 2, 3})


def test_a_renamed_member_stays_a_member() -> None:
    cloud = start([], {})
    cluster = create(cloud, PLAIN)
    cloud.servers[cluster.members[1].id]["name"] = "login"
    (found,) = cloud.clusters()
    assert found.state is ClusterState.ACTIVE
    commands.resume_cluster(cloud, found, None, Secrets(), PACE)
    assert sorted(each["name"] for each in cloud.servers.values()) == [
        *("login", "train-1", "train-1", "train-3")
    ]


def test_all_members_are_replaced_only_where_the_group_knows_them() -> None:
    cloud = start([], {})
    cluster = create(cloud, PLAIN)
    made = commands.replace_members(cloud, cluster, [1, 2, 3], Secrets(), PACE)
    assert not {each.id for each in made.members} & {each.id for each in cluster.members}
    smaller = commands.scale_cluster(cloud, made, {2}, Secrets(), PACE)
    with pytest.raises(ClusterError, match="these are all members"):
        commands.replace_members(cloud, smaller, [2], Secrets(), PACE)
    complete(cloud, PLAIN, {2})


def test_a_failed_member_that_ran_is_not_made_anew_by_resume() -> None:
    cloud = start([], {})
    cluster = create(cloud, PLAIN)
    server = cloud.servers[cluster.members[0].id]
    server |= {"status": "ERROR", "fault": {"message": "the node died"}}
    (found,) = cloud.clusters()
    assert (found.state, found.reason) == (ClusterState.ERROR, "train-1: the node died")
    assert decide.format_finish_commands(found) == "openstack hpc cluster replace train train-1"
    with pytest.raises(ClusterError, match="train-1 failed: the node died"):
        commands.resume_cluster(cloud, found, None, Secrets(), PACE)
    commands.replace_members(cloud, found, [1], Secrets(), PACE)
    complete(cloud, PLAIN, {1, 2, 3})


def test_guests_that_check_themselves() -> None:
    wish = attrs.evolve(PLAIN, check=True)
    cloud = start([], {})
    tick = cloud.tick

    def says(text: str) -> None:
        def later() -> None:
            for server in cloud.servers.values():
                if server["status"] == "ACTIVE" and server["id"] != "s":
                    server["_console"] = text
            tick()

        cloud.tick = later  # type: ignore[method-assign]

    says("x\n[ 3.1] As promised: 2 devices, 1 NUMA nodes, topology mirror.\nlogin:")
    assert create(cloud, wish).state is ClusterState.ACTIVE
    commands.delete_cluster(cloud, cloud.clusters()[0], PACE)
    says("sh: WRONG device: gpu 1: it is not there\n")
    with pytest.raises(ClusterError, match=r"train-\d is not as promised: gpu 1: it is not there"):
        create(cloud, wish)
    nothing_left(cloud)


def test_patience_ends() -> None:
    cloud = start([], {})
    cloud.tick = lambda: None  # type: ignore[method-assign]
    clock = iter(range(0, 10_000, 50))
    pace = Pace(limit=200.0, sleep=lambda seconds: None, clock=lambda: float(next(clock)))
    group = cloud.make_group(PLAIN, "a77e", "affinity", None)
    with pytest.raises(ClusterError, match="after 200 seconds still 3 of 3 members are building"):
        life_cycle_run.fulfil_wish(cloud, group, PLAIN, Secrets(), pace)


def test_a_member_of_ports_knows_all_others_from_its_first_moment() -> None:
    """A configuration drive never changes: what is not there at the start never comes."""
    cloud = start([], {})
    first: dict[str, dict[str, Any]] = {}
    make = cloud.make_servers

    def make_servers(*words: Any) -> None:
        make(*words)
        for id, server in cloud.servers.items():
            first.setdefault(id, {"metadata": dict(server["metadata"])})

    cloud.make_servers = make_servers  # type: ignore[method-assign]
    wish = attrs.evolve(PORTS, hosts=True, nics=(Nic(NET, "direct"),))
    create(cloud, wish)
    del first["s"]
    assert [told(server).keys() for server in first.values()] == [
        {"train-1", "train-2", "train-3"}
    ] * 3
    assert len({keys for server in first.values() for _, keys in told(server).values()}) == 1


def test_members_are_told_of_a_new_one_and_of_its_new_keys() -> None:
    cloud = start([], {})
    wish = attrs.evolve(PLAIN, hosts=True)
    cluster = create(cloud, wish)
    cluster = commands.scale_cluster(cloud, cluster, {1, 2, 3, 7}, Secrets(), PACE)
    complete(cloud, wish, {1, 2, 3, 7})
    commands.replace_members(cloud, cluster, [2], Secrets(), PACE)
    complete(cloud, wish, {1, 2, 3, 7})
    del cloud.servers["s"]
    server, *_ = cloud.servers.values()
    assert len({keys for _, keys in told(server).values()}) == 3
    # None is told again of what it knows.
    calls = cloud.calls
    commands.resume_cluster(cloud, cloud.clusters()[0], None, Secrets(), PACE)
    assert cloud.calls == calls


def test_a_member_that_is_not_told_is_listed() -> None:
    cloud = start([], {5: "kill"})
    with contextlib.suppress(Killed):
        create(cloud, attrs.evolve(PLAIN, hosts=True))
    cloud.revive()
    (left,) = cloud.clusters()
    assert (left.state, left.reason) == (
        ClusterState.CHANGING,
        "1 members do not have the newest host list",
    )
    assert decide.format_finish_commands(left) == "openstack hpc cluster create --resume train"
    made = commands.resume_cluster(cloud, left, None, Secrets(), PACE)
    assert made.state is ClusterState.ACTIVE


def test_a_port_whose_member_is_gone_is_listed() -> None:
    """Its client was killed between the server and its port."""
    cloud = start([], {})
    cluster = create(cloud, PORTS)
    # One record for each member that stays, then the server.
    cloud.calls, cloud.faults = 0, {3: "kill-after"}
    with pytest.raises(Killed):
        commands.scale_cluster(cloud, cluster, {1, 2}, Secrets(), PACE)
    cloud.revive()
    assert len(cloud.clusters()[0].servers) == 3
    for _ in range(3):
        cloud.tick()
    (left,) = cloud.clusters()
    assert (len(left.servers), len(left.ports)) == (2, 3)
    assert (left.state, left.reason) == (ClusterState.INCOMPLETE, "1 ports too many")
    resume = "openstack hpc cluster create --resume train"
    assert decide.format_finish_commands(left).startswith(resume)
    made = commands.resume_cluster(cloud, left, None, Secrets(), PACE)
    assert made.state is ClusterState.ACTIVE
    complete(cloud, PORTS, {1, 2})


def test_a_host_list_that_is_too_long_leaves_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = start([], {})
    wish = attrs.evolve(PLAIN, hosts=True)
    cluster = create(cloud, wish)
    monkeypatch.setattr("nova_hpc_guest.host_list.MOST_ITEMS", 1)
    with pytest.raises(ClusterError, match=r"are possible.*\n.* 3 members as before"):
        commands.scale_cluster(cloud, cluster, {1, 2, 3, 4}, Secrets(), PACE)
    complete(cloud, wish, {1, 2, 3})
