# SPDX-License-Identifier: Apache-2.0
"""One compute node as immutable data.

Every reader of this package (sysfs, lstopo XML) makes a :class:`Node`, and
every writer takes one. Nothing here reads files. A value that could not be
read is None, never a guess; a function of which something essential could not
be read carries the reason in :attr:`PciFunction.unknown`.
"""

from __future__ import annotations

import enum
import functools
import re
from typing import Final

import attrs

from nova_hpc.topology.level import Location
from nova_hpc.topology.vfio import GENERIC, Vfio, is_known_vfio_driver

#: Domain (4 digits, up to 8 behind VMD or Hyper-V), bus, device, function.
ADDRESS: Final = re.compile(
    r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])", re.ASCII
)


class InventoryError(Exception):
    """An input that cannot be read at all; the text names the file and the cure."""


class AddressError(ValueError):
    """A text that is no PCI address."""


@functools.lru_cache(maxsize=4096)
def normalise_address(text: str) -> str:
    """Write a PCI address the way the kernel does: ``0000:17:00.0``.

    Lower case; the domain has four digits, and more only where it needs them.

    :raises AddressError: *text* is not ``domain:bus:device.function``.
    """
    match = ADDRESS.fullmatch(text)
    if match is None:
        raise AddressError(f"{text[:40]!r} is not a PCI address like 0000:17:00.0")
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def try_normalise_address(text: object) -> str | None:
    """The same of anything that others say; None: it is no PCI address."""
    try:
        return normalise_address(str(text))
    except AddressError:
        return None


