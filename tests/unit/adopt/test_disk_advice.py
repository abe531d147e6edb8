# SPDX-License-Identifier: Apache-2.0
"""What the doctor advises of disks and memory that are in use, or that no check can erase."""

import json
import os
from dataclasses import replace

import pytest

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology import sysfs
from nova_hpc_tools.main import main
from nova_hpc_tools.site.device_users import find_device_users
from tests.nodes.describe import Endpoint, Machine, Processor, Root, Vfs
from tests.nodes.parts import DISK, XEON, numa_nodes, nvme, port
from tests.nodes.write import write
from tests.unit.node_files import libvirt, put  # noqa: F401

USED, SPLIT, MEMORY = "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"
ROLES = ({"role": "nvme", "class": "0108"}, {"role": "mem", "class": "0502"})
BELOW = (
    port("01.0", 0x16, replace(nvme(4), devices={"nvme": "nvme4"})),
    port("01.1", 0x17, replace(nvme(2), vfs=Vfs("a825", 2, 32, driver="vfio-pci"))),
    port("01.2", 0x18, Endpoint("1c5c:2204", "050210", link=DISK, driver="cxl_pci")),
)


@pytest.fixture
def root(tmp_path):
    memory = numa_nodes(1, 1, 16, 256, {2048: 0, 1048576: 20})
    machine = Machine("advice", memory, (Root(0, 0x15, 0, BELOW),), Processor(XEON, sibling=16))
    root = write(machine, tmp_path / "node")
    (disk,) = root.glob(f"sys/devices/pci*/**/{USED}")
    block = disk / "nvme/nvme4/nvme4n1"
    block.mkdir(parents=True)
    classes = root / "sys/class/block"
    classes.mkdir(parents=True)
    (classes / "nvme4n1").symlink_to(os.path.relpath(block, classes))
    put(root, "/dev/nvme4n1", "")
    put(root, "/proc/cmdline", "quiet intel_iommu=on iommu=pt")
    return root


def open_disk(root):
    """As QEMU of a guest with <disk type='block'> does."""
    process = root / "proc/4242/fd"
    process.mkdir(parents=True)
    (process / "7").symlink_to("/dev/nvme4n1")
    put(root, "/proc/4242/comm", "qemu-system-x86")


@pytest.fixture
def node(root, tmp_path, capsys):
    lines = "".join(f"device_role = {each}\n" for each in (*DEFAULT_ROLES, *map(json.dumps, ROLES)))
    (tmp_path / "nova.conf").write_text(
        f"[DEFAULT]\nstate_path = {tmp_path}\n[hpc]\n{lines}"
        "clean_stage = nvme:service-vm\nclean_checks = nvme:nvme\n"
    )
    (tmp_path / "out").mkdir()
    config = ("--root", root, "--config-file", tmp_path / "nova.conf")

    def run(*words):
        status = main(list(map(str, [words[0], *config, *words[1:]])))
        return status, *capsys.readouterr()

    run.written = tmp_path / "out"
    return run


def cures_of(node, address):
    assert node("configure", "--write", node.written)[0] == 0
    return advised(node, address)


def advised(node, address):
    found = json.loads(node("doctor", "--config-dir", node.written, "-f", "json")[1])["findings"]
    return [each["cure"] for each in found if address in each["seen"]]


def test_a_disk_that_a_process_has_open_is_not_offered(node, root):
    open_disk(root)
    _, _, err = node("configure", "--write", node.written)
    assert (
        f"Not offered: {USED} (nvme): process 4242 (qemu-system-x86) has /dev/nvme4n1 open" in err
    )
    assert not (node.written / "nova-hpc-compute.conf").exists()


def test_a_disk_that_is_opened_once_it_is_offered(node, root):
    """Before: the cure took the disk from under the guest."""
    (cure,) = cures_of(node, USED)
    assert cure.startswith(f"driverctl set-override {USED}")
    open_disk(root)
    (cure,) = advised(node, USED)
    assert cure.startswith(
        f"First end the programs that have it open ({USED}: "
        "process 4242 (qemu-system-x86) has /dev/nvme4n1 open"
    )


def test_block_devices_that_cannot_be_read_leave_the_users_of_a_disk_unknown(root):
    """Before: no block device, so nobody had the disk."""
    loop = root / "sys/class/block/loop"
    loop.symlink_to("loop")
    functions = sysfs.read_sysfs_node(root).functions
    users = find_device_users(root, functions)
    assert users[USED].unknown == "its device files cannot be read"
    loop.unlink()
    assert find_device_users(root, functions)[USED].unknown is None


def test_a_disk_with_virtual_functions_gets_no_advice_that_cannot_help(node):
    """The role has that stage already, and no check erases a part of a disk."""
    (cure,) = cures_of(node, SPLIT)
    assert "the check nvme" not in cure
    assert f"echo 0 > /sys/bus/pci/devices/{SPLIT}/sriov_numvfs" in cure


def test_memory_on_cxl_stays_with_the_host(node):
    """Before: it went to vfio-pci, with what the kernel keeps in it."""
    cures = cures_of(node, MEMORY)
    assert not any("driverctl set-override" in cure for cure in cures)
    assert MEMORY not in (node.written / "nova-hpc-compute.conf").read_text()
