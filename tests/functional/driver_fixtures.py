# SPDX-License-Identifier: Apache-2.0
"""A small sysfs for the hosts of the driver's tests, so that the real reader runs.

Nova's fake libvirt knows the PCI devices, but there is no ``/sys`` behind
them. This fixture writes one from the same :class:`~tests.functional.fixtures.Shape`
and lets a test damage it as hardware and operators do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fixtures

from tests.functional.fixtures import (
    DISK_PRODUCT,
    DISK_VENDOR,
    GPU_PRODUCT,
    GPU_VENDOR,
    NIC_VENDOR,
    PF_PRODUCT,
    VF_PRODUCT,
    Function,
    Shape,
)

_IDS = {
    "gpu": (GPU_VENDOR, GPU_PRODUCT, "0x030200"),
    "pf": (NIC_VENDOR, PF_PRODUCT, "0x020700"),
    "vf": (NIC_VENDOR, VF_PRODUCT, "0x020700"),
    "nvme": (DISK_VENDOR, DISK_PRODUCT, "0x010802"),
}
_DRIVERS = {"gpu": "vfio-pci", "pf": "mlx5_core", "vf": "vfio-pci", "nvme": "vfio-pci"}


class FakeSysfs(fixtures.Fixture):
    """``sys`` below :attr:`root`, for the devices of one shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def _setUp(self) -> None:
        self.root = Path(self.useFixture(fixtures.TempDir()).path)
        self.devices = self.root / "sys/bus/pci/devices"
        self.devices.mkdir(parents=True)
        self._cpus()
        for function in self.shape.functions():
            self._add(function)

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def _cpus(self) -> None:
        shape = self.shape
        per_node = shape.cores * shape.threads
        cpus, nodes = self.root / "sys/devices/system/cpu", self.root / "sys/devices/system/node"
        self._write(cpus / "online", f"0-{per_node * shape.nodes - 1}")
        self._write(nodes / "online", f"0-{shape.nodes - 1}")
        for node in range(shape.nodes):
            first = node * per_node
            self._write(nodes / f"node{node}/cpulist", f"{first}-{first + per_node - 1}")
            for cpu in range(first, first + per_node):
                socket = node // (shape.nodes // shape.sockets)
                self._write(cpus / f"cpu{cpu}/topology/physical_package_id", str(socket))

    def _add(self, function: Function) -> None:
        place = function.location
        above = self.root / "sys/devices" / str(place.root)
        if place.switches[0].endswith(":1c.0"):
            bridges = [place.switches[0]]  # a root port and no switch
        else:
            number = int(place.switches[0][5:7], 16)
            port = f"0000:{function.bus:02x}:1e.0"
            # A downstream port of its own for every device number.
            bridges = [port, place.switches[0], f"0000:{number + 0x60:02x}:{function.slot:02x}.0"]
        for bridge in bridges:
            above = above / bridge
            if not above.exists():
                self._function(above, "1000", "c010", "0x060400", place.numa, "pcieport")
        vendor, product, code = _IDS[function.kind]
        path = above / function.address
        driver = _DRIVERS[function.kind]
        self._function(path, vendor, product, code, place.numa, driver)
        self._write(path / "reset_method", "flr bus")
        self._write(path / "reset", "")
        self.regroup(function.address, function.group)
        if function.kind == "pf":
            self._write(path / "sriov_totalvfs", "8")
        elif function.kind == "vf":
            parent = self.devices / f"{function.address[:-1]}0"
            (path / "physfn").symlink_to(os.path.relpath(parent.resolve(), path))
            virtual = parent / f"virtfn{function.function - 1}"
            virtual.symlink_to(os.path.relpath(path, parent.resolve()))

    def _function(
        self, path: Path, vendor: str, product: str, code: str, numa: int | None, driver: str
    ) -> None:
        self._write(path / "vendor", f"0x{vendor}")
        self._write(path / "device", f"0x{product}")
        self._write(path / "class", code)
        self._write(path / "numa_node", str(-1 if numa is None else numa))
        (self.devices / path.name).symlink_to(os.path.relpath(path, self.devices))
        self.bind(path.name, driver)

    # -- what tests do to it ------------------------------------------------

    def bind(self, address: str, driver: str | None) -> None:
        """Bind a function to another driver, or to none."""
        link = self.devices / address / "driver"
        link.unlink(missing_ok=True)
        if driver is not None:
            target = self.root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

    def offer_by_vfio(self, address: str) -> None:
        """The driver of a function offers it by VFIO, whatever it is called (Linux 6.1)."""
        folder = self.devices / address / "vfio-dev/vfio0"
        folder.mkdir(parents=True)
        shared = self.root / "sys/class/vfio-dev"
        shared.mkdir(parents=True, exist_ok=True)

    def regroup(self, address: str, group: int) -> None:
        """Put a function into an IOMMU group."""
        groups = self.root / "sys/kernel/iommu_groups"
        for old in groups.glob(f"*/devices/{address}"):
            old.unlink()
        members = groups / str(group) / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(self.devices / address)
        link = self.devices / address / "iommu_group"
        link.unlink(missing_ok=True)
        link.symlink_to(members.parent)
        self.door(address).parent.mkdir(parents=True, exist_ok=True)
        self.door(address).touch()

    def door(self, address: str) -> Path:
        """The file of a function's VFIO group, which the kernel lets be open once."""
        group = (self.devices / address / "iommu_group").resolve().name
        return self.root / "dev/vfio" / group

    @contextlib.contextmanager
    def held(self, address: str) -> Iterator[None]:
        """A process of the host has a function.

        What stands for the file of its group is a program that runs: the kernel lets
        nobody open it for writing as long as it does.
        """
        door = self.door(address)
        shutil.copy(shutil.which("sleep"), door)
        process = subprocess.Popen([str(door), "3600"])
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def add_function(self, address: str, group: int, driver: str) -> None:
        """A function that no fake libvirt device stands for, below any root."""
        path = self.root / "sys/devices" / f"pci{address[:7]}" / address
        self._function(path, "1000", "beef", "0x040300", 0, driver)
        self.regroup(address, group)

    def vanish(self, address: str) -> None:
        """Take a function away, as hardware does that falls off the bus."""
        link = self.devices / address
        away = self.root / "away" / address
        away.mkdir(parents=True)
        shutil.move(link.resolve(), away / "folder")
        link.rename(away / "link")

    def come_back(self, address: str) -> None:
        """Plug in again what has vanished."""
        away, link = self.root / "away" / address, self.devices / address
        (away / "link").rename(link)
        shutil.move(away / "folder", self.devices / link.readlink())
        away.rmdir()