@functools.lru_cache(maxsize=4096)
def address_key(address: str) -> tuple[int, ...]:
    """Sort key of a normalised address: numeric, so 10000:.. follows ffff:.."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def routing_number_of(address: str) -> int:
    """Bus, device and function as one number: a virtual function is so far from its own."""
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
    """The pool of one page size, in pages."""

    size_kib: int
    total: int
    free: int | None = None


@attrs.frozen
class NumaNode:
    """One NUMA node; it may have memory only, or CPUs only."""

    id: int
    #: Physical package of its CPUs; None when unknown, without CPUs, or several.
    socket: int | None = None
    #: Present CPUs, and those of them that are offline: Nova's CPU power management switches
    #: dedicated CPUs off while no server has them.
    cpus: frozenset[int] = frozenset()
    offline: frozenset[int] = frozenset()
    #: The online CPUs of each core, ordered by their lowest; of an offline one the kernel
    #: does not say it.
    smt_siblings: tuple[frozenset[int], ...] = ()
    memory_kib: int | None = None
    hugepages: tuple[HugePages, ...] = ()
    #: Address of the function (a GPU) whose own memory this node is.
    memory_of: str | None = None
    #: Of a node without CPUs: the nodes with CPUs that are nearest to it.
    near: frozenset[int] = frozenset()


@attrs.frozen
class PcieLink:
    """State of a PCIe link. Speed in GT/s per lane, width in lanes."""

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None
    #: What it carries now in one direction, GB/s after line coding.
    bandwidth: float | None = None

    @property
    def degraded(self) -> bool | None:
        """Slower or narrower than the device can; None when not known.

        An idle device may lower its *speed* to save power, so for a healthy
        node look at :attr:`narrow` first.
        """
        slow = _is_less(self.speed, self.max_speed)
        if slow or self.narrow:
            return True
        return None if slow is None or self.narrow is None else False

    @property
    def narrow(self) -> bool | None:
        """Fewer lanes than the device has; None when not known."""
        return _is_less(self.width, self.max_width)


def _is_less(current: float | None, most: float | None) -> bool | None:
    return None if current is None or most is None else current < most


@attrs.frozen
class Bar:
    """One base address register that is in use. Size in bytes."""

    index: int  # 0-5 the BARs, 6 the expansion ROM, 7-12 those of the VFs
    size: int
    io: bool = False
    prefetchable: bool = False
    wide: bool = False  # 64-bit


@attrs.frozen
class RdmaPort:
    """A port of an RDMA device."""

    number: int
    #: EUI-64 in the kernel's form, ``0002:c903:0041:2d21``; None: all zero or unknown.
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

    A reading is as old as the moment that it was made: what a claim relies on is read anew. The
    scheduler has no functions: of the place it knows what the tags of the pools say, of the state
    what ``stats['hpc']`` says. Fields that change with a tenancy say how.
    """

    #: Normalised, see normalise_address(). A place, no identity: after a reboot other hardware
    #: may be at it.
    address: str
    vendor_id: str | None = None  # four lower-case hex digits, without 0x
    product_id: str | None = None
    subsystem_vendor_id: str | None = None
    subsystem_id: str | None = None
    #: Base class and sub-class, four hex digits, and where it is known (lstopo
    #: of hwloc 1 and 2 does not say) the programming interface, two more.
    class_code: str | None = None
    revision: str | None = None
    #: None: bound to no driver (or not readable). While a server has it, one that gives it by
    #: VFIO; free devices may have the host's.
    driver: str | None = None
    #: What that driver makes of it, by the kernel's word; None: the kernel was not asked.
    vfio: Vfio | None = None
    #: The VFIO driver that the kernel has for its ids alone; None: vfio-pci, or not known.
    vfio_variant: str | None = None
    #: NUMA node, where there is exactly one; see also `local_numa_nodes`.
    numa_node: int | None = None
    #: Every NUMA node that is local (several below a host bridge that is
    #: wired to a whole socket or machine); empty when unknown.
    local_numa_nodes: frozenset[int] = frozenset()
    #: Physical package of its NUMA node; None: unknown.
    socket: int | None = None
    #: Root complex (host bridge) as the kernel names it, ``pci0000:17``. With `switches`, socket
    #: and NUMA node it is the place, which the tags carry to the scheduler; a claim is judged by
    #: a fresh reading.
    root: str | None = None
    #: Addresses of all bridges above it, outermost first; () directly below the root.
    path: tuple[str, ...] = ()
    #: The points of the path that devices share; see Location.switches.
    switches: tuple[str, ...] = ()
    bridge: BridgeKind | None = None  # None: an endpoint
    #: The kernel's number of its group, which lasts until the next boot; None: it has none,
    #: or that is unknown. All members of a group go to one server, or stay with the host.
    iommu_group: int | None = None
    #: The function's own ACS capability register (PCIe 7.7.11): what it can switch. None
    #: when it has none, and when the extended configuration space could not be read.
    acs_capability: int | None = None
    #: The function's own ACS control register (PCIe 7.7.11); 0 when it has
    #: none, None when the extended configuration space could not be read.
    acs_control: int | None = None
    #: A root port or switch downstream port that keeps what is below it apart
    #: from its neighbours; None: not known, or not such a port.
    acs_isolates: bool | None = None
    #: Every root port and switch downstream port above isolates. False: at
    #: least one does not; None: not known, or nothing above.
    acs_on_path: bool | None = None
    #: It can translate addresses itself (Address Translation Services), as a
    #: direct path to a neighbour below redirecting ports needs; None: not known.
    ats: bool | None = None
    #: It does so now; the kernel switches it on with the device's IOMMU domain: for a free
    #: device on VFIO it is off, and says nothing of a guest.
    ats_enabled: bool | None = None
    #: The lowest address of the accelerators that it is linked to by xGMI, itself among
    #: them; None: none, or the driver that would say so is not bound.
    hive: str | None = None
    #: As the kernel has them (``flr``, ``bus``, ...), in the order it tries;
    #: () none at all; None not known.
    reset_methods: tuple[str, ...] | None = None
    bars: tuple[Bar, ...] = ()
    #: Of a free device maybe slower than with work to do; its width never changes.
    link: PcieLink | None = None
    physical_function: str | None = None  # set on a virtual function: its PF
    #: Set on a PF: its enabled VFs. One provider in Placement stands for all of them.
    virtual_functions: tuple[str, ...] = ()
    total_vfs: int | None = None  # set on a PF: the most that it can have
    #: Of a PF: how far its first VF is from it, and one VF from the next, in routing ids
    #: (bus, device and function as one number), as far as the kernel knows before they are
    #: switched on; and the product id that they have.
    vf_offset: int | None = None
    vf_stride: int | None = None
    vf_product: str | None = None
    #: Of a virtual function: NVIDIA's type of vGPU (nvidia/current_vgpu_type); 0: none is set, so
    #: no guest can start with it; None: it is no vGPU.
    vgpu_type: int | None = None
    #: Empty while VFIO has it, as `os_devices` is: what a guest has is the guest's to name.
    rdma: tuple[RdmaDevice, ...] = ()
    #: Kernel devices, as "subsystem name": ``net ib0``, ``nvme nvme0``.
    os_devices: tuple[str, ...] = ()
    #: What people call it, from a database of names; never used to decide.
    model: str | None = None
    #: Why this function must not be relied on; None: everything essential
    #: (address, ids, class, place) was read and makes sense. Else it is withheld while it is
    #: free, and no server starts with it.
    unknown: str | None = None
    #: It answers with ones only, as a device that fell off the bus.
    silent: bool = False

    @property
    def is_bridge(self) -> bool:
        """A PCI-to-PCI bridge of any kind: never given to a guest."""
        return self.bridge is not None

    @property
    def on_vfio(self) -> bool:
        """Whether its driver offers it by VFIO, to a guest for one."""
        return is_known_vfio_driver(self.driver) if self.vfio is None else self.vfio is not Vfio.NO

    @property
    def guest_driver(self) -> str:
        """The driver by which it is given to guests: a VFIO driver that it has is kept."""
        if self.on_vfio and self.driver not in (None, GENERIC):
            return str(self.driver)
        return self.vfio_variant or GENERIC

    @property
    def dev_type(self) -> str:
        """The kind in Nova's words: ``type-PF``, ``type-VF`` or ``type-PCI``."""
        if self.physical_function is not None:
            return "type-VF"
        return "type-PF" if self.total_vfs or self.virtual_functions else "type-PCI"

    @property
    def location(self) -> Location:
        """Its place, for comparison with other functions."""
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

    Read from sysfs at each periodic update, and anew before a guest starts. The scheduler never
    has one: it knows a host by pools with tags, by its NUMA cells in Nova and by ``stats['hpc']``.
    """

    source: str  # what was read, for people: "/", "dgx2.xml"
    hostname: str | None = None  # the kernel's, for people; Nova may call the host otherwise
    #: By id. Their CPUs are all that are present, whoever has them; free ones Nova counts.
    numa_nodes: tuple[NumaNode, ...] = ()
    #: By address, the host's own, offered and given ones alike.
    functions: tuple[PciFunction, ...] = ()
    #: Bridges to which no bus numbers are assigned (an empty hot-plug port):
    #: nothing can be below them, and lstopo does not list them either.
    inactive: tuple[PciFunction, ...] = ()
    #: By id; where a device is judged, all members of its group are.
    iommu_groups: tuple[IommuGroup, ...] = ()
    #: Pools of the whole machine; those of a node are in its NumaNode. Free pages are those of
    #: the kernel at that moment; what a server may get is Nova's to count.
    hugepages: tuple[HugePages, ...] = ()
    #: CPUs that are present and offline, and on a NUMA node that the kernel does not tell.
    unplaced_cpus: frozenset[int] = frozenset()
    #: Why it is unknown which CPUs are present; None if it is known.
    cpus_unread: str | None = None
    #: What could not be read or made no sense, apart from single functions; notes for operators.
    problems: tuple[str, ...] = ()
    _functions: dict[str, PciFunction] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_index_functions, takes_self=True)
    )
    _groups: dict[int, IommuGroup] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_group_index, takes_self=True)
    )

    def function(self, address: str) -> PciFunction | None:
        """The function (also an inactive bridge) at a normalised *address*, if any."""
        return self._functions.get(address)

    def iommu_group(self, group: int) -> IommuGroup | None:
        """The IOMMU group with that number, if there is one."""
        return self._groups.get(group)

    def group_members(self, function: PciFunction) -> tuple[str, ...]:
        """All members of *function*'s IOMMU group, itself included; () without one."""
        if function.iommu_group is None:
            return ()
        group = self.iommu_group(function.iommu_group)
        return (function.address,) if group is None else group.members

    def numa_node(self, number: int) -> NumaNode | None:
        """The NUMA node with that number, if there is one."""
        return next((node for node in self.numa_nodes if node.id == number), None)

    @property
    def cpus(self) -> frozenset[int]:
        """Present CPUs of all NUMA nodes."""
        return frozenset().union(*(node.cpus for node in self.numa_nodes))

    @property
    def offline_cpus(self) -> frozenset[int]:
        """Those of them that are offline."""
        return frozenset().union(*(node.offline for node in self.numa_nodes))
