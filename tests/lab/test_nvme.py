# SPDX-License-Identifier: Apache-2.0
"""An NVMe disk of the virtual node: erased between two servers, with nova-compute killed meanwhile.

Each guest counts the bytes of its disk that are not zero, and then writes a mark into each block.
"""

import json
import re
from pathlib import Path

import pytest

from tests.lab.test_hygiene import FLAVOR, _listed
from tests.lab.test_owners import _signal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [Path(__file__).parent / "disk.yaml"], indirect=True),
]

FLAVOR_NAME = "lab.disk"
BLOCKS = 8 << 11
_FOUND = re.compile(r"^disk (\S+) sectors (\d+) used (\d+) marked (\d+)$", re.MULTILINE)
_WRITTEN = re.compile(r"^disk (\S+) written (\d+)$", re.MULTILINE)


@pytest.fixture
def disk(lab):
    """The address of the disk, and a flavor for it, the GPU and a function beside it."""
    lab.openstack(
        *("flavor", "create", FLAVOR_NAME, *FLAVOR),
        *("--property", "pci_passthrough:alias=gpu:1,vf:1,nvme:1"),
        *("--property", "hpc:group=gpu:1,vf:1,nvme:1", "--property", "hpc:affinity=root"),
        *("--property", "hw:mem_page_size=2048"),
        *("--property", "hw:pci_numa_affinity_policy=preferred"),
    )
    (found,) = (a for a, row in _listed(lab).items() if row["Role"] == "nvme")
    yield found
    for name in ("one", "two"):
        lab.openstack("server", "delete", "--wait", name, check=False)
    lab.openstack("flavor", "delete", FLAVOR_NAME)


def _entry(lab, disk):
    return json.loads(lab.inside("cat /var/lib/nova/hpc-ledger.json"))["devices"][disk]["stage"]


def _free(lab, disk):
    row = _listed(lab)[disk]
    return row["State"] == "free" and row


def _placed(lab, role):
    (node,) = lab.status()["nodes"]
    addresses = {each["address"] for each in node["providers"] if not each["withheld"]}
    return [a for a, row in _listed(lab).items() if row["Role"] == role and a in addresses]


def _found(lab, name):
    """Boot a server; bytes that are not zero, and marked blocks, that its guest found at first."""
    # The next update of nova-compute tells Placement that the disk is clean.
    lab.until(lambda: _placed(lab, "nvme"), "Placement offers the disk")
    lab.openstack(
        *("server", "create", "--flavor", FLAVOR_NAME, "--image", "hpc-guest"),
        *("--nic", "none", "--wait", name),
    )
    assert lab.show(name)["status"] == "ACTIVE"
    report = lab.report(name)
    said = lab.openstack("console", "log", "show", name).replace("\r", "")
    (_, sectors, used, marked), *_ = _FOUND.findall(said)
    (_, written), *_ = _WRITTEN.findall(said)
    checked = [line for line in report.check if " disk: " in line]
    print(
        f"RESULT: server {name}: {used} bytes used, {marked} marked, {written} written; {checked}"
    )
    assert int(sectors) == int(written) == BLOCKS
    assert len(report.macs) == 1, report.macs
    return int(used), int(marked), checked


def test_the_next_server_reads_no_block_of_the_last(lab, disk):
    lab.until(lambda: _free(lab, disk), f"{disk} is erased before its first server", 1800)
    first = _entry(lab, disk)
    assert first["proof"].startswith("format, "), first
    assert (
        lab.inside(f"basename $(readlink /sys/bus/pci/devices/{disk}/driver)").strip() == "vfio-pci"
    )
    assert _found(lab, "one")[:2] == (0, 0)
    assert _entry(lab, disk)["phase"] == "due"
    # nova-compute is killed as soon as the host's driver has the disk.
    lab.inside(
        f"(until [ -e /sys/bus/pci/drivers/nvme/{disk} ]; do usleep 20000; done;"
        f" {_signal('KILL')}; touch /run/killed) >/dev/null 2>&1 </dev/null &"
    )
    lab.openstack("server", "delete", "--wait", "one")
    lab.until(lambda: lab.inside("ls /run/killed || true").strip(), "nova-compute is killed")
    row = _listed(lab)[disk]
    print(f"RESULT: killed: {row}; {_entry(lab, disk)}")
    assert row["State"] != "free"
    assert _entry(lab, disk)["phase"] != "clean"
    row = lab.until(lambda: _free(lab, disk), f"{disk} is free", 1800)
    entry = _entry(lab, disk)
    print(f"RESULT: {row}; {entry}")
    assert entry["phase"] == "clean"
    assert entry["proof"]
    used, marked, checked = _found(lab, "two")
    assert (used, marked) == (0, 0)
    assert any("empty: " in line for line in checked), checked
