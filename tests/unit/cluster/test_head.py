# SPDX-License-Identifier: Apache-2.0
"""The head of a cluster: what it is made of, what it counts for, and when it acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import yaml

from nova_hpc_client.cluster import head as heads
from nova_hpc_client.cluster import hostfiles
from nova_hpc_client.cluster.addresses import MemberAddressError, needs_config_drive
from nova_hpc_client.cluster.life_cycle import commands, decide, verbs
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.life_cycle.steps import Act, MakeHead, MakeServers
from nova_hpc_client.cluster.life_cycle.verbs import REBOOT, REBUILD, SHELVE, START, STOP, UNSHELVE
from nova_hpc_client.cluster.members.model import Cluster, ClusterState, number_members
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from nova_hpc_common.wire.version import LaterError
from nova_hpc_guest import cluster_files, host_list
from nova_hpc_guest.host_list import HEAD, HostList, ListedHost, PublicKeys, WrongHostListError
from tests.unit.cluster.model_cloud import ModelCloud

GROUP = "12345678-1234-4234-8234-123456789012"
NETS = (Nic("login"), Nic("ib", "direct"), Nic("data", "normal"))
WISH = ClusterWish(
    *("train", frozenset({1, 2}), "42"), image="img", nics=NETS, head="7", head_image="himg"
)
PLAIN = attrs.evolve(WISH, nics=(), hosts=True)
PACE = Pace(sleep=lambda seconds: None, clock=lambda: 0.0)
FLAVOR = {"name": "login", "extra_specs": {"hw:cpu_policy": "shared"}}


class Recorder(ModelCloud):
    """Remembers which server each step was for."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, str]] = []

    def ask_server(self, server: str, action: str) -> None:
        super().ask_server(server, action)
        self.steps.append((self.servers[server]["name"].removeprefix("train-"), action))

    def mark_turn(self, wish: ClusterWish, server: str) -> None:
        super().mark_turn(wish, server)
        self.steps.append((self.servers[server]["name"].removeprefix("train-"), "mark"))


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def made(wish: ClusterWish = PLAIN) -> Recorder:
    cloud = Recorder()
    commands.create_cluster(cloud, wish, Secrets(), Nearness(), "a77e", PACE)
    cloud.log.clear()
    return cloud


def found(cloud: ModelCloud) -> Cluster:
    (cluster,) = cloud.clusters()
    return cluster


def server_of(cloud: ModelCloud, name: str) -> dict[str, Any]:
    (server,) = [each for each in cloud.servers.values() if each["name"] == name]
    return server


# -- what it is made of --------------------------------------------------------------------


def test_the_request_for_the_head() -> None:
    secrets = Secrets(b"#!/bin/sh", ("v1", "v2"))
    wish = attrs.evolve(WISH, image="", key="k", zone="z", single=True, **secrets.digests)
    body = heads.head_body(wish, GROUP, secrets)
    server = body["server"]
    # No hint: it is in no server group, and counts for no places of a domain.
    assert body.keys() == {"server"}
    assert (server["name"], server["flavorRef"], server["imageRef"]) == ("train-head", "7", "himg")
    # Nova makes its ports, and none that needs a device; the members' volumes are not its own.
    assert server["networks"] == [{"uuid": "login"}, {"uuid": "data"}]
    assert "block_device_mapping_v2" not in server
    assert (server["key_name"], server["availability_zone"]) == ("k", "z")
    assert server["user_data"] == "IyEvYmluL3No"
    assert server["tags"] == [f"hpc-cluster={GROUP}"]
    metadata = server["metadata"]
    assert (metadata["hpc_cluster_role"], metadata["hpc_cluster_group"]) == ("head", GROUP)
    # Its metadata say what the cluster is to be, as a member's do.
    assert cluster_wish.from_metadata(metadata) == wish


