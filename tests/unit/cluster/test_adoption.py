# SPDX-License-Identifier: Apache-2.0
"""A server group of another tool: what makes it a cluster, what is refused, and who goes on."""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import adoption, commands, decide
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.members import foreign_group, marks, model
from nova_hpc_client.cluster.members.foreign_group import AdoptionError, GroupRecords
from nova_hpc_client.cluster.members.model import Cluster, ClusterState
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import UNKNOWN, ClusterWish, Nic
from nova_hpc_common.wire.version import WireError
from tests.unit.cluster.model_cloud import Killed, ModelCloud

PACE = Pace(sleep=lambda seconds: None, clock=lambda: 0.0)
KINDS = ("kill", "kill-after", "lose", "lose-after", "Forbidden: policy")
FLAVOR = {"original_name": "gpu4", "vcpus": 4, "ram": 8, "extra_specs": {"hpc:fabric": "leaf"}}
NETS = [str(uuid.UUID(int=at)) for at in (7, 8)]
ALL = ["train-0", "train-1", "train-2"]

Record = dict[str, Any]


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def made(names: list[str] = ALL) -> ModelCloud:
    """A cloud in which another tool has made a group of servers with two ports each."""
    cloud = ModelCloud()
    group = cloud._id()
    cloud.groups[group] = {"id": group, "name": "stack-7", "policy": "affinity", "members": []}
    for name in names:
        add(cloud, name)
    return cloud


def add(cloud: ModelCloud, name: str) -> Record:
    (group,) = cloud.groups.values()
    server_id = cloud._id()
    group["members"].append(server_id)
    addresses: dict[str, list[Record]] = {}
    # Nova's order is that of the request, Neutron's is any.
    for place in (1, 0):
        port = {
            "id": cloud._id(),
            "name": f"{name}-port-{place}",
            "description": "of the stack",
            "device_id": server_id,
            "network_id": NETS[place],
            "mac_address": f"fa:16:3e:00:{len(cloud.ports):02x}:00",
            "binding:vnic_type": ("normal", "direct")[place],
        }
        cloud.ports[port["id"]] = port
        address = {"addr": cloud._address(), "OS-EXT-IPS-MAC:mac_addr": port["mac_address"]}
        addresses = {f"net{place}": [address], **addresses}
    cloud.servers[server_id] = {
        "id": server_id,
        "name": name,
        "metadata": {"role": "worker"},
        "tags": [],
        "status": "ACTIVE",
        "hostId": "some",
        "created": f"{len(cloud.servers):08d}",
        "OS-EXT-STS:task_state": None,
        "OS-SRV-USG:launched_at": "then",
        "addresses": addresses,
        "flavor": copy.deepcopy(FLAVOR),
        "image": {"id": "img"},
        "key_name": "alice",
        "user_id": "u",
        "config_drive": "True",
        "security_groups": [{"name": "default"}, {"name": "default"}],
        "pinned_availability_zone": None,
        "_ports": [port["id"] for port in cloud.ports.values() if port["device_id"] == server_id],
    }
    return cloud.servers[server_id]


def records_of(cloud: ModelCloud) -> GroupRecords:
    (group,) = cloud.groups
    return cloud.read_group(group)


def adopt(cloud: ModelCloud, user_data: str | None = "", taken: tuple[str, ...] = ()) -> Cluster:
    return adoption.adopt_group(cloud, records_of(cloud), user_data, taken, PACE)


def only(cloud: ModelCloud) -> Cluster:
    (cluster,) = cloud.clusters()
    return cluster


def test_the_wish_is_read_from_servers_and_ports() -> None:
    wish = foreign_group.read_foreign_wish(records_of(made()))
    assert wish == ClusterWish(
        name="train",
        members=frozenset({0, 1, 2}),
        flavor="id of gpu4",
        image="img",
        nics=(Nic(NETS[0]), Nic(NETS[1], "direct")),
        key="alice",
        security_groups=("default",),
        user_data=UNKNOWN,
        config_drive=True,
        adopted=True,
    )
    assert cluster_wish.from_metadata(cluster_wish.to_metadata(wish, "g")) == wish


def test_user_data_that_the_operator_shows() -> None:
    cloud = made()
    for server in cloud.servers.values():
        server["OS-EXT-SRV-ATTR:user_data"] = "IyE="
    digest = cluster_wish.short_digest_of(b"#!")
    assert foreign_group.read_foreign_wish(records_of(cloud)).user_data == digest
    with pytest.raises(AdoptionError, match="--user-data is not what these servers"):
        foreign_group.read_foreign_wish(records_of(cloud), "0123456789ab")


def change(called: str, **more: Any) -> Callable[[ModelCloud], None]:
    def alter(cloud: ModelCloud) -> None:
        (server,) = [each for each in cloud.servers.values() if each["name"] == called]
        server |= more

    return alter


