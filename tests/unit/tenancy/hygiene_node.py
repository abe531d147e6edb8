# SPDX-License-Identifier: Apache-2.0
"""A small sysfs whose devices can be reset, damaged and made to hang."""

import contextlib
import functools
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import attrs

from nova_hpc.tenancy import holders
from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.hygiene.update import update_devices
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.step import NodeView
from nova_hpc.topology import sysfs
from nova_hpc_tools.device.upkeep import DeviceUpkeep

GPU, OTHER, PF, VF = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0", "0000:43:00.1"
BAR = 0x10


def config(
    vendor=0x10DE,
    device=0x2330,
    master=False,
    capabilities=(0x01, 0x10),
    bar=0x80000000,
    serial=None,
):
    """4096 bytes: a header, a chain of capabilities, AER and, where it has one, a serial number."""
    data = bytearray(4096)
    struct.pack_into("<HHHH", data, 0, vendor, device, 4 * master, 0x10)
    struct.pack_into("<I", data, 8, 0x030200A1)
    struct.pack_into("<II", data, BAR, bar | 0xC, 0)
    offset = 0x34
    for number, kind in enumerate(capabilities):
        place = 0x40 + 0x20 * number
        data[offset] = place
        data[place] = kind
        offset = place + 1
    struct.pack_into("<I", data, 0x100, 0x00020001 | (0x140 << 20 if serial is not None else 0))
    if serial is not None:
        struct.pack_into("<IQ", data, 0x140, 0x00010003, serial)
    return bytes(data)


def owners_of(root, records=frozenset, domains=None):
    """Nova's records as told, the kernel of this machine, and no guest domain but *domains*."""
    known = domains or NodeGuestDomains()
    return DeviceOwners(
        records, lambda: known, functools.partial(holders.find_kernel_holders, root)
    )


class NodeHygiene(DeviceUpkeep):
    """The step; who has devices may be left out (nobody), or told as Nova's records alone."""

    def _owners(self, owners):
        return (
            owners
            if isinstance(owners, DeviceOwners)
            else owners_of(self.records.root, owners or frozenset)
        )

    def give(self, server, wanted, owners=None):
        return super().give(server, wanted, self._owners(owners))

    def take_back(self, server, roles, owners=None, recorded=()):
        return super().take_back(server, roles, self._owners(owners), recorded)

    def update(self, offered, owners=None, ill=None, roles=None):
        """The periodic update, without Nova's view of the node."""
        roles = roles or {address: device.role for address, device in offered.items()}
        owners = self._owners(owners)
        return update_devices(self.records, self.cleaners, offered, owners, ill or {}, roles)

    def sweep(self, *arguments, **more):
        """Address -> why a device must not be offered."""
        findings = self.update(*arguments, **more).findings
        return {address: symptom.reason for address, symptom in findings.items()}

    def accept(self, device, owners=None, reason=""):
        if isinstance(owners, str):
            owners, reason = None, owners
        return super().accept(device, self._owners(owners), reason)

    def release(self, device, owners=None):
        return super().release(device, self._owners(owners))


