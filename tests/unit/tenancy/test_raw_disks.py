# SPDX-License-Identifier: Apache-2.0
"""Disks of the host that a guest or a process has as they are: nobody else gets them."""

import os

import pytest

from nova_hpc.tenancy import guest_domains, holders
from nova_hpc.tenancy.guest_domains import DomainCondition
from nova_hpc.topology import block_devices
from nova_hpc.topology.files import FileTree
from tests.unit.tenancy.hygiene_node import GPU as DISK
from tests.unit.tenancy.hygiene_node import OTHER, make, owners_of
from tests.unit.tenancy.test_guest_domains import Virtual

CXL = "it is bound to cxl_pci, so it may be memory of the host"


class DiskNode:
    """Two NVMe disks with the driver of the host, and files in /dev as udev makes them."""

    def __init__(self, folder):
        self.node = make(folder)
        self.root = self.node.root
        self.sys = self.root / "sys"
        for number, address in enumerate((DISK, OTHER)):
            self.node.write(address, "class", "0x010802")
            self.node.bind(address, "nvme")
            self.controller(number, address).mkdir(parents=True)
            self.block(f"nvme{number}n1", self.controller(number, address) / f"nvme{number}n1")

    def controller(self, number, address):
        return (self.node.devices / address).resolve() / f"nvme/nvme{number}"

    def block(self, name, place, *slaves):
        for part in ("", "holders", "slaves"):
            (place / part).mkdir(parents=True, exist_ok=True)
        for slave in slaves:
            (place / "slaves" / slave).symlink_to(os.path.relpath(self.place(slave), place))
        self.link(f"sys/class/block/{name}", place)
        (self.root / "dev" / name).touch()

    def place(self, name):
        return (self.sys / "class/block" / name).resolve()

    def link(self, path, target):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(target, path.parent.resolve()))

    def opened(self, path, name="qemu-system-x86"):
        folder = self.root / "proc/4242"
        (folder / "fd").mkdir(parents=True)
        (folder / "fd/7").symlink_to(path)
        (folder / "comm").write_text(f"{name}\n")

    def domains(self, path, **state):
        xml = (
            "<domain><devices><disk type='block' device='disk'><driver name='qemu' type='raw'/>"
            f"<source dev='{path}'/><target dev='vda' bus='virtio'/></disk></devices></domain>"
        )
        guest = Virtual("database", live=xml, **state)
        return guest_domains.read_guest_domains(lambda: [guest], lambda error: False, self.root)


@pytest.fixture
def disks(tmp_path):
    made = DiskNode(tmp_path)
    first = made.place("nvme0n1")
    made.block("nvme0n1p2", first / "nvme0n1p2")
    made.link("dev/disk/by-id/nvme-eui.0025", made.root / "dev/nvme0n1")
    virtual = made.sys / "devices/virtual/block"
    made.block("dm-0", virtual / "dm-0", "nvme0n1p2")
    made.block("dm-1", virtual / "dm-1", "dm-0")
    made.block("loop0", virtual / "loop0")
    made.link("dev/mapper/data-db", made.root / "dev/dm-1")
    return made


@pytest.mark.parametrize(
    "path",
    ["nvme0n1", "nvme0n1p2", "disk/by-id/nvme-eui.0025", "dm-0", "mapper/data-db"],
)
@pytest.mark.parametrize("state", [1, 5])
def test_a_guest_that_has_the_block_device_has_the_disk(disks, path, state):
    """Before: QEMU excludes nobody from a disk, so the disk was free and could be erased."""
    domains = disks.domains(f"/dev/{path}", state=state)
    (domain,) = domains.domains
    assert domain.condition is (DomainCondition.RUNNING if state == 1 else DomainCondition.SHUT_OFF)
    held = owners_of(disks.root, domains=domains).held([DISK, OTHER])
    assert held.keys() == {DISK}
    assert "guest domain database" in held[DISK].text


def test_a_disk_of_several_controllers_is_the_disk_of_each(tmp_path):
    disks = DiskNode(tmp_path)
    subsystem = disks.sys / "devices/virtual/nvme-subsystem/nvme-subsys5"
    disks.block("nvme5n1", subsystem / "nvme5n1")
    for number, address in enumerate((DISK, OTHER)):
        disks.link(
            f"{subsystem.relative_to(disks.root)}/nvme{number}", disks.controller(number, address)
        )
    domains = disks.domains("/dev/nvme5n1")
    assert owners_of(disks.root, domains=domains).held([DISK, OTHER]).keys() == {DISK, OTHER}


@pytest.mark.parametrize("path", ["/dev/loop0", "/dev/absent", "/var/lib/nova/disk", "/dev"])
def test_other_disks_of_a_guest_are_no_device(disks, path):
    domains = disks.domains(path)
    assert owners_of(disks.root, domains=domains).held([DISK, OTHER]) == {}


def test_a_loop_of_links_is_no_device(disks):
    (disks.root / "dev/loop").symlink_to("loop")
    assert block_devices.functions_of_path(FileTree(disks.root), "/dev/loop") == frozenset()


def test_slaves_that_name_each_other_end(disks):
    place = disks.place("dm-0")
    (place / "slaves/dm-1").symlink_to(os.path.relpath(disks.place("dm-1"), place))
    found = block_devices.read_block_devices(FileTree(disks.root))
    assert found["dm-1"] == found["dm-0"]
    assert DISK in found["dm-0"]


@pytest.mark.parametrize("name", ["nvme0n1", "nvme0n1p2", "nvme0", "ng0n1", "dm-1"])
def test_a_process_that_has_the_disk_open_has_it(disks, name):
    assert holders.find_kernel_holders(disks.root, [DISK, OTHER]) == {}
    disks.opened(f"/dev/{name}")
    found = holders.find_kernel_holders(disks.root, [DISK, OTHER])
    assert found.keys() == {DISK}
    assert found[DISK].certain
    assert found[DISK].text == f"process 4242 (qemu-system-x86) has /dev/{name} open"


def test_a_process_that_looks_for_an_instant_has_nothing(disks, monkeypatch):
    """udev looks at each new disk."""
    disks.opened("/dev/nvme0n1", "(udev-worker)")
    gone = lambda finder: (disks.root / "proc/4242/fd/7").unlink() or True  # noqa: E731
    monkeypatch.setattr(holders._HolderFinder, "_wait", gone)
    assert holders.find_kernel_holders(disks.root, [DISK]) == {}


def test_memory_on_cxl_is_the_hosts(tmp_path):
    node = make(tmp_path)
    node.write(DISK, "class", "0x050210")
    node.bind(DISK, "cxl_pci")
    assert holders.find_kernel_holders(node.root, [DISK])[DISK].text == CXL
