# SPDX-License-Identifier: Apache-2.0
"""A server's direct port of Neutron, beside its GPU: at the level of the flavor, or refused.

The default shape keeps one adapter for the ports of a network. What counts is what the guest
reports: the port's own MAC on a virtual function, and which GPU it has.
"""

import json

import pytest

from nova_hpc_common.level import Level, common_level
from nova_hpc_lab import evidence, observe
from nova_hpc_lab.node import qemu
from nova_hpc_lab.node.shape import Shape

NETWORK = "fast"
PHYSICAL = "physnet1"
VF = ":".join(qemu.VF_IDS)
GPU = ":".join(qemu.GPU_IDS)
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:guest_topology": "mirror",
}
LEVELS = ("root", "switch")
BUILD = "compute__do_build_and_run_instance"


@pytest.fixture
def network(lab):
    """A network on the adapter that is kept for ports, and a flavor for each level."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    lab.openstack(
        *("network", "create", "--provider-network-type", "flat"),
        *("--provider-physical-network", PHYSICAL, NETWORK),
    )
    lab.openstack(
        *("subnet", "create", "--network", NETWORK, "--subnet-range", "198.51.100.0/24"),
        *("--no-dhcp", NETWORK),
    )
    for level in LEVELS:
        properties = {**PROPERTIES, "hpc:affinity": level}
        words = [part for key in properties for part in ("--property", f"{key}={properties[key]}")]
        size = ("--vcpus", "1", "--ram", "512", "--disk", "1")
        lab.openstack("flavor", "create", f"lab.port.{level}", *size, *words)
    yield NETWORK
    for level in LEVELS:
        lab.openstack("server", "delete", "--wait", f"port-{level}", check=False)
        lab.openstack("port", "delete", f"port-{level}", check=False)
        lab.openstack("flavor", "delete", f"lab.port.{level}")
    lab.openstack("network", "delete", NETWORK)


def _server(lab, level):
    """A server with a GPU and a direct port, at that level; the port's MAC."""
    name = f"port-{level}"
    made = lab.openstack(
        *("port", "create", "--network", NETWORK, "--vnic-type", "direct", "-f", "json", name)
    )
    lab.openstack(
        *("server", "create", "--flavor", f"lab.port.{level}", "--image", "hpc-guest"),
        *("--port", name, "--wait", name),
        check=False,
    )
    return lab.show(name), json.loads(made)["mac_address"]


def _devices(lab):
    """The node's assignable functions, as its inventory and its adapters have them."""
    inventory = json.loads(lab.inside("/opt/nova-hpc/venv/bin/nova-hpc inventory --format json"))
    links = json.loads(lab.inside("ip -json link show"))
    return evidence.devices_of(inventory, links, {"hca2": PHYSICAL})


@pytest.mark.usefixtures("network")
def test_a_direct_port_beside_the_gpu(lab):
    server, mac = _server(lab, "root")
    assert server["status"] == "ACTIVE", f"{server.get('fault')}\n{lab.tail()}"
    report = lab.report(server["id"])
    # The guest: its only virtual function has the port's MAC and a driver.
    (function,) = (one for one in report.functions if one.ids == VF)
    assert (function.macs, function.driver) == ((mac,), "igbvf")
    (gpu,) = (one for one in report.functions if one.ids == GPU)
    # Its own command finds them at the places of the host's tree that it was promised.
    assert (report.check_status, report.check) == (
        0,
        ("As promised: 2 devices, 1 NUMA nodes, topology mirror.",),
    )
    # The host: which devices these are, by what the guest says of them, and where they sit.
    devices = _devices(lab)
    given = [
        one
        for one in devices.values()
        if one.identity in {evidence.identity(each.bars, each.macs) for each in (function, gpu)}
    ]
    print(f"\nRESULT: {mac}: {[(one.address, one.role, one.identity) for one in given]}")
    assert sorted(one.role for one in given) == ["gpu", PHYSICAL]
    assert common_level(one.location for one in given) is Level.ROOT
    # Nova has recorded just these, and Neutron has bound the port.
    records = observe.pci_records(lab.settings, server["id"])
    assert {one.address for one in records} == {one.address for one in given}
    (port,) = json.loads(lab.openstack("port", "list", "--server", server["id"], "-f", "json"))
    assert (port["MAC Address"], port["Status"]) == (mac, "ACTIVE")
    decision = observe.stored_decision(lab.settings, server["id"])
    assert (decision.asked, decision.reached) == (Level.ROOT, Level.ROOT)

    # No switch of the node has a GPU and a function for ports: the scheduler says so.
    refused, _ = _server(lab, "switch")
    assert refused["status"] == "ERROR"
    print(f"RESULT: {refused['fault']['message']}")
    assert "1 gpu" in refused["fault"]["message"]
    assert "under one switch" in refused["fault"]["message"]
    assert refused["OS-EXT-SRV-ATTR:host"] is None
    # No node has begun to build it.
    assert BUILD in _begun(lab, server["id"])
    assert BUILD not in _begun(lab, refused["id"])
    log = (lab.state / "nodes" / "hpc1" / "nova-compute.log").read_text(errors="replace")
    assert server["id"] in log
    assert refused["id"] not in log

    # What the server had goes back, with the adapter's own MAC.
    lab.openstack("server", "delete", "--wait", server["id"])
    (kept,) = (one.address for one in given if one.role == PHYSICAL)
    own = evidence.planned(Shape.load("two-socket"), 1)
    lab.until(lambda: _devices(lab)[kept].identity in own, f"{kept} has its own MAC again")


def _begun(lab, server):
    """What has been done for a server's creation."""
    (event,) = json.loads(lab.openstack("server", "event", "list", server, "-f", "json"))
    words = ("server", "event", "show", server, event["Request ID"], "-f", "json")
    return [each["event"] for each in json.loads(lab.openstack(*words))["events"]]
