# SPDX-License-Identifier: Apache-2.0
"""Virtual clusters on two nodes, as their users have them: ``openstack hpc cluster``.

Nova's server group wants members on different hosts where that can be (soft anti-affinity). So
a cluster has both nodes where these are in one leaf by the fabric's map, and one of them where
each node is a leaf of its own.
"""

import json
from pathlib import Path

import pytest

from nova_hpc_lab import observe
from nova_hpc_lab.node import qemu

SHAPE = Path(__file__).with_name("two-nodes.yaml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 2), id="two-nodes")], indirect=True),
]

NODES = ("hpc1", "hpc2")
#: Host -> leaf.
TOGETHER = {"hpc1": "l1", "hpc2": "l1"}
APART = {"hpc1": "l1", "hpc2": "l2"}
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1,vf:1",
    "hpc:affinity": "root",
    "hpc:fabric": "leaf",
}
FLAVOR = "lab.member"
DEVICES = sorted(":".join(ids) for ids in (qemu.GPU_IDS, qemu.VF_IDS))
#: What starts in emulation takes its time.
PATIENCE = ("--timeout", "900")
#: What this project's own records in Placement are called.
RECORDS = ("hpc-fabric:", "hpc-room:", "hpc-group:", "hpc-member:")


@pytest.fixture(scope="module")
def rack(lab):
    """The two nodes, and a flavor of members."""
    words = [part for key in PROPERTIES for part in ("--property", f"{key}={PROPERTIES[key]}")]
    lab.openstack("flavor", "create", FLAVOR, "--vcpus", "1", "--ram", "384", "--disk", "1", *words)
    yield lab
    for each in json.loads(lab.openstack("hpc", "cluster", "list", "-f", "json")):
        lab.openstack("hpc", "cluster", "delete", each["ID"], check=False)
    lab.openstack("flavor", "delete", FLAVOR)
    for each in json.loads(lab.openstack("aggregate", "list", "-f", "json")):
        for node in NODES:
            words = ("aggregate", "remove", "host", each["Name"], node)
            lab.openstack(*words, check=False)
        lab.openstack("aggregate", "delete", each["Name"])
    # Other tests know of one node; what is no more would stay in Nova and Placement.
    lab.up("--nodes", "1")
    words = ("compute", "service", "list", "--host", NODES[1], "-f", "json")
    for each in json.loads(lab.openstack(*words)):
        lab.openstack("compute", "service", "delete", each["ID"])


def _has_leaves(lab, folder, leaves):
    """Write a map of the fabric into Nova."""
    lines = [f"  - {{spine: s1, leaf: {leaf}, hosts: {host}}}" for host, leaf in leaves.items()]
    path = folder / "map.yaml"
    path.write_text("\n".join(["nova_hpc_fabric: 1", "name: lab", "domains:", *lines, ""]))
    print(path.read_text() + _nova_hpc(lab, "fabric", "sync", str(path), "--yes"))


def _nova_hpc(lab, *words, status=0):
    done = lab.run(*words)
    assert done.returncode == status, done.stdout + done.stderr
    return f"$ nova-hpc {' '.join(words)}\n{done.stdout}{done.stderr}"


def _cluster(lab, *words, status=0):
    """What ``openstack hpc cluster`` prints, which goes to the transcript as well."""
    done = lab.client("hpc", "cluster", *words)
    said = done.stdout + done.stderr
    print(f"$ openstack hpc cluster {' '.join(words)}\n{said}", flush=True)
    assert done.returncode == status, said
    return done


def _show(lab, name):
    return json.loads(lab.openstack("hpc", "cluster", "show", name, "-f", "json"))


def _servers(lab):
    """Name -> server, as an operator sees it."""
    return {each["Name"]: lab.show(each["ID"]) for each in lab.servers()}


def _host(server):
    return server["OS-EXT-SRV-ATTR:host"]


