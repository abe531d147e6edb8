# SPDX-License-Identifier: Apache-2.0
"""This machine's hardware: PCI functions, NUMA nodes, huge pages.

No function raises: a value that cannot be read is None.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from .document import SharedMemory
from .files import Root
from .rdma_devices import find_smi_devices
from .segment import SegmentView, read_segment
from .shared_use import find_obstacles

DEVICES: Final = "/sys/bus/pci/devices"
_NODES: Final = "/sys/devices/system/node"
_HUGEPAGES: Final = "/sys/kernel/mm/hugepages"

_ADDRESS: Final = re.compile(
    r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f]\.[0-7])", re.ASCII | re.IGNORECASE
)
_HOST_BRIDGE: Final = re.compile(r"pci([0-9a-f]{4,8}):([0-9a-f]{2})", re.ASCII | re.IGNORECASE)
_SPEED: Final = re.compile(r"(\d{1,4}(?:\.\d)?) ?GT/s", re.ASCII)
_MEMORY: Final = re.compile(r"MemTotal:\s*(\d{1,15}) kB", re.ASCII)
#: Classes of kernel devices that identify a function for users.
_CLASSES: Final = ("infiniband", "net", "nvme", "drm")


class GuestFunction(NamedTuple):
    """A PCI function of this machine that is not a bridge, with its place and its link."""

    address: str
    #: As in the document: bus of the root, then device.function of each step.
    path: tuple[str, ...] | None
    #: Name of the host bridge, and addresses of the bridges above.
    root: str | None
    bridges: tuple[str, ...]
    vendor_id: str | None
    product_id: str | None
    class_code: str | None
    driver: str | None
    #: -1 if the kernel has no node for it.
    numa_node: int | None
    speed: float | None
    width: int | None
    max_speed: float | None
    names: tuple[str, ...]

    @property
    def switches(self) -> tuple[str, ...]:
        """The points that devices share, as for the cloud's inventory.

        Root port, upstream port, downstream port, upstream port, ...: an upstream port has
        a bridge below it. Without a switch, only the root port.
        """
        upstream = tuple(bridge for index, bridge in enumerate(self.bridges[:-1]) if index % 2 == 1)
        return upstream or self.bridges[:1]


class GuestNumaNode(NamedTuple):
    """A NUMA node with CPUs or memory."""

    number: int
    cpus: int
    memory_kib: int | None


class GuestMachine(NamedTuple):
    """The hardware of this machine: PCI functions, NUMA nodes, hugepages and shared memory."""

    functions: tuple[GuestFunction, ...]
    nodes: tuple[GuestNumaNode, ...]
    #: Size in KiB -> pages in the pool.
    hugepages: dict[int, int]
    #: None if it was not looked for.
    segment: SegmentView | None = None


def read_machine(root: Root, shared_memory: SharedMemory | None = None) -> GuestMachine:
    """Look at the machine.

    :param shared_memory: the promised one, to look for; None if none was promised.
    """
    functions = []
    for name in root.names(DEVICES):
        if _ADDRESS.fullmatch(name):
            function = _read_function(root, name.lower(), name)
            if function is not None:
                functions.append(function)
    return GuestMachine(
        tuple(functions),
        tuple(_read_kernel_nodes(root)),
        _read_page_pools(root),
        None if shared_memory is None else _read_shared_memory(root, shared_memory),
    )


def _read_shared_memory(root: Root, promise: SharedMemory) -> SegmentView:
    return read_segment(root, promise)._replace(obstacles=find_obstacles(root))


def locate_function_folder(root: Root, name: str) -> str:
    """Return the path of the folder of a PCI function in sysfs."""
    folder = f"{DEVICES}/{name}"
    link = root.link(folder)
    if link is not None and "/devices/" in link:
        # The link of a capture may be absolute: go by its text.
        return "/sys/devices/" + link.split("/devices/", 1)[1]
    return folder


def _read_function(root: Root, address: str, name: str) -> GuestFunction | None:
    link = root.link(f"{DEVICES}/{name}")
    host_bridge, bridges, path = _split_kernel_link(link or "", address)
    folder = locate_function_folder(root, name)
    class_code = _read_hex_digits(root, f"{folder}/class", 6)
    if class_code is not None and class_code.startswith(("0604", "0600", "0601")):
        return None
    driver = root.link(f"{folder}/driver")
    names = [
        f"{kind} {kernel_name}"
        for kind in _CLASSES
        for kernel_name in root.names(f"{folder}/{kind}")
        if kernel_name.isprintable() and not find_smi_devices({kernel_name: ()})
    ]
    return GuestFunction(
        address=address,
        path=path,
        root=host_bridge,
        bridges=bridges,
        vendor_id=_read_hex_digits(root, f"{folder}/vendor", 4),
        product_id=_read_hex_digits(root, f"{folder}/device", 4),
        class_code=class_code,
        driver=driver.rstrip("/").rpartition("/")[2] if driver else None,
        numa_node=_parse_whole(root.text(f"{folder}/numa_node")),
        speed=_parse_speed(root.text(f"{folder}/current_link_speed")),
        width=_parse_lanes(root.text(f"{folder}/current_link_width")),
        max_speed=_parse_speed(root.text(f"{folder}/max_link_speed")),
        names=tuple(names),
    )


def _split_kernel_link(
    link: str, address: str
) -> tuple[str | None, tuple[str, ...], tuple[str, ...] | None]:
    """Split the target of the kernel's link into host bridge, bridges above, and path of slots.

    The first and last are None if unknown.
    """
    host_bridge: str | None = None
    start: str | None = None
    above: list[str] = []
    for part in link.split("/"):
        bridge = _HOST_BRIDGE.fullmatch(part)
        if bridge:
            host_bridge, above = part.lower(), []
            domain, bus = bridge[1].lower(), bridge[2].lower()
            start = bus if int(domain, 16) == 0 else f"{domain}:{bus}"
        elif start is not None and _ADDRESS.fullmatch(part):
            above.append(part.lower())
    if start is None or not above or above[-1] != address:
        return None, (), None
    return host_bridge, tuple(above[:-1]), (start, *(hop.rpartition(":")[2] for hop in above))


def _read_kernel_nodes(root: Root) -> list[GuestNumaNode]:
    nodes = []
    for name in root.names(_NODES):
        if not re.fullmatch(r"node\d{1,4}", name, re.ASCII):
            continue
        memory = _MEMORY.search(root.text(f"{_NODES}/{name}/meminfo") or "")
        cpus = _count_listed_cpus(root.text(f"{_NODES}/{name}/cpulist") or "")
        nodes.append(GuestNumaNode(int(name[4:]), cpus, int(memory[1]) if memory else None))
    return sorted(nodes)


def _read_page_pools(root: Root) -> dict[int, int]:
    pools = {}
    for name in root.names(_HUGEPAGES):
        match = re.fullmatch(r"hugepages-(\d{1,10})kB", name, re.ASCII)
        if match:
            pools[int(match[1])] = _parse_whole(root.text(f"{_HUGEPAGES}/{name}/nr_hugepages")) or 0
    return pools


def _read_hex_digits(root: Root, path: str, length: int) -> str | None:
    text = (root.text(path) or "").lower()
    match = re.fullmatch(rf"0x([0-9a-f]{{{length}}})", text, re.ASCII)
    return match[1] if match else None


def _parse_whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d{1,12}", text, re.ASCII) else None


def _parse_speed(text: str | None) -> float | None:
    match = _SPEED.match(text or "")
    return float(match[1]) if match else None


def _parse_lanes(text: str | None) -> int | None:
    # The kernel shows 0 or 255 if the link is down.
    width = _parse_whole(text)
    return width if width is not None and 0 < width < 255 else None


def _count_listed_cpus(text: str) -> int:
    total = 0
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part, re.ASCII)
        if match:
            total += max(0, int(match[2] or match[1]) - int(match[1]) + 1)
    return total