@attrs.frozen
class FakeNode:
    """``sys`` below *root*, and the ledger beside it."""

    root: Path
    #: The time of day, and the seconds since the boot.
    now: list[float] = attrs.field(factory=lambda: [1_800_000_000.0, 1000.0], eq=False)

    def later(self, seconds: float) -> None:
        """Time goes by."""
        self.now[:] = [each + seconds for each in self.now]

    @property
    def devices(self):
        return self.root / "sys/bus/pci/devices"

    @property
    def state(self):
        return self.root / "ledger.json"

    @property
    def file(self):
        return LedgerFile(self.state)

    @property
    def ledger(self):
        return self.file.read()

    def write(self, address, name, text):
        (self.devices / address / name).write_text(f"{text}\n")

    def config(self, address, **values):
        (self.devices / address / "config").write_bytes(config(**values))

    def add(self, address, physfn=None, **values):
        path = self.devices / address
        path.mkdir(parents=True)
        self.config(address, **values)
        ids = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}
        texts = {
            **ids,
            "resource": "0x80000000 0x8fffffff 0x140204",
            "reset_method": "flr bus",
            "reset": "",
            "current_link_speed": "16.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_speed": "16.0 GT/s PCIe",
            "max_link_width": "16",
            "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0",
            "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
        }
        for name, text in texts.items():
            self.write(address, name, text)
        driver = self.root / "sys/bus/pci/drivers/vfio-pci"
        driver.mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(os.path.relpath(driver, path))
        self.regroup(address, len(list(self.devices.iterdir())))
        if physfn is not None:
            (path / "physfn").symlink_to(self.devices / physfn)
            number = len(list((self.devices / physfn).glob("virtfn*")))
            (self.devices / physfn / f"virtfn{number}").symlink_to(path)

    def bind(self, address, driver):
        """Bind a device to another driver, or to none."""
        link = self.devices / address / "driver"
        link.unlink(missing_ok=True)
        if driver is not None:
            target = self.root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(target, link.parent))

    def regroup(self, address, number):
        """Put a device into an IOMMU group, whose file is there."""
        members = self.root / f"sys/kernel/iommu_groups/{number}/devices"
        members.mkdir(parents=True, exist_ok=True)
        for old in members.parents[1].glob(f"*/devices/{address}"):
            old.unlink()  # of a device that is added again
        (members / address).symlink_to(self.devices / address)
        link = self.devices / address / "iommu_group"
        link.unlink(missing_ok=True)
        link.symlink_to(members.parent)
        folder = self.root / "dev/vfio"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).touch()

    def door(self, address):
        """The file of the device's VFIO group."""
        return self.root / "dev/vfio" / (self.devices / address / "iommu_group").readlink().name

    @contextlib.contextmanager
    def held(self, address):
        """Somebody has the device: the kernel lets nobody open the file of its group.

        What stands for the group is a program that runs; the kernel lets nobody write it.
        """
        door = self.door(address)
        shutil.copy(shutil.which("sleep"), door)
        process = subprocess.Popen([str(door), "3600"], executable=door)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def boot(self, identity):
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{identity}\n")

    def masters(self, address):
        """Whether the device's bus mastering is on."""
        return bool((self.devices / address / "config").read_bytes()[4] & 4)

    def hang(self, address):
        """Whoever resets the device now never comes back: a pipe that nobody reads."""
        path = self.devices / address / "reset"
        path.unlink()
        os.mkfifo(path)

    def resets(self, address):
        """Whether the device was reset since :meth:`forget`."""
        return (self.devices / address / "reset").read_text().strip() != ""

    def forget(self, address):
        (self.devices / address / "reset").write_text("")

    def owners(self, *records, domains=None):
        """Whoever has devices: *records* of Nova's, and *domains* of libvirt's."""
        return owners_of(self.root, lambda: frozenset(records), domains)

    def candidates(self, *addresses):
        return NodeView(
            sysfs.read_sysfs_node(self.root), dict.fromkeys(addresses, "gpu")
        ).candidates(addresses)

    def step(self, timeout=20.0, reset=None, cleaners=None, **more):
        folder = self.file.locks
        tools = cleaner.CleanerTools(
            root=self.root,
            timeout=timeout,
            reset=reset or (lambda a: hygiene_reset.reset_device(self.root, a, timeout, folder)),
        )
        return NodeHygiene(
            HygieneRecords(
                self.root,
                clock=lambda: (self.now[0], self.now[1]),
                **{"ledger": self.file, **more},
            ),
            cleaners=cleaners or cleaner.load_cleaners({}, tools),
            timeout=timeout,
        )


def has_ended(pid, seconds=5.0):
    """Whether a process ends within *seconds*; its parent may not have collected it."""
    for _ in range(int(100 * seconds)):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def make(root, *addresses):
    node = FakeNode(root)
    node.boot("first")
    for address in addresses or (GPU, OTHER):
        node.add(address)
    return node


def settled(node):
    """The first update has cleaned what nobody knew; only later resets are counted."""
    node.step().sweep(node.candidates(GPU, OTHER))
    for each in (GPU, OTHER):
        node.forget(each)
    return node


def sweep(node, *taken, step=None):
    """An update of the node, in which these devices have servers."""
    step = step or node.step()
    return step.sweep(node.candidates(GPU, OTHER), lambda: frozenset(taken))


def record(node, address=GPU):
    return node.ledger.device(address)


def why(node, address=GPU):
    """Why a device is in quarantine; None: it is not."""
    return node.ledger.why(address)