def take_port(cloud: ModelCloud) -> None:
    cloud.ports.popitem()


def change_port(cloud: ModelCloud) -> None:
    port = next(each for each in cloud.ports.values() if each["name"] == "train-2-port-1")
    port["binding:vnic_type"] = "macvtap"


def call_it_ours(cloud: ModelCloud) -> None:
    next(iter(cloud.groups.values()))["name"] = "hpc:train {}"


def join_another(cloud: ModelCloud) -> None:
    tag = wishes.member_tag_of(str(uuid.UUID(int=3)))
    next(iter(cloud.servers.values()))["tags"] = [tag]


def hide(cloud: ModelCloud) -> None:
    cloud.servers.popitem()


def come_later(cloud: ModelCloud) -> None:
    next(iter(cloud.servers.values()))["metadata"] |= {
        "hpc_adopted_group": next(iter(cloud.groups)),
        "hpc_cluster": '1:{"v":9}',
    }


REFUSED: list[tuple[Callable[[ModelCloud], None], str]] = [
    (change("train-2", name="train-x"), r"is not called NAME-1.*set --name NAME-N 0"),
    (change("train-2", name="train"), "is not called NAME-1"),
    (change("train-2", name="train-02"), "is not called NAME-1"),
    (change("train-2", name="train-999999"), "is not called NAME-1"),
    (change("train-2", name="tr_in-2"), "is not called NAME-1"),
    (change("train-2", name="login-2"), r"is not called train-N.*set --name train-N 0"),
    (change("train-2", name="train-1"), "have one name"),
    (change("train-2", flavor={**FLAVOR, "vcpus": 8}), "another flavor.*server resize --flavor"),
    (change("train-2", flavor={**FLAVOR, "extra_specs": {}}), "another flavor"),
    (change("train-2", image={"id": "new"}), "another image.*: new, not img.*server rebuild"),
    (change("train-2", image=""), "another image.*: none, not img"),
    (change("train-2", key_name=None), "another key pair"),
    (change("train-2", user_id="v"), "another user than train-0: v, not u"),
    (change("train-2", config_drive=""), "another configuration drive"),
    (change("train-2", pinned_availability_zone="z"), "another availability zone"),
    (change("train-2", security_groups=[]), "another list of security groups"),
    (change_port, "another list of networks.*macvtap"),
    (take_port, "has a port that this project does not see"),
    (change("train-2", locked=True), "train-2 is locked: openstack server unlock 0"),
    (change("train-2", status="ERROR"), "train-2 is in error"),
    (change("train-2", status="SOFT_DELETED"), "train-2 is being deleted"),
    (change("train-2", status="BUILD"), "train-2 is BUILD: wait"),
    (change("train-2", **{"OS-EXT-STS:task_state": "rebooting"}), "wait until Nova has finished"),
    (change("train-2", status="SHELVED_OFFLOADED"), "openstack server unshelve 0"),
    (change("train-2", status="RESCUE"), "openstack server unrescue 0"),
    (change("train-2", status="VERIFY_RESIZE"), "openstack server resize confirm 0"),
    (call_it_ours, "is a cluster already"),
    (join_another, "is a member of another cluster: openstack hpc cluster show 0"),
    (hide, "which is no server of this project"),
    (come_later, "update nova-hpc"),
]


@pytest.mark.parametrize(("alter", "text"), REFUSED)
def test_what_is_refused_before_the_first_mark(
    alter: Callable[[ModelCloud], None], text: str
) -> None:
    cloud = made()
    alter(cloud)
    before = copy.deepcopy(cloud.servers)
    with pytest.raises(ClusterError, match=f"(?s){text}.*nothing has changed"):
        adopt(cloud)
    assert (cloud.log, cloud.servers) == ([], before)


def test_groups_that_are_none() -> None:
    with pytest.raises(ClusterError, match="server group stack-7 has no servers"):
        adopt(made([]))
    with pytest.raises(ClusterError, match="there is a cluster train already"):
        adopt(made(), taken=("train",))