def _groups(lab):
    """The domains that server groups have, as ``nova-hpc fabric groups`` shows them."""
    config = lab.state / "etc" / "nova" / "nova.conf"
    done = lab.run("fabric", "groups", "--config-file", str(config), "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _ports(lab):
    """Id -> MAC and server of every port."""
    ports = lab.connection.network.ports()
    return {each.id: (each.mac_address, each.device_id) for each in ports}


def _leaks(lab):
    """Everything that a cluster may leave in Nova, Neutron and Placement."""
    config = lab.state / "etc" / "nova" / "nova.conf"
    print(_nova_hpc(lab, "fabric", "reap", "--config-file", str(config)))
    providers = lab.connection.placement.get("/resource_providers").json()["resource_providers"]
    return {
        "servers": [each["Name"] for each in lab.servers()],
        "server groups": [each.name for each in lab.connection.compute.server_groups()],
        "ports": sorted(_ports(lab)),
        "records": [each["name"] for each in providers if each["name"].startswith(RECORDS)],
        "devices": [one for one in observe.providers(lab.connection) if one.used],
        "allocations": [
            each["name"]
            for each in providers
            if lab.connection.placement.get(
                f"/resource_providers/{each['uuid']}/allocations"
            ).json()["allocations"]
        ],
        "domains in libvirt": [
            name
            for node in NODES
            for name in lab.inside("virsh -c qemu:///system list --all --name", node).split()
        ],
    }


def _nothing_is_left(lab):
    left = _leaks(lab)
    print(f"RESULT: left: {left}")
    assert not any(left.values()), left


def _has_devices(lab, name):
    report = lab.report(name)
    found = sorted(one.ids for one in report.functions if one.ids in DEVICES)
    assert found == DEVICES
    assert report.check_status == 0, report.check


def _dies(lab, cluster, name):
    """The guest of a member is killed, and its cluster notices."""
    server = lab.show(name)
    lab.inside(f"virsh -c qemu:///system destroy {server['id']}", _host(server))
    lab.until(lambda: _show(lab, cluster)["state"] == "DEGRADED", f"{cluster} has lost a member")
    return server


def test_a_cluster_on_two_nodes(rack, tmp_path):
    """Created, looked at, repaired, grown, shrunk and deleted; each member has a port."""
    lab = rack
    _has_leaves(lab, tmp_path, TOGETHER)
    _cluster(
        *(lab, "create", "train", "--members", "2", "--flavor", FLAVOR),
        *("--image", "hpc-guest", "--nic", "net-id=lab", *PATIENCE),
    )
    _cluster(lab, "show", "train")
    _cluster(lab, "hosts", "train", "--format", "openmpi")
    _cluster(lab, "topology", "train")
    shown = _show(lab, "train")
    assert (shown["state"], shown["members"]) == ("ACTIVE", ["train-1", "train-2"])
    before = _servers(lab)
    assert {_host(each) for each in before.values()} == set(NODES)
    (group,) = _groups(lab)
    print(f"RESULT: {group}")
    assert (group["Group"], group["Level"], group["Members"]) == (shown["id"], "leaf", 2)
    for name in before:
        _has_devices(lab, name)
    ports = _ports(lab)
    assert {owner for _, owner in ports.values()} == {one["id"] for one in before.values()}

    # One is killed, and replaced in the domain, with its name and its port.
    _dies(lab, "train", "train-1")
    _cluster(lab, "list", "--long")
    _cluster(lab, "replace", "train", "train-1", *PATIENCE)
    after = _servers(lab)
    assert after["train-1"]["id"] != before["train-1"]["id"]
    assert after["train-2"]["id"] == before["train-2"]["id"]
    macs = {key: mac for key, (mac, _) in ports.items()}
    assert {key: mac for key, (mac, _) in _ports(lab).items()} == macs
    (group,) = _groups(lab)
    assert (group["Group"], group["Members"]) == (shown["id"], 2)
    _has_devices(lab, "train-1")

    _cluster(lab, "scale", "train", "--members", "3", *PATIENCE)
    grown = _servers(lab)
    assert sorted(grown) == ["train-1", "train-2", "train-3"]
    assert {each["status"] for each in grown.values()} == {"ACTIVE"}
    assert len(_ports(lab)) == 3
    _has_devices(lab, "train-3")
    _cluster(lab, "topology", "train")
    _cluster(lab, "scale", "train", "--members", "2", *PATIENCE)
    left = _servers(lab)
    assert len(left) == 2
    # Those stay that are nearest to each other: now they share a node.
    assert len({_host(each) for each in left.values()}) == 1
    assert len(_ports(lab)) == 2
    _cluster(lab, "delete", "train", *PATIENCE)
    _nothing_is_left(lab)


def test_a_cluster_stays_in_its_leaf(rack, tmp_path):
    """Required is required: one leaf is one node here, which has room for two members."""
    lab = rack
    _has_leaves(lab, tmp_path, APART)
    create = ("--flavor", FLAVOR, "--image", "hpc-guest", "--network", "none", *PATIENCE)
    # All or none: no leaf has room for three, although the cloud has it for four.
    refused = _cluster(lab, "create", "wide", "--members", "3", *create, status=1)
    assert "No leaf has room for the 3 members of the server group" in refused.stderr
    assert "nothing is left of the cluster" in refused.stderr
    _nothing_is_left(lab)

    _cluster(lab, "create", "near", "--members", "2", *create)
    before = _servers(lab)
    (home,) = {_host(each) for each in before.values()}
    (group,) = _groups(lab)
    print(f"RESULT: {group}")
    assert group["Level"] == "leaf"
    # The other node is empty, and Nova would rather have it there.
    _dies(lab, "near", "near-2")
    _cluster(lab, "replace", "near", "near-2", *PATIENCE)
    after = _servers(lab)
    assert after["near-2"]["id"] != before["near-2"]["id"]
    assert {_host(each) for each in after.values()} == {home}
    _has_devices(lab, "near-2")
    # It cannot grow there, and is as before.
    refused = _cluster(lab, "scale", "near", "--members", "3", *PATIENCE, status=1)
    assert "the cluster has its 2 members as before" in refused.stderr
    assert {each["id"] for each in _servers(lab).values()} == {
        each["id"] for each in after.values()
    }
    _cluster(lab, "delete", "near", *PATIENCE)
    _nothing_is_left(lab)