def test_a_cloud_of_volumes_has_its_head_on_one() -> None:
    body = heads.head_body(attrs.evolve(PLAIN, boot_gib=9), GROUP, Secrets())
    (disk,) = body["server"]["block_device_mapping_v2"]
    assert (disk["uuid"], disk["volume_size"]) == ("himg", 9)
    assert disk["delete_on_termination"] is True
    assert "hpc_host_keys" in body["server"]["metadata"]


@pytest.mark.parametrize(
    ("wish", "specs", "why"),
    [
        (WISH, {"pci_passthrough:alias": "gpu:1"}, "has pci_passthrough:alias, .* without"),
        (WISH, {"hpc:shared_memory": "64"}, "has hpc:shared_memory, and a head has no devices"),
        (WISH, {"accel:device_profile": "x"}, "has accel:device_profile"),
        (WISH, {"resources:VGPU": "1"}, "has resources:VGPU"),
        (attrs.evolve(WISH, head_image=""), {}, "--head-image"),
        (attrs.evolve(WISH, nics=NETS[1:2]), {}, "no network: .* add --network NETWORK"),
        (attrs.evolve(WISH, nics=(), networks="none"), {}, "would have no network"),
    ],
)
def test_what_is_no_head(wish: ClusterWish, specs: dict[str, str], why: str) -> None:
    with pytest.raises(WishError, match=why):
        heads.check_head(wish, {"name": "login", "extra_specs": specs})


@pytest.mark.parametrize("wish", [WISH, PLAIN, attrs.evolve(WISH, nics=NETS[2:])])
def test_what_is_one(wish: ClusterWish) -> None:
    heads.check_head(wish, FLAVOR)
    heads.check_head(wish, {"name": "login"})


def test_a_head_without_an_address_is_refused() -> None:
    with pytest.raises(MemberAddressError, match="the head would have no address"):
        needs_config_drive(heads.head_nics(WISH), {"ib": [{}]}, "the head")


# -- an older release ----------------------------------------------------------------------


