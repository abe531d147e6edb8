# SPDX-License-Identifier: Apache-2.0
"""Read a node from the XML that ``lstopo`` writes (hwloc 1, 2 and 3).

The XML contains less than sysfs: no drivers, IOMMU groups, reset methods or VFs,
and only the total bandwidth of a link. Missing values are None.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import attrs
from lxml import etree

from nova_hpc.topology import cpuset
from nova_hpc.topology.files import show_path
from nova_hpc.topology.function_places import Raw, place_functions
from nova_hpc.topology.model import (
    AddressError,
    HugePages,
    InventoryError,
    Node,
    NumaNode,
    PcieLink,
    PciFunction,
    normalise_address,
)
from nova_hpc.topology.rdma_types import find_smi_devices

#: Bytes; the XML of the largest machines is a few MiB.
LARGEST: Final = 1 << 25
#: PCI functions, all virtual ones among them; the kernel's NUMA nodes (MAX_NUMNODES); objects.
#: Far more than a node has, and few enough for the comparisons between them.
MOST_FUNCTIONS: Final = 2048
MOST_NODES: Final = 1024
MOST_OBJECTS: Final = 1 << 17
#: CPUs in all masks together: each CPU is in about a dozen, from the machine to its thread.
MOST_CPUS: Final = 1 << 20
#: Problems that are listed one by one.
_TOLD: Final = 20

_TYPE: Final = re.compile(
    r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\] \[([0-9a-f]{4}):([0-9a-f]{4})\]"
    r" ([0-9a-f]{2})(?: ([0-9a-f]{2}))?"
)
_BUSES: Final = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-([0-9a-f]{2})\]")
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)
_RATE: Final = re.compile(r"\d{1,6}(?:\.\d{1,9})?", re.ASCII)
#: Meaning of the number of an OS device: a type in hwloc 1 and 2, bits in 3.
_OS_TYPES: Final = ("block", "gpu", "net", "infiniband", "dma", "coproc", "memory")
#: Several bits may be set: the most specific word comes first.
_OS_BITS: Final = {
    5: "infiniband",
    4: "net",
    2: "gpu",
    3: "coproc",
    0: "block",
    1: "memory",
    6: "dma",
}
_PACKAGES: Final = ("Package", "Socket")
_NODES: Final = ("NUMANode", "Node")


def read_lstopo_file(path: Path) -> Node:
    """Read a file written by ``lstopo --of xml`` (any version of hwloc).

    An object that makes no sense becomes an unknown function or a problem.

    :raises InventoryError: no such file, or no topology in it.
    """
    root = parse_file(path)
    version = root.get("version", "")
    reader = _LstopoReader(bits=version.startswith("3"))
    try:
        reader.walk(root)
    except _TooManyError as error:
        raise InventoryError(
            f"{show_path(path)}: more than {error}, so not the XML of a node that lstopo wrote"
        ) from error
    numa_nodes = reader.numa_nodes()
    functions, inactive = place_functions(reader.raws.values(), numa_nodes, {})
    return Node(
        source=show_path(path),
        hostname=reader.hostname,
        numa_nodes=numa_nodes,
        functions=tuple(functions),
        inactive=tuple(inactive),
        hugepages=_sum_hugepages(numa_nodes),
        problems=reader.said,
    )


def parse_file(path: Path) -> etree._Element:
    """Parse a topology that lstopo wrote; return its root element.

    The file may come from anywhere: no entity is expanded, nothing is fetched, and libxml2's limits
    on depth and size stay on.

    :raises InventoryError: no such file, not XML, or no topology in it.
    """
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        if not path.is_file():
            raise InventoryError(f"{show_path(path)}: no such file; give a file that lstopo wrote")
        if path.stat().st_size > LARGEST:
            raise InventoryError(
                f"{show_path(path)}: larger than {LARGEST >> 20} MiB, so not lstopo's XML"
            )
        root = etree.fromstring(path.read_bytes(), parser)
    except OSError as error:
        raise InventoryError(f"{show_path(path)}: cannot be read: {error.strerror}") from error
    except (etree.LxmlError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise InventoryError(
            f"{show_path(path)}: not well-formed XML ({detail}); write it again with: "
            f"lstopo --of xml"
        ) from error
    dtd: Any = root.getroottree().docinfo.internalDTD
    if dtd is not None and next(dtd.iterentities(), None) is not None:
        raise InventoryError(
            f"{show_path(path)}: declares XML entities, which lstopo never does; not read"
        )
    if root.tag not in ("topology", "root") or root.find("object") is None:
        raise InventoryError(
            f"{show_path(path)}: no hwloc topology in it; write it with: lstopo --of xml"
        )
    return root


@attrs.frozen
class _Around:
    """The properties that an object in lstopo's XML inherits from the objects around it."""

    cpus: frozenset[int] | None = None
    package: int | None = None
    root: str | None = None
    above: tuple[str, ...] = ()
    function: str | None = None


