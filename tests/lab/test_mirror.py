# SPDX-License-Identifier: Apache-2.0
"""What a guest sees of its devices, against what the host has: every pair."""

import json

import pytest

from nova_hpc_common.level import Distance
from nova_hpc_lab import compare, evidence

FLAVOR = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:numa_nodes": "2",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:6,vf:2",
    "hpc:affinity": "numa",
    "hpc:group": "gpu:3,vf:1",
}

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("lab", ["mirror"], indirect=True)]


def _server(lab, word):
    """A server of a flavor with that word; its id."""
    name = f"mirror-{word}"
    properties = {**FLAVOR, "hpc:guest_topology": word}
    words = [part for key in properties for part in ("--property", f"{key}={properties[key]}")]
    lab.openstack(
        *("flavor", "create", name, "--vcpus", "2", "--ram", "768", "--disk", "1", *words)
    )
    lab.openstack(
        *("server", "create", "--flavor", name, "--image", "hpc-guest", "--nic", "none"),
        *("--wait", name),
        check=False,
    )
    server = lab.show(name)
    assert server["status"] == "ACTIVE", server.get("fault")
    return server["id"]


def _given(lab, server):
    """The devices of the server's domain, as the host's inventory has them."""
    domain = evidence.parse_domain(
        lab.inside(f"virsh -c qemu:///system dumpxml --inactive {server}")
    )
    inventory = json.loads(lab.inside("/opt/nova-hpc/venv/bin/nova-hpc inventory --format json"))
    links = json.loads(lab.inside("ip -json link show"))
    devices = evidence.devices_of(inventory, links)
    return [devices[address] for address in domain.hostdevs]


def _pairs(lab, word):
    server = _server(lab, word)
    try:
        report = lab.report(server)
        found = compare.pairs(_given(lab, server), report)
        print(f"\n{word}:", *found, sep="\n  ")
        assert len(found) == 8 * 7 // 2
        # The guest's own command, on what it was promised, says so too.
        assert (report.check_status, report.check) == (
            0,
            (f"As promised: 8 devices, 2 NUMA nodes, topology {word}.",),
        )
        return found, report
    finally:
        lab.openstack("server", "delete", "--wait", server, check=False)
        lab.openstack("flavor", "delete", f"mirror-{word}", check=False)


def test_mirror(lab):
    found, report = _pairs(lab, "mirror")
    for pair in found:
        assert pair.host is pair.guest, str(pair)
    # The shape has every distance, so that nothing is equal for want of difference.
    assert {pair.guest for pair in found} == set(Distance)
    assert {place.numa for place in compare.guest_places(report).values()} >= {0, 1}


def test_numa(lab):
    found, _ = _pairs(lab, "numa")
    for pair in found:
        assert pair.guest is (Distance.SYS if pair.host is Distance.SYS else Distance.PHB)


def test_flat(lab):
    found, report = _pairs(lab, "flat")
    # One root, and near to no cell: what stock Nova shows.
    assert {pair.guest for pair in found} == {Distance.PHB}
    assert {place.numa for place in compare.guest_places(report).values()} == {None}