def test_512_members(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = made([f"train-{at}" for at in range(512)])
    cluster = adopt(cloud)
    written: list[object] = []
    write = cluster_wish.write_cluster_wish
    monkeypatch.setattr(
        cluster_wish, "write_cluster_wish", lambda wish: [written.append(wish), write(wish)][1]
    )
    assert (cluster.state, len(cluster.members)) == (ClusterState.ACTIVE, 512)
    # Before: each property compared all members again, and show took minutes.
    assert len(written) <= 512
    assert cloud.log == ["mark"] * 512


@given(
    faults=st.dictionaries(st.integers(1, 8), st.sampled_from(KINDS), max_size=3),
    then=st.sampled_from(["adopt", "undo"]),
    undone=st.booleans(),
)
def test_a_client_that_dies_leaves_what_another_one_finishes_or_undoes(
    faults: dict[int, str], then: str, undone: bool
) -> None:
    cloud = made()
    before = copy.deepcopy((cloud.servers, cloud.ports, cloud.groups))
    if undone:
        adopt(cloud)
    cloud.calls, cloud.faults = 0, faults
    with contextlib.suppress(Killed, ClusterError):
        if undone:
            adoption.release_cluster(cloud, only(cloud), PACE)
        else:
            adopt(cloud)
    cloud.revive()
    marked = [each for each in cloud.servers.values() if marks.mark_of_server(each)]
    assert len(cloud.clusters()) == bool(marked)
    if marked and len(marked) < 3:
        assert "openstack hpc cluster adopt" in decide.format_finish_commands(only(cloud))
        with pytest.raises(ClusterError, match="adopt"):
            commands.resume_cluster(cloud, only(cloud), None, Secrets(), PACE)
    if then == "adopt":
        cluster = adopt(cloud)
        assert (cluster.state, cluster.wanted) == (ClusterState.ACTIVE, {0, 1, 2})
        wishes_of = {str(member.wish) for member in cluster.members}
        assert len(wishes_of) == 1
    elif marked:
        adoption.release_cluster(cloud, only(cloud), PACE)
        assert (cloud.servers, cloud.ports, cloud.groups) == before
    assert set(cloud.log) <= {"mark", "drop marks"}


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["scale", "replace"]),
            st.sets(st.integers(0, 4), min_size=1, max_size=3),
            st.dictionaries(st.integers(1, 14), st.sampled_from(KINDS), max_size=2),
        ),
        max_size=3,
    )
)
def test_ports_of_another_tool_are_never_lost(
    steps: list[tuple[str, set[int], dict[int, str]]],
) -> None:
    cloud = made()
    adopt(cloud)
    foreign = {id: dict(port) for id, port in cloud.ports.items()}
    for command, numbers, faults in steps:
        cluster = only(cloud)
        cloud.calls, cloud.faults = 0, faults
        with contextlib.suppress(Killed, ClusterError):
            if command == "scale":
                commands.scale_cluster(cloud, cluster, numbers, Secrets(), PACE)
            else:
                some = sorted(numbers & cluster.wanted)[:2]
                commands.replace_members(cloud, cluster, some, Secrets(), PACE)
        cloud.revive()
        cluster = only(cloud)
        commands.resume_cluster(cloud, cluster, None, Secrets(), PACE)
        names = {f"train-{number}" for number in cluster.wanted}
        assert {each["name"] for each in cloud.servers.values()} == names
        for id, port in foreign.items():
            left = cloud.ports[id]
            assert (left["name"], left["description"]) == (port["name"], port["description"])
            holder = cloud.servers.get(left["device_id"])
            # A replaced member has its own ports again, and no other member's.
            assert holder is None or port["name"].startswith(holder["name"])
        for server in cloud.servers.values():
            own = [each for each in cloud.ports.values() if each["device_id"] == server["id"]]
            assert sum(each["binding:vnic_type"] == "direct" for each in own) == 1
    commands.delete_cluster(cloud, only(cloud), PACE)
    assert (cloud.servers, cloud.clusters(), len(cloud.groups)) == ({}, [], 1)
    assert cloud.ports.keys() == foreign.keys()
    assert [tag for port in cloud.ports.values() for tag in port.get("tags", ())] == []


def test_a_replaced_member_has_its_ports_in_their_places() -> None:
    cloud = made()
    adopt(cloud)
    ports = sorted(each["id"] for each in cloud.ports.values() if "train-1" in each["name"])
    cloud.log.clear()
    commands.replace_members(cloud, only(cloud), [1], Secrets(), PACE)
    assert cloud.log == ["keep port", "keep port", "delete server", "servers"]
    (server,) = [each for each in cloud.servers.values() if each["name"] == "train-1"]
    assert sorted(server["_ports"]) == ports
    networks = [cloud.ports[id]["network_id"] for id in server["_ports"]]
    assert networks == NETS


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"os-extended-volumes:volumes_attached": [{"id": "v"}]}, "has a volume.*remove volume 0"),
        ({"flavor": {**FLAVOR, "original_name": "gone"}}, "flavor id of gpu4 is not there any"),
    ],
)
def test_a_member_that_could_not_be_replaced_stays(more: Record, text: str) -> None:
    cloud = made()
    adopt(cloud)
    for server in cloud.servers.values():
        server |= more
    cloud.log.clear()
    with pytest.raises(ClusterError, match=text):
        commands.replace_members(cloud, only(cloud), [1], Secrets(), PACE)
    assert cloud.log == []


