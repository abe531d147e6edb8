# SPDX-License-Identifier: Apache-2.0
"""Builds small sysfs trees, for what no capture of a real machine has."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

EXPRESS = 0x40


def config(
    vendor: int = 0x10DE,
    device: int = 0x2330,
    class_code: int = 0x030200,
    *,
    header: int = 0,
    buses: tuple[int, int] = (0, 0),
    port: int | None = 0,
    flr: bool = False,
    acs: tuple[int, int] | None = None,
    link: tuple[int, int, int, int] = (4, 16, 5, 16),
    subsystem: tuple[int, int] = (0, 0),
    size: int = 4096,
) -> bytes:
    """A configuration space.

    :param port: device/port type of the PCI Express capability; None: none.
    :param acs: capability and control register of ACS.
    :param link: current speed code and width, the same at most.
    :param subsystem: vendor and id of the board.
    """
    data = bytearray(4096)
    struct.pack_into("<HH", data, 0, vendor, device)
    struct.pack_into("<I", data, 8, class_code << 8 | 0xA1)
    data[0x0E] = header
    data[0x19:0x1B] = bytes(buses)
    if header == 0:
        struct.pack_into("<HH", data, 0x2C, *subsystem)
    if port is not None:
        data[6] = 0x10
        data[0x34] = EXPRESS
        data[EXPRESS] = 0x10
        struct.pack_into("<H", data, EXPRESS + 2, port << 4 | 2)
        struct.pack_into("<I", data, EXPRESS + 4, int(flr) << 28)
        now_speed, now_width, most_speed, most_width = link
        struct.pack_into("<I", data, EXPRESS + 0x0C, most_speed | most_width << 4)
        struct.pack_into("<H", data, EXPRESS + 0x12, now_speed | now_width << 4)
    if acs is not None:
        # Behind another capability, to see that the chain is followed.
        struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | 0x140 << 20)
        struct.pack_into("<I", data, 0x140, 0x000D | 1 << 16)
        struct.pack_into("<HH", data, 0x144, *acs)
    return bytes(data[:size])


class Machine:
    """A directory that looks like ``/`` of a machine with two NUMA nodes."""

    def __init__(self, root: Path, nodes: int = 2, cpus_per_node: int = 4) -> None:
        self.root = root
        count = nodes * cpus_per_node
        self.file("sys/devices/system/cpu/online", f"0-{count - 1}\n")
        self.file("sys/devices/system/node/online", f"0-{nodes - 1}\n" if nodes > 1 else "0\n")
        for node in range(nodes):
            first = node * cpus_per_node
            folder = f"sys/devices/system/node/node{node}"
            self.file(f"{folder}/cpulist", f"{first}-{first + cpus_per_node - 1}\n")
            self.file(f"{folder}/meminfo", f"Node {node} MemTotal:       1048576 kB\n")
            for pages, total, free in ((2048, 512, 500), (1048576, 2, 2)):
                pool = f"{folder}/hugepages/hugepages-{pages}kB"
                self.file(f"{pool}/nr_hugepages", f"{total}\n")
                self.file(f"{pool}/free_hugepages", f"{free}\n")
            for cpu in range(first, first + cpus_per_node):
                folder_of_cpu = f"sys/devices/system/cpu/cpu{cpu}/topology"
                self.file(f"{folder_of_cpu}/physical_package_id", f"{node}\n")
                even = cpu - cpu % 2
                self.file(f"{folder_of_cpu}/core_cpus_list", f"{even}-{even + 1}\n")

    def file(self, path: str, text: str | bytes) -> Path:
        """Write one file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
        return target

    def link(self, path: str, target: str) -> None:
        """Make one symbolic link."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def function(
        self,
        place: str,
        *,
        files: Mapping[str, str] | None = None,
        space: bytes | None = None,
        node: int = 0,
        driver: str | None = None,
        group: int | None = None,
        absolute: bool = False,
    ) -> Path:
        """Add a function.

        :param place: its path below /sys/devices, ``pci0000:17/0000:17:00.0``.
        :param absolute: make the link in /sys/bus/pci/devices absolute.
        """
        address = place.rpartition("/")[2]
        folder = f"sys/devices/{place}"
        texts = {
            "vendor": "0x10de",
            "device": "0x2330",
            "class": "0x030200",
            "numa_node": str(node),
            "local_cpus": f"{0xF << 4 * node:x}",
            **(files or {}),
        }
        for name, text in texts.items():
            self.file(f"{folder}/{name}", text + "\n")
        if space is not None:
            self.file(f"{folder}/config", space)
        top = "/" if absolute else "../../../"
        prefix = "sys/" if absolute else ""
        self.link(f"sys/bus/pci/devices/{address}", f"{top}{prefix}devices/{place}")
        up = os.path.relpath("sys", folder)
        if driver is not None:
            self.link(f"{folder}/driver", f"{up}/bus/pci/drivers/{driver}")
        if group is not None:
            self.link(f"{folder}/iommu_group", f"{up}/kernel/iommu_groups/{group}")
            self.link(f"sys/kernel/iommu_groups/{group}/devices/{address}", f"/{folder}")
        return self.root / folder

    def bridge(
        self,
        place: str,
        port: int | None,
        buses: tuple[int, int],
        acs: tuple[int, int] | None = (0x1F, 0x1D),
        **more: object,
    ) -> Path:
        """Add a bridge; *port* as in the PCI Express capability."""
        space = config(0x8086, 0x2030, 0x060400, header=1, buses=buses, port=port, acs=acs)
        return self.function(
            place,
            files={"vendor": "0x8086", "device": "0x2030", "class": "0x060400"},
            space=space,
            **more,  # type: ignore[arg-type]
        )
