# SPDX-License-Identifier: Apache-2.0
"""Servers as their users have them: with a port of a network, and put away for a while.

The smallest flavor with devices; what counts is what the guest reports.
"""

import json

import pytest

from nova_hpc_lab.node import qemu

FLAVOR = "lab.server"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1,vf:1",
    "hpc:affinity": "numa",
}
pytestmark = pytest.mark.slow
DEVICES = sorted(":".join(ids) for ids in (qemu.GPU_IDS, qemu.VF_IDS))


@pytest.fixture
def create(lab):
    """Make a server of the flavor, and remove it at the end."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    words = [part for key in PROPERTIES for part in ("--property", f"{key}={PROPERTIES[key]}")]
    lab.openstack("flavor", "create", FLAVOR, "--vcpus", "1", "--ram", "512", "--disk", "1", *words)
    made = []

    def make(name, *network):
        made.append(name)
        lab.openstack(
            *("server", "create", "--flavor", FLAVOR, "--image", "hpc-guest", *network),
            *("--wait", name),
            check=False,
        )
        server = lab.show(name)
        assert server["status"] == "ACTIVE", f"{server.get('fault')}\n{lab.tail()}"
        return server["id"]

    yield make
    for name in made:
        lab.openstack("server", "delete", "--wait", name, check=False)
    lab.openstack("flavor", "delete", FLAVOR)


def _devices(report):
    return sorted(function.ids for function in report.functions if function.ids in DEVICES)


def test_a_port_of_a_network_beside_the_devices(lab, create):
    server = create("ported", "--network", "lab")
    (port,) = json.loads(lab.openstack("port", "list", "--server", server, "-f", "json"))
    report = lab.report(server)
    assert port["MAC Address"] in report.macs
    assert port["Status"] == "ACTIVE"
    assert _devices(report) == DEVICES
    assert report.check_status == 0, report.check


def test_a_server_that_is_shelved_gets_devices_again(lab, create):
    server = create("shelved", "--network", "lab")
    (port,) = json.loads(lab.openstack("port", "list", "--server", server, "-f", "json"))

    def settled(status):
        found = lab.show(server)
        assert found["status"] != "ERROR", found.get("fault")
        return found["status"] == status and not found["OS-EXT-STS:task_state"]

    lab.openstack("server", "shelve", server)
    lab.until(lambda: settled("SHELVED_OFFLOADED"), "it is shelved")
    (status,) = lab.status()["nodes"]
    assert not [one for one in status["providers"] if one["used"]]
    lab.openstack("server", "unshelve", server)
    lab.until(lambda: settled("ACTIVE"), "it is back")
    report = lab.report(server)
    assert _devices(report) == DEVICES
    assert port["MAC Address"] in report.macs
    assert report.check_status == 0, report.check