def test_a_release_that_knows_no_head_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count the head as a member too many: it must not read the wish."""
    cloud = made()
    for document in ("CLUSTER_WISH", "CLUSTER_LABEL"):
        older = attrs.evolve(getattr(cluster_wish, document), reads=(1,))
        monkeypatch.setattr(cluster_wish, document, older)
    for wish in (PLAIN, attrs.evolve(PLAIN, key="k" * 200)):
        with pytest.raises(LaterError, match="update nova-hpc"):
            cluster_wish.from_group_name(cluster_wish.to_group_name(wish, "a"))
    cluster = found(cloud)
    assert (cluster.state, cluster.name) == (ClusterState.UNKNOWN, "train")
    with pytest.raises(ClusterError, match="it can only be deleted"):
        commands.resume_cluster(cloud, cluster, None, Secrets(), PACE)
    assert len(cloud.servers) == 3
    commands.delete_cluster(cloud, cluster, PACE)
    assert not cloud.servers
    assert not cloud.groups


def test_without_a_head_the_wish_is_as_it_was() -> None:
    wish = attrs.evolve(PLAIN, head="", head_image="")
    assert cluster_wish.write_cluster_wish(wish).startswith('{"v":1,')
    assert cluster_wish.write_cluster_wish(PLAIN).startswith('{"v":2,')
    assert wish.digest != PLAIN.digest


def test_the_members_image_changes_without_the_heads() -> None:
    alike = attrs.evolve(PLAIN, head_image=PLAIN.image)
    text = cluster_wish.write_cluster_wish(alike)
    assert '"ei"' not in text
    assert cluster_wish.read_cluster_wish(text) == alike
    rebuilt = attrs.evolve(alike, image="new")
    assert cluster_wish.read_cluster_wish(cluster_wish.write_cluster_wish(rebuilt)) == rebuilt


# -- what it counts for --------------------------------------------------------------------

RESUME = "openstack hpc cluster create --resume train, or openstack hpc cluster delete train"


@pytest.mark.parametrize(
    ("values", "state", "reason", "command"),
    [
        ({}, "ACTIVE", "", ""),
        (
            {"status": "BUILD", "OS-SRV-USG:launched_at": ""},
            *("BUILDING", "train-head is building", RESUME),
        ),
        (
            {"status": "SHUTOFF"},
            *("DEGRADED", "train-head is SHUTOFF"),
            "openstack hpc cluster start train, or openstack hpc cluster stop train",
        ),
        (
            {"status": "ERROR", "fault": {"message": "the node died"}},
            *("ERROR", "train-head: the node died"),
            "openstack hpc cluster replace train train-head",
        ),
        (
            {"status": "ERROR", "name": "mine", "fault": {"message": "x"}},
            *("ERROR", "mine: x", "openstack hpc cluster replace train train-head"),
        ),
        (
            {"status": "PAUSED", "name": "mine"},
            *("DEGRADED", "mine is PAUSED", "openstack server unpause {id}"),
        ),
        ({"OS-EXT-STS:task_state": "deleting"}, "INCOMPLETE", "train-head is missing", RESUME),
    ],
)
def test_the_state_of_the_head(
    values: dict[str, Any], state: str, reason: str, command: str
) -> None:
    cloud = made()
    head = server_of(cloud, "train-head")
    head |= values
    cluster = found(cloud)
    assert (cluster.state.value, cluster.reason) == (state, reason)
    assert decide.format_finish_commands(cluster) == command.format(id=head["id"])
    # It never is one of the members.
    numbered = number_members(cluster)
    assert numbered.by_number.keys() == {1, 2}
    assert len(cluster.members) == 2


def test_of_two_heads_the_older_one_stays() -> None:
    cloud = made()
    cluster = found(cloud)
    (first,) = cluster.heads
    assert cluster.wish is not None
    cloud.make_head(cluster.wish, cluster.id, Secrets())
    for _ in range(3):
        cloud.tick()
    assert found(cloud).reason == "1 servers too many"
    made_again = commands.resume_cluster(cloud, cluster, None, Secrets(), PACE)
    assert [head.id for head in made_again.heads] == [first.id]


def test_a_cluster_is_changing_while_surplus_servers_are_deleted() -> None:
    cloud = made()
    cluster = found(cloud)
    assert cluster.wish is not None
    cloud.make_head(cluster.wish, cluster.id, Secrets())
    for _ in range(3):
        cloud.tick()
    second = max(found(cloud).heads, key=lambda head: head.created)
    cloud.servers[second.id]["OS-EXT-STS:task_state"] = "deleting"
    going = found(cloud)
    assert (going.state.value, going.reason) == ("CHANGING", "1 servers are being deleted")


@pytest.mark.parametrize("values", [{"name": "login"}, {"role": ""}])
def test_a_head_that_its_user_has_changed_stays_the_head(values: dict[str, str]) -> None:
    cloud = made()
    head = server_of(cloud, "train-head")
    head["name"] = values.get("name", head["name"])
    head["metadata"]["hpc_cluster_role"] = values.get("role", "head")
    commands.resume_cluster(cloud, found(cloud), None, Secrets(), PACE)
    assert head["id"] in cloud.servers
    assert len(cloud.servers) == 3


def test_a_missing_head_needs_the_user_data() -> None:
    secrets = Secrets(b"#!/bin/sh")
    cloud = Recorder()
    wish = attrs.evolve(PLAIN, **secrets.digests)
    commands.create_cluster(cloud, wish, secrets, Nearness(), "a77e", PACE)
    commands.resume_cluster(cloud, found(cloud), None, Secrets(), PACE)
    del cloud.servers[server_of(cloud, "train-head")["id"]]
    cluster = found(cloud)
    assert (cluster.state.value, cluster.reason) == ("INCOMPLETE", "train-head is missing")
    assert decide.format_finish_commands(cluster) == RESUME
    with pytest.raises(ClusterError, match="give --user-data again"):
        commands.resume_cluster(cloud, found(cloud), None, Secrets(), PACE)
    commands.resume_cluster(cloud, found(cloud), None, secrets, PACE)
    assert server_of(cloud, "train-head")["status"] == "ACTIVE"


def test_head_and_members_are_asked_for_at_once() -> None:
    cloud = Recorder()
    group = cloud.make_group(PLAIN, "a77e", "affinity", None)
    for wish, count in ((PLAIN, (1, 2)), (attrs.evolve(PLAIN, single=True), (1,))):
        move = decide.plan_fulfilment(wish, cloud.look(group))
        assert move == Act((MakeServers(count), MakeHead()))


def test_all_members_can_be_replaced_while_the_head_knows_the_wish() -> None:
    cloud = made()
    smaller = commands.scale_cluster(cloud, found(cloud), {2}, Secrets(), PACE)
    head = smaller.heads[0].id
    after = commands.replace_members(cloud, smaller, [2], Secrets(), PACE)
    assert after.heads[0].id == head
    with pytest.raises(ClusterError, match="these are all members"):
        commands.replace_members(cloud, after, [2], Secrets(), PACE, head=True)
    bare = made(attrs.evolve(PLAIN, head="", head_image=""))
    with pytest.raises(ClusterError, match="cluster train has no train-head"):
        commands.replace_members(bare, found(bare), [], Secrets(), PACE, head=True)


# -- when it acts --------------------------------------------------------------------------


def test_the_head_stops_last_and_starts_first() -> None:
    cloud = made()
    for verb in (STOP, START, SHELVE, UNSHELVE):
        verbs.change_members(cloud, found(cloud), verb, PACE)
    names = [name for name, _ in cloud.steps]
    assert names == ["1", "2", "head", "head", "1", "2"] * 2
    cloud.steps.clear()
    verbs.turn_members(cloud, found(cloud), REBOOT, PACE)
    words = ("os-stop", "mark", "os-start")
    assert cloud.steps[:3] == [("head", word) for word in words]
    assert {name for name, _ in cloud.steps[3:]} == {"1", "2"}
    assert found(cloud).state is ClusterState.ACTIVE


def test_a_rebuild_leaves_the_head_as_it_is() -> None:
    cloud = made()
    head = server_of(cloud, "train-head")
    head |= {"status": "ERROR", "fault": {"message": "x"}}
    verbs.turn_members(cloud, found(cloud), REBUILD, PACE, "new")
    assert "_rebuilt" not in head
    wish = found(cloud).wish
    assert wish is not None
    assert (wish.turn, wish.image, wish.head_image) == ("", "new", "himg")


@pytest.mark.parametrize("verb", [STOP, START, SHELVE])
def test_a_head_that_cannot_follow_stops_all(verb: Any) -> None:
    cloud = made()
    if verb is START:
        verbs.change_members(cloud, found(cloud), STOP, PACE)
    cloud.steps.clear()
    server_of(cloud, "train-head")["locked"] = True
    with pytest.raises(ClusterError, match=r"train-head is locked: .*unlock train-head"):
        verbs.change_members(cloud, found(cloud), verb, PACE)
    assert cloud.steps == []


def test_a_head_without_a_place_shelves_nothing_else() -> None:
    cloud = made()
    verbs.change_members(cloud, found(cloud), SHELVE, PACE)
    cloud.steps.clear()
    cloud.room, cloud.no_host = 0, "No valid host"
    with pytest.raises(ClusterError, match=r"train-head found no host \(No valid host\); those"):
        verbs.change_members(cloud, found(cloud), UNSHELVE, PACE)
    assert cloud.steps == [("head", "unshelve")]
    cloud.room = 2
    with pytest.raises(ClusterError, match="1 of 2 members fit"):
        verbs.change_members(cloud, found(cloud), UNSHELVE, PACE)
    assert {each["status"] for each in cloud.servers.values()} == {"SHELVED_OFFLOADED"}


# -- what others read of it ----------------------------------------------------------------


def key(letter: str) -> str:
    return f"AAAAC3NzaC1lZDI1NTE5AAAAI{letter * 43}"


KEYS = PublicKeys(key("A"), key("B"))
LISTED = HostList(
    "train",
    (ListedHost(2, "192.0.2.7", KEYS), ListedHost(1, "192.0.2.5", KEYS)),
    slots=2,
    head=ListedHost(HEAD, "192.0.2.9", PublicKeys(key("C"), key("D"))),
)


def test_the_head_is_known_and_computes_nothing() -> None:
    assert host_list.read_host_list(host_list.write_host_list(LISTED)) == LISTED
    assert cluster_files.merge_hosts(b"", LISTED).decode().splitlines()[0] == (
        "192.0.2.9 train-head # nova-hpc cluster"
    )
    known = cluster_files.format_known_hosts(LISTED).splitlines()
    assert known[0] == f"train-head,192.0.2.9 ssh-ed25519 {key('D')}"
    assert len(known) == 3
    assert "head" not in cluster_files.format_host_file(LISTED)
    assert "head" not in cluster_files.format_rank_file(LISTED)


@pytest.mark.parametrize(
    "head", ['["192.0.2.9"]', '["x y",0]', '["192.0.2.9",9]', '["127.0.0.1",0]', "7", "{}"]
)
def test_a_wrong_head_is_no_host_list(head: str) -> None:
    text = host_list.write_host_list(LISTED).replace('"h":["192.0.2.9",0]', f'"h":{head}')
    assert f'"h":{head}' in text
    with pytest.raises(WrongHostListError):
        host_list.read_host_list(text)


def hosts_of(cloud: ModelCloud, **more: Any) -> tuple[Sequence[Any], Any]:
    cluster = found(cloud)
    return hostfiles.list_cluster_hosts(cluster, **more), hostfiles.find_head_host(cluster, **more)


def test_host_files() -> None:
    cloud = made()
    for server in cloud.servers.values():
        server["addresses"]["ib"] = [{"addr": "10.0.0.1"}]
    head_server = server_of(cloud, "train-head")
    head_server["addresses"] = {"net": [{"addr": "192.0.2.99"}]}
    hosts, head = hosts_of(cloud, network="ib")
    assert len(hosts) == 2
    lines = hostfiles.format_slurm_nodes(hosts, "train", head).splitlines()
    assert lines[0] == "SlurmctldHost=train-head(192.0.2.99)"
    assert lines[-1] == "NodeSet=train Nodes=train-1,train-2"
    assert [line.partition(" ")[0] for line in lines[1:-1]] == [
        *("NodeName=train-1", "NodeName=train-2")
    ]
    bare = hostfiles.format_slurm_nodes(*[*hosts_of(cloud, names=True)[:1], "train"])
    assert "SlurmctldHost" not in bare
    hosts, head = hosts_of(cloud, names=True)
    assert hostfiles.format_slurm_nodes(hosts, "train", head).startswith(
        "SlurmctldHost=train-head\n"
    )
    for write in (hostfiles.format_openmpi_hosts, hostfiles.format_pdsh_hosts):
        assert "head" not in write(hosts, "train", head)
    groups = yaml.safe_load(hostfiles.format_ansible_inventory(hosts, "all", head))["all"]
    assert groups["children"].keys() == {"hpc_all", "hpc_all_head"}
    assert groups["children"]["hpc_all_head"]["hosts"] == {"train-head": {"hpc_vcpus": 4}}
    head_server["name"] = "x\nNodeName=evil"
    with pytest.raises(hostfiles.HostError):
        hostfiles.format_slurm_nodes(*hosts_of(cloud)[:1], "train", hosts_of(cloud)[1])
