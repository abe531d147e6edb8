# SPDX-License-Identifier: Apache-2.0
"""A server keeps what it was given: a suspend and a reset of its guest, a resize and its revert.

The flavor has no key of this project's, as most have. What counts is what the guest
counts before and after, and what Placement has at the end.
"""

import json

import pytest

from nova_hpc_lab.node import qemu

pytestmark = pytest.mark.slow

GPU = ":".join(qemu.GPU_IDS)
SERVER = "kept"
FLAVORS = {"lab.kept": "512", "lab.kept.more": "576"}
PROPERTIES = (
    *("--property", "hw:cpu_policy=dedicated"),
    *("--property", "hw:mem_page_size=2048"),
    *("--property", "hw:pci_numa_affinity_policy=preferred"),
    *("--property", "pci_passthrough:alias=gpu:1"),
)
VIRSH = "virsh -c qemu:///system"


@pytest.fixture
def server(lab):
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    for name, memory in FLAVORS.items():
        size = ("--vcpus", "1", "--ram", memory, "--disk", "1")
        lab.openstack("flavor", "create", name, *size, *PROPERTIES)
    lab.openstack(
        *("server", "create", "--flavor", "lab.kept", "--image", "hpc-guest", "--nic", "none"),
        *("--wait", SERVER),
    )
    found = lab.show(SERVER)
    assert found["status"] == "ACTIVE", f"{found.get('fault')}\n{lab.tail()}"
    yield found["id"]
    lab.openstack("server", "delete", "--wait", SERVER, check=False)
    for name in FLAVORS:
        lab.openstack("flavor", "delete", name)


def _gpus(report):
    return [function.ids for function in report.functions].count(GPU)


def _settled(lab, server, status):
    def reached():
        found = lab.show(server)
        assert found["status"] != "ERROR", found.get("fault")
        return found["status"] == status and not found["OS-EXT-STS:task_state"]

    lab.until(reached, f"{server} is {status}")


def _hostdevs(lab, server):
    return lab.inside(f"{VIRSH} dumpxml {server}").count("<hostdev ")


def _used(lab):
    """How many devices Placement has given away."""
    (node,) = lab.status()["nodes"]
    return sum(provider["used"] for provider in node["providers"])


def _boots(lab, server):
    """How often the guest has started, and told all of what it has."""
    return lab.openstack("console", "log", "show", server).count("guest report 1 end")


def test_a_suspend_and_a_reset_take_nothing(lab, server):
    assert _gpus(lab.report(server)) == 1
    lab.openstack("server", "suspend", server)

    def answered():
        words = ("server", "event", "list", server, "-f", "json")
        (event,) = (one for one in json.loads(lab.openstack(*words)) if one["Action"] == "suspend")
        details = json.loads(
            lab.openstack("server", "event", "show", server, event["Request ID"], "-f", "json")
        )
        ended = [one for one in details["events"] if one["finish_time"]]
        return ended and ended[0]

    event = lab.until(answered, "the suspend has been answered")
    print(f"\nRESULT: {event['result']}: {event.get('details')}")
    assert event["result"] == "Error"
    assert "cannot be suspended" in event["details"]
    _settled(lab, server, "ACTIVE")
    assert _hostdevs(lab, server) == 1
    # The guest's own restart, of which Nova knows nothing.
    before = _boots(lab, server)
    lab.inside(f"{VIRSH} reset {server}")
    lab.until(lambda: _boots(lab, server) > before, "the guest has started again")
    assert _gpus(lab.report(server)) == 1
    assert _hostdevs(lab, server) == 1


def test_a_resize_on_the_same_host_leaves_nothing_allocated(lab, server):
    assert _used(lab) == 1
    resize = ("server", "resize", "--flavor", "lab.kept.more", server)
    lab.openstack(*resize)
    _settled(lab, server, "VERIFY_RESIZE")
    assert _used(lab) == 2
    lab.openstack("server", "resize", "revert", server)
    _settled(lab, server, "ACTIVE")
    assert _used(lab) == 1
    assert _hostdevs(lab, server) == 1
    lab.openstack(*resize)
    _settled(lab, server, "VERIFY_RESIZE")
    lab.openstack("server", "resize", "confirm", server)
    _settled(lab, server, "ACTIVE")
    # A confirm ends after the server is ACTIVE.
    lab.until(lambda: _used(lab) == 1, "the former device is free")
    assert _gpus(lab.report(server)) == 1
    lab.openstack("server", "delete", "--wait", server)
    lab.until(lambda: _used(lab) == 0, "nothing is allocated")
