# SPDX-License-Identifier: Apache-2.0
"""What each action on a running server leaves of its devices, tree and addresses.

All of it on one server with the mirrored tree, in the order in which a user
might do it. What counts is libvirt's domain; at the end the guest speaks.
"""

import json
import xml.etree.ElementTree as ET

import pytest

from tests.lab.test_cloud import RESTART_COMPUTE

pytestmark = [
    pytest.mark.parametrize("lab", ["mirror"], indirect=True),
    # The same on Nova's in-process stack is part of every run.
    pytest.mark.slow,
]

FLAVOR = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1,vf:1",
    "hpc:affinity": "numa",
    "hpc:guest_topology": "mirror",
}
SERVER = "cycle"


def _flavor(lab, name, memory):
    words = [part for key, value in FLAVOR.items() for part in ("--property", f"{key}={value}")]
    lab.openstack(
        *("flavor", "create", name, "--vcpus", "1", "--ram", str(memory), "--disk", "1", *words)
    )


def _becomes(lab, status):
    """Wait for a state without a task."""

    def reached():
        found = lab.show(SERVER)
        assert found["status"] != "ERROR", found.get("fault")
        return found["status"] == status and not found["OS-EXT-STS:task_state"] and found

    return lab.until(reached, f"{SERVER} is {status}")


def _hardware(lab, server):
    """Host address -> guest address of its devices, and all of its PCI controllers."""
    domain = ET.fromstring(lab.inside(f"virsh -c qemu:///system dumpxml --inactive {server}"))
    devices, controllers = {}, []
    for one in domain.iterfind("devices/hostdev"):
        source = one.find("source/address")
        host = "{domain}:{bus}:{slot}.{function}".format(**source.attrib).replace("0x", "")
        devices[host] = tuple(sorted(one.find("address").attrib.items()))
    for one in domain.iterfind("devices/controller[@type='pci']"):
        place = one.find("address")
        attributes = one.attrib | (place.attrib if place is not None else {})
        controllers.append(tuple(sorted(attributes.items())))
    return devices, sorted(controllers)


def _numa(lab, addresses):
    return {lab.inside(f"cat /sys/bus/pci/devices/{one}/numa_node").strip() for one in addresses}


@pytest.fixture
def server(lab):
    _flavor(lab, "cycle.small", 512)
    _flavor(lab, "cycle.large", 640)
    lab.openstack(
        *("server", "create", "--flavor", "cycle.small", "--image", "hpc-guest", "--nic", "none"),
        *("--wait", SERVER),
    )
    yield _becomes(lab, "ACTIVE")["id"]
    lab.openstack("server", "delete", "--wait", SERVER, check=False)
    for name in ("cycle.small", "cycle.large"):
        lab.openstack("flavor", "delete", name)


def _reported(lab):
    """When nova-compute last said that it is alive."""
    words = ("compute", "service", "list", "--service", "nova-compute", "-f", "json")
    (service,) = json.loads(lab.openstack(*words))
    return service["Updated At"]


def _restart_compute(lab):
    lab.inside(RESTART_COMPUTE)
    # The old one is gone, so the next sign of life is the new one's. Until then an
    # action must wait: Nova does not start beside a resize that has begun.
    before = _reported(lab)
    lab.until(lambda: _reported(lab) != before, "nova-compute is alive again")


def test_every_action_keeps_the_hardware(lab, server):
    created = _hardware(lab, server)
    assert len(created[0]) == 2
    assert len(_numa(lab, created[0])) == 1
    kept = {}

    def act(name, status, *words):
        lab.openstack("server", *words)
        _becomes(lab, status)
        kept[name] = _hardware(lab, server) == created

    act("hard reboot", "ACTIVE", "reboot", "--hard", SERVER)
    act("stop", "SHUTOFF", "stop", SERVER)
    act("start", "ACTIVE", "start", SERVER)
    # Refused; test_promises.py has the rest of it.
    assert lab.report(server).check_status == 0
    act("suspend", "ACTIVE", "suspend", SERVER)
    act("rebuild", "ACTIVE", "rebuild", "--image", "hpc-guest", SERVER)
    _restart_compute(lab)
    _becomes(lab, "ACTIVE")
    kept["compute restart"] = _hardware(lab, server) == created
    print(f"\nkept: {kept}")
    assert all(kept.values()), kept

    # Old and new devices are claimed side by side, so these are others.
    lab.openstack("server", "resize", "--flavor", "cycle.large", SERVER)
    _becomes(lab, "VERIFY_RESIZE")
    resized = _hardware(lab, server)
    assert len(resized[0]) == 2
    assert not resized[0].keys() & created[0].keys()
    assert len(_numa(lab, resized[0])) == 1
    lab.openstack("server", "resize", "confirm", SERVER)
    _becomes(lab, "ACTIVE")
    assert _hardware(lab, server) == resized
    report = lab.report(server)
    assert (report.check_status, report.check) == (
        0,
        ("As promised: 2 devices, 1 NUMA nodes, topology mirror.",),
    )

    lab.openstack("server", "delete", "--wait", SERVER)
    (status,) = lab.status()["nodes"]
    assert not [one for one in status["providers"] if one["used"]]