@attrs.define
class _Numa:
    cpus: frozenset[int]
    memory_kib: int | None
    hugepages: tuple[HugePages, ...]


class _TooManyError(Exception):
    """The XML has more objects of a kind than any node has."""


@attrs.define
class _LstopoReader:
    bits: bool
    hostname: str | None = None
    raws: dict[str, Raw] = attrs.Factory(dict)
    nodes: dict[int, _Numa] = attrs.Factory(dict)
    cores: list[frozenset[int]] = attrs.Factory(list)
    packages: dict[int, int] = attrs.Factory(dict)  # CPU -> package
    cpus: set[int] = attrs.Factory(set)  # PUs
    problems: list[str] = attrs.Factory(list)
    named: int = 0  # CPUs, in all masks

    @property
    def said(self) -> tuple[str, ...]:
        """The first problems, and the number of further ones."""
        more = len(self.problems) - _TOLD
        rest = (f"and {more} more problems like these",) if more > 0 else ()
        return (*self.problems[:_TOLD], *rest)

    def walk(self, root: etree._Element) -> None:
        """Visit every object in a loop, because the recursion limit of Python is low."""
        queue = [(item, _Around()) for item in _child_objects(root)]
        seen = 0
        while queue:
            item, around = queue.pop()
            seen += 1
            _refuse_more_than(seen, MOST_OBJECTS, "objects")
            inside = self.visit(item, around)
            # The queue is popped from its end, so reversed children come in document order.
            queue.extend((child, inside) for child in reversed(_child_objects(item)))

    def visit(self, item: etree._Element, around: _Around) -> _Around:
        kind = item.get("type", "")
        around = attrs.evolve(around, cpus=self.cpuset(item, around.cpus))
        if kind in ("Machine", "System"):
            self.hostname = _info_value_of(item, "HostName")
        elif kind == "PU":
            index = self.number(item, "os_index")
            if index is not None and index < cpuset.MOST:
                self.cpus.add(index)
        elif kind == "Core" and around.cpus:
            self.cores.append(around.cpus)
        elif kind in _PACKAGES:
            index = self.number(item, "os_index")
            if index is not None:
                self.packages.update(dict.fromkeys(around.cpus or (), index))
        elif kind in _NODES:
            self.numa(item, around)
        elif kind in ("Bridge", "PCIDev"):
            return self.pci(item, around)
        elif kind == "OSDev" and around.function is not None:
            self.os_device(item, self.raws[around.function])
        return around

    def problem(self, item: etree._Element, text: str) -> None:
        self.problems.append(f"line {item.sourceline}: {text}")

    def cpuset(
        self, item: etree._Element, inherited: frozenset[int] | None
    ) -> frozenset[int] | None:
        text = item.get("cpuset")
        if text is None:
            return inherited
        try:
            cpus = cpuset.parse_bitmap(text)
        except ValueError as error:
            self.problem(item, str(error))
            return inherited
        self.named += len(cpus or ())
        _refuse_more_than(self.named, MOST_CPUS, "CPUs in its masks")
        return cpus

    def number(self, item: etree._Element, name: str) -> int | None:
        text = item.get(name)
        if text is None:
            return None
        if _NUMBER.fullmatch(text) is None:
            self.problem(item, f"{name}: {text[:40]!r} is not a number")
            return None
        return int(text)

    def numa(self, item: etree._Element, around: _Around) -> None:
        index = self.number(item, "os_index")
        if index is None or index in self.nodes:
            self.problem(item, "a NUMA node without a number of its own, left out")
            return
        _refuse_more_than(len(self.nodes) + 1, MOST_NODES, "NUMA nodes")
        memory = self.number(item, "local_memory")
        pools = []
        # The first entry is the ordinary page.
        for page in item.findall("page_type")[1:]:
            size, count = self.number(page, "size"), self.number(page, "count")
            if size and count is not None:
                pools.append(HugePages(size_kib=size >> 10, total=count))
        self.nodes[index] = _Numa(
            cpus=around.cpus or frozenset(),
            memory_kib=None if memory is None else memory >> 10,
            hugepages=tuple(sorted(pools, key=lambda pool: pool.size_kib)),
        )

    def pci(self, item: etree._Element, around: _Around) -> _Around:
        """Read a host bridge, a bridge or a function; return the place for objects below it."""
        bridge = item.get("type") == "Bridge"
        match = _BUSES.fullmatch(item.get("bridge_pci", ""))
        buses = (int(match[2], 16), int(match[3], 16)) if match else None
        if bridge and item.get("bridge_type", "").startswith("0-"):
            root = f"pci{int(match[1], 16):04x}:{match[2]}" if match else None
            if root is None:
                self.problem(item, "a host bridge without bus numbers")
            return attrs.evolve(around, root=root, above=(), function=None)
        try:
            address = normalise_address(item.get("pci_busid", ""))
        except AddressError as error:
            self.problem(item, f"{error}, left out")
            return attrs.evolve(around, function=None)
        if address in self.raws:
            self.problem(item, f"a second {address}, left out")
            return attrs.evolve(around, function=None)
        _refuse_more_than(len(self.raws) + 1, MOST_FUNCTIONS, "PCI functions")
        self.raws[address] = self.raw(item, address, around, bridge, buses)
        above = (*around.above, address) if bridge else around.above
        return attrs.evolve(around, above=above, function=address)

    def raw(
        self,
        item: etree._Element,
        address: str,
        around: _Around,
        bridge: bool,
        buses: tuple[int, int] | None,
    ) -> Raw:
        function = PciFunction(
            address=address, root=around.root, model=_info_value_of(item, "PCIDevice")
        )
        reasons = []
        text = item.get("pci_type", "")
        match = _TYPE.fullmatch(text)
        if match is None:
            reasons.append(f"pci_type: {text[:60]!r} is not understood")
        else:
            code, vendor, product, sub_vendor, sub_product, revision, interface = match.groups()
            # hwloc writes zeros for unreadable ids.
            if vendor == "0000":
                reasons.append("pci_type: no vendor")
                if code != "0000":
                    function = attrs.evolve(function, class_code=code + (interface or ""))
            else:
                function = attrs.evolve(
                    function,
                    vendor_id=vendor,
                    product_id=product,
                    subsystem_vendor_id=None if sub_vendor == "0000" else sub_vendor,
                    subsystem_id=None if sub_vendor == "0000" else sub_product,
                    class_code=code + (interface or ""),
                    revision=revision,
                )
        if bridge and buses is None:
            reasons.append("bridge_pci: no bus numbers")
        rate = item.get("pci_link_speed", "")
        if _RATE.fullmatch(rate) and float(rate) > 0:
            function = attrs.evolve(function, link=PcieLink(bandwidth=float(rate)))
        return Raw(
            function=function,
            above=around.above,
            buses=buses if bridge else None,
            is_bridge=bridge,
            local_cpus=around.cpus,
            # An object at the top is equally near to the whole machine.
            numa_node=-1,
            reasons=reasons,
        )

    def os_device(self, item: etree._Element, raw: Raw) -> None:
        name = item.get("name", "")
        number = self.number(item, "osdev_type")
        kind = "device"
        if number is not None and self.bits:
            kind = next((word for bit, word in _OS_BITS.items() if number >> bit & 1), kind)
        elif number is not None and number < len(_OS_TYPES):
            kind = _OS_TYPES[number]
        if find_smi_devices({name: ()}):
            return
        if re.fullmatch(r"[\w.:@+-]{1,64}", name, re.ASCII):
            raw.function = attrs.evolve(
                raw.function, os_devices=(*raw.function.os_devices, f"{kind} {name}")
            )

    def numa_nodes(self) -> tuple[NumaNode, ...]:
        online = frozenset(self.cpus)
        nodes = self.nodes
        if not nodes:  # hwloc 1 writes no node for a machine without NUMA
            nodes = {0: _Numa(cpus=online, memory_kib=None, hugepages=())}
        taken: set[int] = set()
        finished = []
        for number, node in sorted(nodes.items()):
            # Memory of a second kind lists the CPUs that it is near to, and these belong
            # to another node.
            cpus = (node.cpus & online if online else node.cpus) - taken
            taken |= cpus
            sockets = {self.packages[cpu] for cpu in cpus if cpu in self.packages}
            cores = {core & cpus for core in self.cores if core & cpus}
            alone = cpus - frozenset().union(*cores)
            cores |= {frozenset({cpu}) for cpu in alone}
            finished.append(
                NumaNode(
                    id=number,
                    socket=sockets.pop() if len(sockets) == 1 else None,
                    cpus=cpus,
                    smt_siblings=tuple(sorted(cores, key=min)),
                    memory_kib=node.memory_kib,
                    hugepages=node.hugepages,
                )
            )
        return tuple(finished)


def _refuse_more_than(number: int, most: int, what: str) -> None:
    if number > most:
        raise _TooManyError(f"{most} {what}")


def _child_objects(item: etree._Element) -> list[etree._Element]:
    return item.findall("object")


def _info_value_of(item: etree._Element, name: str) -> str | None:
    for info in item.findall("info"):
        value = info.get("value", "")
        if info.get("name") == name and value.isprintable():
            return value[:120] or None
    return None


def _sum_hugepages(nodes: tuple[NumaNode, ...]) -> tuple[HugePages, ...]:
    totals: dict[int, int] = {}
    for node in nodes:
        for pool in node.hugepages:
            totals[pool.size_kib] = totals.get(pool.size_kib, 0) + pool.total
    return tuple(HugePages(size_kib=size, total=total) for size, total in sorted(totals.items()))
