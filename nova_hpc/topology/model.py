# SPDX-License-Identifier: Apache-2.0
"""One compute node as immutable data.

Every reader of this package (sysfs, lstopo XML) makes a :class:`Node`, and
every writer takes one. Nothing here reads files. A value that could not be
read is None, never a guess. If an essential value of a function could not be read,
:attr:`PciFunction.unknown` contains the reason.
"""

from __future__ import annotations

import enum
import functools
import re
from typing import Final

import attrs

from nova_hpc.topology.vfio import GENERIC, Vfio, is_known_vfio_driver
from nova_hpc_common.level import Location

#: Domain (4 digits, up to 8 behind VMD or Hyper-V), bus, device, function.
ADDRESS: Final = re.compile(
    r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])", re.ASCII
)


class InventoryError(Exception):
    """The description of a node cannot be read at all. The text names the file and the remedy."""


class AddressError(ValueError):
    """A text is not a PCI address."""


@functools.lru_cache(maxsize=4096)
def normalise_address(text: str) -> str:
    """Write a PCI address the way the kernel does: ``0000:17:00.0``.

    Lower case; the domain has four digits, or more if it needs them.

    :raises AddressError: *text* is not ``domain:bus:device.function``.
    """
    match = ADDRESS.fullmatch(text)
    if match is None:
        raise AddressError(f"{text[:40]!r} is not a PCI address like 0000:17:00.0")
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def try_normalise_address(text: object) -> str | None:
    """Normalise a PCI address like :func:`normalise_address`; None if it is not a PCI address."""
    try:
        return normalise_address(str(text))
    except AddressError:
        return None


