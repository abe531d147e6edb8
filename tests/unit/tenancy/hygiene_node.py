# SPDX-License-Identifier: Apache-2.0
"""A small sysfs whose devices can be reset, damaged and made to hang."""

import os
import struct
from pathlib import Path

import attrs

from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.step import Hygiene
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.step import View
from nova_hpc.topology import sysfs

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
        (path / "driver").symlink_to(driver)
        if physfn is not None:
            (path / "physfn").symlink_to(self.devices / physfn)
            number = len(list((self.devices / physfn).glob("virtfn*")))
            (self.devices / physfn / f"virtfn{number}").symlink_to(path)

    def boot(self, identity):
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{identity}\n")

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

    def candidates(self, *addresses):
        return View(sysfs.read(self.root), dict.fromkeys(addresses, "gpu")).candidates(addresses)

    def step(self, timeout=20.0, reset=None, cleaners=None, rules=None):
        folder = self.file.locks
        tools = cleaner.Tools(
            root=self.root,
            timeout=timeout,
            reset=reset or (lambda a: hygiene_reset.reset(self.root, a, timeout, folder)),
        )
        return Hygiene(
            root=self.root,
            ledger=self.file,
            cleaners=cleaners or cleaner.load({}, tools),
            timeout=timeout,
            clock=lambda: (self.now[0], self.now[1]),
            **({} if rules is None else {"rules": rules}),
        )


def make(root, *addresses):
    node = FakeNode(root)
    node.boot("first")
    for address in addresses or (GPU, OTHER):
        node.add(address)
    return node
