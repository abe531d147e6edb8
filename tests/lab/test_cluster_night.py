# SPDX-License-Identifier: Apache-2.0
"""A cluster of one member is made, off for the night, and on again in its place.

One node, so that it is quick; two nodes, heads and jobs are in test_cluster_job.py.
"""

import json

import pytest

from nova_hpc_lab import observe
from nova_hpc_lab.node import qemu

GPU = ":".join(qemu.GPU_IDS)
FLAVOR = "lab.night"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:affinity": "root",
}


@pytest.fixture
def flavor(lab):
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    words = (f"--property={key}={value}" for key, value in PROPERTIES.items())
    size = ("--vcpus", "1", "--ram", "384", "--disk", "1")
    lab.openstack("flavor", "create", FLAVOR, *size, *words)
    yield FLAVOR
    lab.openstack("hpc", "cluster", "delete", "night", check=False)
    lab.openstack("flavor", "delete", FLAVOR)


def _change(lab, *words):
    done = lab.client("hpc", "cluster", *words, "--timeout", "600", "-f", "json")
    print(f"$ openstack hpc cluster {' '.join(words)}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0
    return json.loads(done.stdout)


def _devices(lab, server):
    """Addresses that Nova has recorded, and the GPU that the guest has."""
    (gpu,) = (one for one in lab.report(server).functions if one.ids == GPU)
    return [one.address for one in observe.pci_records(lab.settings, server)], gpu.bars


@pytest.mark.slow
def test_a_cluster_is_off_for_the_night(lab, flavor):
    words = ("--members", "1", "--flavor", flavor, "--image", "hpc-guest", "--nic", "net-id=lab")
    made = _change(lab, "create", "night", *words)
    assert (made["state"], made["members"]) == ("ACTIVE", ["night-1"])
    (server,) = (each["ID"] for each in lab.servers())
    before = _devices(lab, server)
    assert len(before[0]) == 1
    assert _change(lab, "stop", "night")["state"] == "STOPPED"
    domain = f"virsh -c qemu:///system domstate {server}"
    assert lab.inside(domain).strip() == "shut off"
    # The device stays the member's in Placement.
    assert [one.used for one in observe.providers(lab.connection) if one.used] == [1]
    # So that the guest's next report is not the one from before.
    lab.inside(f"rm -f /var/lib/nova/instances/{server}/console.log")
    assert _change(lab, "start", "night")["state"] == "ACTIVE"
    assert _devices(lab, server) == before
    lab.openstack("hpc", "cluster", "delete", "night")
    lab.until(lambda: not lab.servers(), "the member is deleted")
    assert not [one for one in observe.providers(lab.connection) if one.used]