@functools.lru_cache(maxsize=4096)
def address_key(address: str) -> tuple[int, ...]:
    """Sort key of a normalised address: numeric, so 10000:.. follows ffff:.."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def routing_number_of(address: str) -> int:
    """Return bus, device and function as one number; VF offset and stride count in this number."""
    _, bus, device, number = address_key(address)
    return bus << 8 | device << 3 | number


class BridgeKind(enum.Enum):
    """The kind of a PCI-to-PCI bridge."""

    ROOT_PORT = "root-port"
    UPSTREAM = "switch-upstream"
    DOWNSTREAM = "switch-downstream"
    #: Conventional PCI bridge, or one between PCIe and PCI.
    PCI = "pci-bridge"


@attrs.frozen
class HugePages:
    """The huge pages of one size on a NUMA node or a machine, as numbers of pages."""

    size_kib: int
    total: int
    free: int | None = None


@attrs.frozen
class NumaNode:
    """One NUMA node; it may have memory only, or CPUs only."""

    id: int
    #: Physical package of its CPUs; None if unknown, without CPUs, or several.
    socket: int | None = None
    #: Present CPUs, and the offline ones among them: Nova's CPU power management switches
    #: dedicated CPUs off while no server uses them.
    cpus: frozenset[int] = frozenset()
    offline: frozenset[int] = frozenset()
    #: The online CPUs of each core, ordered by their lowest. The kernel does not show the core
    #: of an offline CPU.
    smt_siblings: tuple[frozenset[int], ...] = ()
    memory_kib: int | None = None
    hugepages: tuple[HugePages, ...] = ()
    #: Address of the GPU whose own memory this node is.
    memory_of: str | None = None
    #: For a node without CPUs: the nearest nodes with CPUs.
    near: frozenset[int] = frozenset()


@attrs.frozen
class PcieLink:
    """State of a PCIe link. Speed in GT/s per lane, width in lanes."""

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None
    #: Current rate in one direction, GB/s after line coding.
    bandwidth: float | None = None

    @property
    def degraded(self) -> bool | None:
        """Whether the link is slower or narrower than the device supports; None if unknown.

        An idle device may lower its *speed* to save power, so for a healthy
        node look at :attr:`narrow` first.
        """
        slow = _is_less(self.speed, self.max_speed)
        if slow or self.narrow:
            return True
        return None if slow is None or self.narrow is None else False

    @property
    def narrow(self) -> bool | None:
        """Whether the link has fewer lanes than the device supports; None if unknown."""
        return _is_less(self.width, self.max_width)


def _is_less(current: float | None, most: float | None) -> bool | None:
    return None if current is None or most is None else current < most


@attrs.frozen
class Bar:
    """One base address register of a PCI function that is in use. Its size is in bytes."""

    index: int  # 0-5 the BARs, 6 the expansion ROM, 7-12 those of the VFs
    size: int
    io: bool = False
    prefetchable: bool = False
    wide: bool = False  # 64-bit


@attrs.frozen
class RdmaPort:
    """A port of an RDMA device, as sysfs shows it; None for values that are missing."""

    number: int
    #: EUI-64 in the kernel's form, ``0002:c903:0041:2d21``; None if all zero or unknown.
    guid: str | None = None
    link_layer: str | None = None  # InfiniBand, Ethernet
    state: str | None = None  # ACTIVE, DOWN, ...
    rate: str | None = None  # "100 Gb/sec (4X EDR)"


@attrs.frozen
class RdmaDevice:
    """An RDMA device of a PCI function, e.g. ``mlx5_0``."""

    name: str
    node_guid: str | None = None
    ports: tuple[RdmaPort, ...] = ()


@attrs.frozen
class PciFunction:
    """One PCI function, as sysfs shows it at one reading of the node.

    A reading may be stale; a claim reads the device again. The scheduler has no functions: it
    uses the tags of the pools for the place, and ``stats['hpc']`` for the state. Fields that
    change with a tenancy describe how.
    """

    #: Normalised, see normalise_address(). It is a place and not an identity: after a reboot
    #: other hardware may have this address.
    address: str
    vendor_id: str | None = None  # four lower-case hex digits, without 0x
    product_id: str | None = None
    subsystem_vendor_id: str | None = None
    subsystem_id: str | None = None
    #: Base class and sub-class, four hex digits, and two more for the programming interface
    #: if it is known (lstopo of hwloc 1 and 2 omits it).
    class_code: str | None = None
    revision: str | None = None
    #: None if no driver is bound, or if it is not readable. While a server has the function it
    #: is a VFIO driver; a free function may have the host's driver.
    driver: str | None = None
    #: The driver's part in VFIO as the kernel reports it; None if it was not read.
    vfio: Vfio | None = None
    #: The kernel's VFIO driver for exactly its ids; None for vfio-pci, or if unknown.
    vfio_variant: str | None = None
    #: NUMA node, if there is exactly one; see also `local_numa_nodes`.
    numa_node: int | None = None
    #: Every NUMA node that is local (several below a host bridge that is
    #: wired to a whole socket or machine); empty if unknown.
    local_numa_nodes: frozenset[int] = frozenset()
    #: Physical package of its NUMA node; None if unknown.
    socket: int | None = None
    #: Root complex (host bridge) as the kernel names it, ``pci0000:17``. With `switches`, socket
    #: and NUMA node it is the place, which the tags carry to the scheduler. A claim judges a
    #: fresh reading.
    root: str | None = None
    #: Addresses of all bridges above it, outermost first; () directly below the root.
    path: tuple[str, ...] = ()
    #: The points of the path that devices share; see Location.switches.
    switches: tuple[str, ...] = ()
    bridge: BridgeKind | None = None  # None: an endpoint
    #: The kernel's number of its group, which lasts until the next boot; None if it has none
    #: or it is unknown. All members of a group go to one server, or stay with the host.
    iommu_group: int | None = None
    #: The function's own ACS capability register (PCIe 7.7.11): the bits that it can switch.
    #: None if it has none, or if the extended configuration space could not be read.
    acs_capability: int | None = None
    #: The function's own ACS control register (PCIe 7.7.11); 0 if it has
    #: none, None if the extended configuration space could not be read.
    acs_control: int | None = None
    #: Whether a root port or switch downstream port keeps the devices below it apart
    #: from its neighbours; None if unknown, or if it is not such a port.
    acs_isolates: bool | None = None
    #: Every root port and switch downstream port above isolates. False if at
    #: least one does not; None if unknown, or if nothing is above.
    acs_on_path: bool | None = None
    #: It can translate addresses itself (Address Translation Services). A direct path to a
    #: neighbour below redirecting ports needs this. None if unknown.
    ats: bool | None = None
    #: ATS is on now. The kernel switches it on with the device's IOMMU domain: it is off for
    #: a free device on VFIO, which is no evidence about a guest.
    ats_enabled: bool | None = None
    #: The lowest address of the accelerators that it is linked to by xGMI, itself among
    #: them; None if there is none, or if the driver that reports it is not bound.
    hive: str | None = None
    #: In the kernel's words (``flr``, ``bus``, ...), in the order it tries them;
    #: () if there is none, None if unknown.
    reset_methods: tuple[str, ...] | None = None
    bars: tuple[Bar, ...] = ()
    #: A free device may be slower than one under load; its width never changes.
    link: PcieLink | None = None
    physical_function: str | None = None  # set on a virtual function: its PF
    #: Set on a PF: its enabled VFs. One provider in Placement stands for all of them.
    virtual_functions: tuple[str, ...] = ()
    total_vfs: int | None = None  # set on a PF: the most that it can have
    #: Of a PF: the distance to its first VF, and from one VF to the next, in routing ids
    #: (bus, device and function as one number), and the product id of its VFs. The kernel may
    #: report them before the VFs are switched on.
    vf_offset: int | None = None
    vf_stride: int | None = None
    vf_product: str | None = None
    #: Of a VF: NVIDIA's type of vGPU (nvidia/current_vgpu_type). 0 if none is set, so that no
    #: guest can start with it; None if it is not a vGPU.
    vgpu_type: int | None = None
    #: Empty while VFIO has it, like `os_devices`: the guest names the devices of a guest.
    rdma: tuple[RdmaDevice, ...] = ()
    #: Kernel devices, as "subsystem name": ``net ib0``, ``nvme nvme0``.
    os_devices: tuple[str, ...] = ()
    #: Name for people, from a database of names; never used for decisions.
    model: str | None = None
    #: Reason why this function must not be relied on; None if everything essential
    #: (address, ids, class, place) was read and makes sense. With a reason it is withheld while
    #: it is free, and no server starts with it.
    unknown: str | None = None
    #: All its registers read as ones, as if it fell off the bus.
    silent: bool = False

    @property
    def is_bridge(self) -> bool:
        """Whether the function is a PCI-to-PCI bridge, which is never given to a guest."""
        return self.bridge is not None

    @property
    def on_vfio(self) -> bool:
        """Whether the bound driver offers the function by VFIO, for example to a guest."""
        return is_known_vfio_driver(self.driver) if self.vfio is None else self.vfio is not Vfio.NO

    @property
    def guest_driver(self) -> str:
        """The driver for passthrough: a bound variant driver, or else the best match.

        A bound ``vfio-pci`` gives way to a variant driver of the device if there is one.
        """
        if self.on_vfio and self.driver not in (None, GENERIC):
            return str(self.driver)
        return self.vfio_variant or GENERIC

    @property
    def dev_type(self) -> str:
        """The kind of the function in Nova's words: ``type-PF``, ``type-VF`` or ``type-PCI``."""
        if self.physical_function is not None:
            return "type-VF"
        return "type-PF" if self.total_vfs or self.virtual_functions else "type-PCI"

    @property
    def location(self) -> Location:
        """The NUMA node, socket, root complex and switches of the function."""
        return Location(
            numa=self.numa_node, socket=self.socket, root=self.root, switches=self.switches
        )


