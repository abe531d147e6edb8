# SPDX-License-Identifier: Apache-2.0
"""Write a synthetic node as the ``/sys`` and ``/proc`` that its kernel would show."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.nodes import config_space, plan
from tests.nodes.describe import MIB, Bar, Bridge, Endpoint, Link, Machine, Numa, Rdma, cpu_ids
from tests.nodes.plan import Placed

_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"
_NO_RESOURCE: Final = " ".join(["0x" + "0" * 16] * 3)
# Flags of a resource, include/linux/ioport.h.
_MEMORY, _PREFETCH, _WIDE = 0x40200, 0x2008, 0x100004


def write(machine: Machine, root: Path) -> Path:
    """Write *machine* below *root*, an empty directory; returns *root*."""
    _Writer(machine, root).all()
    return root


class _Writer:
    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine = machine
        self.root = root
        self.folders: set[str] = set()
        self.next_window = 0x200000000000
        self.devices = -1

    def all(self) -> None:
        self.file("proc/sys/kernel/hostname", self.machine.name)
        self.cpus()
        self.memory()
        for numa in self.machine.numa:
            self.numa(numa)
        for placed in plan.functions(self.machine):
            self.function(placed)
        release = self.machine.release
        if release is not None:
            self.file("proc/sys/kernel/osrelease", release)
            self.file(f"lib/modules/{release}/modules.alias", "\n".join(self.machine.aliases))

    def place(self, path: str) -> Path:
        """Where *path* is to be written; its directory is there."""
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in self.folders:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            self.folders.add(folder)
        return self.root / path

    def file(self, path: str, text: str | bytes) -> None:
        target = self.place(path)
        target.write_bytes(text if isinstance(text, bytes) else text.encode() + b"\n")

    def link(self, path: str, target: str) -> None:
        """A relative link to *target*, a path from the root, that need not be there."""
        place = self.place(path)
        place.symlink_to(os.path.relpath(target, os.path.dirname(path)))  # noqa: PTH120

    # Processors and memory

    def cpus(self) -> None:
        machine = self.machine
        homes = {cpu: numa for numa in machine.numa for cpu in cpu_ids(numa.cpus)}
        everything = sorted(homes)
        sockets: dict[int | None, list[int]] = {}
        for cpu, numa in homes.items():
            sockets.setdefault(numa.socket, []).append(cpu)
        self.file(f"{_CPUS}/online", listed(everything))
        self.file(f"{_CPUS}/possible", listed(everything))
        info = []
        step = machine.processor.sibling
        for cpu in everything:
            core = cpu if step is None else cpu % step
            threads = [core] if step is None else [core, core + step]
            folder = f"{_CPUS}/cpu{cpu}/topology"
            self.file(f"{folder}/physical_package_id", str(homes[cpu].socket))
            self.file(f"{folder}/core_id", str(core))
            self.file(f"{folder}/core_cpus", masked(threads))
            self.file(f"{folder}/core_cpus_list", listed(threads))
            self.file(f"{folder}/package_cpus", masked(sockets[homes[cpu].socket]))
            lines = {"processor": str(cpu), **machine.processor.lines}
            info.append("".join(f"{key}\t: {value}\n" for key, value in lines.items()))
        self.file("proc/cpuinfo", "\n".join(info))

    def memory(self) -> None:
        total = sum(numa.memory_gib for numa in self.machine.numa) << 20
        self.file("proc/meminfo", f"MemTotal:       {total} kB")
        pools: dict[int, int] = {}
        for numa in self.machine.numa:
            for size, count in numa.pages.items():
                pools[size] = pools.get(size, 0) + count
        self.pools("sys/kernel/mm/hugepages", pools.items())
        ids = [numa.id for numa in self.machine.numa]
        self.file(f"{_NODES}/online", listed(ids))
        self.file(f"{_NODES}/possible", listed(ids))

    def pools(self, folder: str, pools: Iterable[tuple[int, int]]) -> None:
        for size, count in pools:
            for name in ("nr_hugepages", "free_hugepages"):
                self.file(f"{folder}/hugepages-{size}kB/{name}", str(count))

    def numa(self, numa: Numa) -> None:
        folder = f"{_NODES}/node{numa.id}"
        cpus = cpu_ids(numa.cpus)
        self.file(f"{folder}/cpulist", numa.cpus)
        self.file(f"{folder}/cpumap", masked(cpus))
        self.file(f"{folder}/distance", " ".join(map(str, numa.distances)))
        self.file(f"{folder}/meminfo", f"Node {numa.id} MemTotal:       {numa.memory_gib << 20} kB")
        self.pools(f"{folder}/hugepages", numa.pages.items())
        if numa.memory_of is not None:
            self.file(
                f"proc/driver/nvidia/gpus/{numa.memory_of}/numa_status",
                f"Node:      {numa.id}\nStatus:    online",
            )

    # PCI functions

    def function(self, placed: Placed) -> None:
        part = placed.part
        folder = f"sys/devices/{placed.folder}"
        self.link(f"sys/bus/pci/devices/{placed.address}", folder)
        self.link(f"{folder}/subsystem", "sys/bus/pci")
        space = config_space.build(placed)
        self.file(f"{folder}/config", space)
        vendor, product = part.ids.split(":")
        bridge = isinstance(part, Bridge)
        virtual = part.vfs if isinstance(part, Endpoint) and placed.physical else None
        subsystem = "0000:0000" if isinstance(part, Bridge) else part.subsystem
        texts = {
            "class": f"0x{'060400' if isinstance(part, Bridge) else part.code}",
            "vendor": f"0x{vendor}",
            "device": f"0x{virtual.product if virtual else product}",
            "subsystem_vendor": f"0x{subsystem[:4]}",
            "subsystem_device": f"0x{subsystem[5:]}",
            "revision": "0x01" if bridge else "0xa1",
            "numa_node": str(placed.numa),
            "local_cpus": masked(self.near(placed.numa)),
            "local_cpulist": listed(self.near(placed.numa)),
            "resource": self.resource(part, virtual is not None),
        }
        if placed.buses is not None:
            texts["secondary_bus_number"] = str(placed.buses[0])
            texts["subordinate_bus_number"] = str(placed.buses[1])
        if part.link is not None:
            texts |= link_files(part.link, virtual is not None)
        resets: tuple[str, ...] = ("flr",) if virtual else getattr(part, "resets", ())
        if resets:
            texts["reset_method"] = " ".join(resets)
        for name, text in texts.items():
            self.file(f"{folder}/{name}", text)
        if placed.group is not None:
            group = f"sys/kernel/iommu_groups/{placed.group}"
            self.link(f"{folder}/iommu_group", group)
            self.link(f"{group}/devices/{placed.address}", folder)
        driver = "pcieport" if isinstance(part, Bridge) else part.driver
        if virtual is not None:
            driver = virtual.driver
        if driver is not None:
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        # NVIDIA's driver speaks VFIO for virtual functions alone.
        if driver in self.machine.vfio and (driver != "nvidia" or virtual is not None):
            self.devices += 1
            own = f"{folder}/vfio-dev/vfio{self.devices}"
            self.file(f"{own}/dev", f"511:{self.devices}")
            self.link(f"sys/class/vfio-dev/vfio{self.devices}", own)
        if isinstance(part, Endpoint):
            self.endpoint(placed, part, folder)

    def endpoint(self, placed: Placed, part: Endpoint, folder: str) -> None:
        if placed.physical is not None:
            self.link(f"{folder}/physfn", f"sys/devices/{placed.physical.folder}")
            return
        if part.vfs is not None:
            self.file(f"{folder}/sriov_totalvfs", str(part.vfs.total))
            self.file(f"{folder}/sriov_numvfs", str(part.vfs.count))
            self.file(f"{folder}/sriov_vf_device", part.vfs.product)
            self.file(f"{folder}/sriov_offset", str(part.vfs.offset))
            self.file(f"{folder}/sriov_stride", str(part.vfs.stride))
            for index, virtual in enumerate(placed.virtual):
                self.link(f"{folder}/virtfn{index}", f"sys/devices/{virtual.folder}")
        for name, mac in part.net.items():
            self.file(f"{folder}/net/{name}/address", mac)
            self.link(f"sys/class/net/{name}", f"{folder}/net/{name}")
        for kind, name in part.devices.items():
            self.file(f"{folder}/{kind}/{name}/uevent", "")
        if part.rdma is not None:
            self.rdma(part.rdma, f"{folder}/infiniband/{part.rdma.name}")

    def rdma(self, rdma: Rdma, folder: str) -> None:
        self.file(f"{folder}/node_guid", rdma.guid)
        self.file(f"{folder}/sys_image_guid", rdma.guid)
        port = f"{folder}/ports/1"
        for name, text in (
            ("gids/0", f"{rdma.prefix}:{rdma.guid}"),
            ("link_layer", rdma.layer),
            ("rate", rdma.rate),
            ("state", rdma.state),
        ):
            self.file(f"{port}/{name}", text)

    def near(self, numa: int) -> list[int]:
        """CPUs that are local to a device there; all of them where no node is named."""
        nodes = [each for each in self.machine.numa if numa in (-1, each.id)]
        return sorted(cpu for each in nodes for cpu in cpu_ids(each.cpus))

    def resource(self, part: Bridge | Endpoint, virtual: bool) -> str:
        bars: dict[int, Bar] = {}
        if isinstance(part, Endpoint):
            for bar in part.bars:
                if virtual and bar.index >= 7:
                    bars[bar.index - 7] = bar
                elif not virtual:
                    bars[bar.index] = bar
        count = 17 if isinstance(part, Bridge) else 13
        lines = []
        for index in range(count):
            chosen = bars.get(index)
            lines.append(_NO_RESOURCE if chosen is None else self.window(chosen))
        return "\n".join(lines)

    def window(self, bar: Bar) -> str:
        start = (self.next_window + bar.size - 1) // bar.size * bar.size
        self.next_window = start + max(bar.size, MIB)
        flags = _MEMORY | (_PREFETCH if bar.prefetch else 0) | (_WIDE if bar.wide else 0)
        return f"0x{start:016x} 0x{start + bar.size - 1:016x} 0x{flags:016x}"


def link_files(link: Link, virtual: bool) -> dict[str, str]:
    """Speed and width; a virtual function's registers are void."""
    speed, width = link.now or (link.speed, link.width)
    if virtual:
        return {
            "current_link_speed": "Unknown",
            "current_link_width": "0",
            "max_link_speed": "Unknown",
            "max_link_width": "255",
        }
    return {
        "current_link_speed": f"{speed:.1f} GT/s PCIe",
        "current_link_width": str(width),
        "max_link_speed": f"{link.speed:.1f} GT/s PCIe",
        "max_link_width": str(link.width),
    }


def listed(numbers: Iterable[int]) -> str:
    """As the kernel's lists: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def masked(numbers: Iterable[int]) -> str:
    """As the kernel's masks: 32-bit words, highest first."""
    value = sum(1 << number for number in set(numbers))
    words = [f"{value & 0xFFFFFFFF:08x}"]
    while value := value >> 32:
        words.insert(0, f"{value & 0xFFFFFFFF:08x}")
    return ",".join(words)