def test_a_port_that_others_do_not_have_stops_replace() -> None:
    cloud = made()
    adopt(cloud)
    server = next(each for each in cloud.servers.values() if each["name"] == "train-1")
    port = {**next(iter(cloud.ports.values())), "id": "p", "device_id": server["id"]}
    cloud.ports["p"] = {**port, "network_id": "net", "mac_address": "x"}
    with pytest.raises(ClusterError, match=f"in network net.*remove port {server['id']} p"):
        commands.replace_members(cloud, only(cloud), [1], Secrets(), PACE)


def test_a_server_that_comes_later_is_taken_in() -> None:
    cloud = made()
    adopt(cloud)
    first = only(cloud).wish
    add(cloud, "train-3")
    assert (only(cloud).state, only(cloud).strangers) == (ClusterState.ACTIVE, ("train-3",))
    cluster = adopt(cloud, None)
    assert cluster.wish is not None
    assert first is not None
    assert (cluster.wanted, cluster.wish.generation) == ({0, 1, 2, 3}, first.generation + 1)
    assert cluster.wish.user_data == ""
    cloud.log.clear()
    adopt(cloud, None)
    assert cloud.log == []


def test_a_turn_that_is_not_finished_comes_first() -> None:
    cloud = made()
    wish = adopt(cloud).wish
    assert wish is not None
    turned = attrs.evolve(wish, turn="reboot-2", generation=2)
    for id in cloud.servers:
        cloud.set_wish(turned, next(iter(cloud.groups)), id)
    adopt(cloud, None)
    add(cloud, "train-3")
    with pytest.raises(ClusterError, match="its reboot is not finished: openstack hpc cluster reb"):
        adopt(cloud, None)


def test_marks_of_one_kind_say_nothing_to_the_other() -> None:
    """A server of an ordinary group that says that it is adopted is a stranger there."""
    cloud = made()
    cluster = adopt(cloud)
    (group,) = cloud.groups.values()
    (server, *_) = cloud.servers.values()
    group["name"] = cluster_wish.to_group_name(ClusterWish("o", frozenset({1}), "f"), "a")
    (named,) = cloud.clusters()
    assert (named.adopted, named.members, len(named.strangers)) == (False, (), 3)
    group["name"] = "stack-7"
    server["tags"] = [wishes.member_tag_of(cluster.id)]
    assert only(cloud).strangers == ("train-0",)


def test_clients_that_know_nothing_of_it_see_no_mark() -> None:
    """Their tag, item and description are others: to them there is no cluster."""
    cloud = made()
    adopt(cloud)
    commands.scale_cluster(cloud, only(cloud), {0, 1, 2, 3}, Secrets(), PACE)
    for server in cloud.servers.values():
        assert "hpc_cluster_group" not in server["metadata"]
        assert not any(tag.startswith(wishes.MARK) for tag in server["tags"])
    for port in cloud.ports.values():
        assert not port["description"].startswith(wishes.MARK)


def test_no_wish_of_a_stranger_changes_which_marks_are_written() -> None:
    """A member of an ordinary cluster may say that it is adopted: its wish does not count."""
    plain = ClusterWish("train", frozenset({1}), "f", image="i")
    liar = attrs.evolve(plain, adopted=True, generation=9)
    member = model.ClusterMember("s", "train-1", "ACTIVE", wish=liar)
    assert Cluster("g", members=(member,)).wish is None
    assert Cluster("g", members=(member,), adopted=True).wish == liar


@given(st.sets(st.integers(0, 30), min_size=1))
def test_number_0_is_one_of_adopted_clusters_alone(members: set[int]) -> None:
    wish = ClusterWish("train", frozenset(members), "f", adopted=True)
    assert cluster_wish.read_cluster_wish(cluster_wish.write_cluster_wish(wish)) == wish
    plain = attrs.evolve(wish, adopted=False)
    text = cluster_wish.write_cluster_wish(plain)
    if 0 in members:
        with pytest.raises(WireError, match="within 1 to"):
            cluster_wish.read_cluster_wish(text)
    else:
        assert cluster_wish.read_cluster_wish(text) == plain
    assert wishes.member_number_of("train", "train-0") is None
    assert wishes.member_number_of("train", "train-0", True) == 0


def test_secrets_that_no_record_knows() -> None:
    wish = ClusterWish("train", frozenset({1}), "f", image="i", user_data=UNKNOWN, adopted=True)
    with pytest.raises(WishError, match="--no-user-data if they have none"):
        wishes.check_wish_secrets(wish, Secrets())
    wishes.check_wish_secrets(wish, Secrets(b"#!"))
    wishes.check_wish_secrets(wish, Secrets(no_user_data=True))
    booted = attrs.evolve(wish, image="", volumes=UNKNOWN)
    with pytest.raises(WishError, match="no record says how those were made"):
        wishes.check_wish_secrets(booted, Secrets(no_user_data=True))