@attrs.frozen
class IommuGroup:
    """An IOMMU group with all its members, PCI or not, assignable or not."""

    id: int
    #: PCI addresses (normalised, in order), then names of other devices.
    members: tuple[str, ...]


def _index_functions(node: Node) -> dict[str, PciFunction]:
    return {function.address: function for function in (*node.inactive, *node.functions)}


def _group_index(node: Node) -> dict[int, IommuGroup]:
    return {group.id: group for group in node.iommu_groups}


@attrs.frozen
class Node:
    """One machine: its NUMA nodes and every PCI function, at one reading.

    Read from sysfs at each periodic update, and again before a guest starts. The scheduler never
    has one: it describes a host by pools with tags, NUMA cells in Nova and ``stats['hpc']``.
    """

    source: str  # input of the reading, for people: "/", "dgx2.xml"
    hostname: str | None = None  # the kernel's, for people; Nova may use another name
    #: By id. Their CPUs are all present ones, used or free; Nova counts the free ones.
    numa_nodes: tuple[NumaNode, ...] = ()
    #: By address: the host's own functions, the offered ones and the ones in use.
    functions: tuple[PciFunction, ...] = ()
    #: Bridges to which no bus numbers are assigned (an empty hot-plug port):
    #: nothing can be below them, and lstopo does not list them either.
    inactive: tuple[PciFunction, ...] = ()
    #: By id; a check of a device checks all members of its group.
    iommu_groups: tuple[IommuGroup, ...] = ()
    #: Pools of the whole machine; NumaNode contains the pools of a node. Free pages are the
    #: kernel's count at that moment; Nova counts the pages for servers.
    hugepages: tuple[HugePages, ...] = ()
    #: CPUs that are present and offline, and whose NUMA node the kernel does not show.
    unplaced_cpus: frozenset[int] = frozenset()
    #: Reason why the set of present CPUs is unknown; None if it is known.
    cpus_unread: str | None = None
    #: Unreadable or senseless values that belong to no single function; notes for operators.
    problems: tuple[str, ...] = ()
    _functions: dict[str, PciFunction] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_index_functions, takes_self=True)
    )
    _groups: dict[int, IommuGroup] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_group_index, takes_self=True)
    )

    def function(self, address: str) -> PciFunction | None:
        """Return the PCI function, or inactive bridge at the normalised *address*, if any."""
        return self._functions.get(address)

    def iommu_group(self, group: int) -> IommuGroup | None:
        """Return the IOMMU group with that number; None if the node has none."""
        return self._groups.get(group)

    def group_members(self, function: PciFunction) -> tuple[str, ...]:
        """Return all members of *function*'s IOMMU group, itself too; () if it has no group."""
        if function.iommu_group is None:
            return ()
        group = self.iommu_group(function.iommu_group)
        return (function.address,) if group is None else group.members

    def numa_node(self, number: int) -> NumaNode | None:
        """Return the NUMA node with that number; None if the host has none."""
        return next((node for node in self.numa_nodes if node.id == number), None)

    @property
    def cpus(self) -> frozenset[int]:
        """All present CPUs of the node's NUMA nodes, by number."""
        return frozenset().union(*(node.cpus for node in self.numa_nodes))

    @property
    def offline_cpus(self) -> frozenset[int]:
        """The offline CPUs of all NUMA nodes."""
        return frozenset().union(*(node.offline for node in self.numa_nodes))
