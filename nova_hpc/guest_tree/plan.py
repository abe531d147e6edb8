# SPDX-License-Identifier: Apache-2.0
"""From the devices' places on the host to the guest's tree.

The rule: :func:`nova_hpc_common.level.distance_between` gives the same result for
every pair of devices in the guest and on the host. The tree is the smallest
with this property: levels of switches without a branch are left out, and a
device that shares no switch with another of this guest has a port of its own.

A guest's firmware assigns bus numbers depth first from the number of each
expander. Addresses must not change when volumes or interfaces are added or
removed. So the expanders' numbers are fixed here, well above the buses of the
guest's own root complex.

An example, ``mirror``. NUMA node 0 has root complex r0: 03:00.0 and 04:00.0 are below switch s1,
which is below switch s0, and 05:00.0 is below s9. Node 1 has r1, with 83:00.0 below s2.

#. A root complex becomes an expander of its cell: r0 on bus 0x40, r1 on bus 0x50.
#. s0 has no branch, so it is left out. s1 becomes a switch: a root port (bus 0x41), an
   upstream port (0x42) and two downstream ports (0x43, 0x44). Its devices are
   0000:43:00.0 and 0000:44:00.0: PIX, as on the host.
#. s9 and s2 have one device of this guest each, so a root port is enough: 0000:45:00.0 and
   0000:51:00.0. For the pair below s1 the former is PHB and the latter SYS, as on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.guest_tree.model import (
    Bridge,
    TreeBranch,
    TreeDevice,
    TreePartKind,
    TreePlan,
    TreeSeat,
)
from nova_hpc.topology.model import address_key
from nova_hpc.wire.guest_abi import Abi, TopologyMode


class PlanError(ValueError):
    """The guest's PCIe tree cannot represent these devices in the mode of its flavor.

    ``str()`` is for the server's user: counts and levels. ``operator`` contains
    addresses.
    """

    def __init__(self, user: str, operator: str):
        super().__init__(user)
        self.operator = operator


class _FullError(ValueError):
    """The planned tree exceeds a limit of the guest. The text names the limit."""


def plan_guest_pci_tree(
    devices: Iterable[TreeDevice], cells: Mapping[int, int], abi: Abi
) -> TreePlan:
    """Plan the PCIe tree of a guest for its passthrough devices.

    :param devices: the guest's devices, in any order.
    :param cells: host NUMA node -> guest cell. Empty for a guest without NUMA cells:
        its expanders then belong to no cell.
    :raises PlanError: the mode cannot represent these devices.
    """
    ordered = sorted(devices, key=lambda device: address_key(device.address))
    if abi.mode is TopologyMode.FLAT or not ordered:
        return TreePlan()
    roots = (
        _mirror_roots(ordered, cells)
        if abi.mode is TopologyMode.MIRROR
        else _by_cell(ordered, cells)
    )
    try:
        return _number_parts(roots)
    except _FullError as error:
        raise PlanError(f"{_asked_mode(abi.mode)} is not possible: {error}.", str(error)) from error


def _asked_mode(mode: TopologyMode) -> str:
    return f"hpc:guest_topology={mode.value}"


def _by_cell(devices: list[TreeDevice], cells: Mapping[int, int]) -> tuple[TreeBranch, ...]:
    """Build one expander per cell. Devices of other NUMA nodes stay on the guest's own root."""
    by_cell: dict[int, list[TreeDevice]] = {}
    for device in devices:
        numa = device.location.numa
        if numa is not None and numa in cells:
            by_cell.setdefault(cells[numa], []).append(device)
    return tuple(
        TreeBranch(name=f"cell {cell}", below=tuple(below), cell=cell)
        for cell, below in sorted(by_cell.items())
    )


def _mirror_roots(devices: list[TreeDevice], cells: Mapping[int, int]) -> tuple[TreeBranch, ...]:
    """Build one expander per root complex of the host.

    :raises PlanError: the guest's cells do not cover the devices' NUMA nodes.
    """
    if cells:
        _check_cells(devices, cells)
    roots: dict[str, list[TreeDevice]] = {}
    for device in devices:
        # A device with an unknown root complex gets an expander of its own.
        root = device.location.root or f"unknown, of {device.address}"
        roots.setdefault(root, []).append(device)
    return tuple(_expander_of_root(name, below, cells) for name, below in roots.items())


def _check_cells(devices: list[TreeDevice], cells: Mapping[int, int]) -> None:
    """Refuse devices outside the guest's cells, and roots that span several NUMA nodes.

    An expander belongs to one cell, so all devices below it must be close to this cell.

    :raises PlanError: a device or a root complex does not fit.
    """
    strays = [device for device in devices if device.location.numa not in cells]
    if strays:
        raise PlanError(
            f"{_asked_mode(TopologyMode.MIRROR)} is not possible: {len(strays)} of the server's "
            f"{len(devices)} PCI devices are not near to any NUMA cell of the guest, so the guest "
            "could not be shown where they are; use a flavor with numa or flat.",
            f"{', '.join(device.address for device in strays)} off the guest's NUMA nodes",
        )
    homes: dict[str, set[int | None]] = {}
    for device in devices:
        if device.location.root is not None:
            homes.setdefault(device.location.root, set()).add(device.location.numa)
    split = sorted(root for root, nodes in homes.items() if len(nodes) > 1)
    if split:
        raise PlanError(
            f"{_asked_mode(TopologyMode.MIRROR)} is not possible: devices of one PCIe "
            f"root of the host are near "
            "to different NUMA nodes, which a guest cannot have; use a flavor with numa or flat.",
            f"devices of {', '.join(split)} are near to different NUMA nodes",
        )


def _expander_of_root(name: str, devices: list[TreeDevice], cells: Mapping[int, int]) -> TreeBranch:
    """Build the expander for one root complex of the host."""
    trunk = _Twig()
    below: list[TreeBranch | TreeDevice] = []
    for device in devices:
        if device.location.switches:
            trunk.grow(device)
        else:
            below.append(device)  # integrated in the root complex: below no port
    for switch, twig in trunk.twigs.items():
        branch = twig.branch(switch)
        # The guest's only device below its switch: a port is enough.
        below.extend(branch.devices if len(branch.devices) == 1 else [branch])
    numa = devices[0].location.numa
    cell = None if numa is None else cells.get(numa)
    return TreeBranch(name=name, below=tuple(sorted(below, key=_lowest_address_of)), cell=cell)


def _lowest_address_of(part: TreeBranch | TreeDevice) -> tuple[int, ...]:
    """Return the lowest host PCI address of a branch or device, as a sort key."""
    if isinstance(part, TreeDevice):
        return address_key(part.address)
    return min(address_key(device.address) for device in part.devices)


@attrs.define
class _Twig:
    """A switch of the host, with the devices and switches directly below it."""

    devices: list[TreeDevice] = attrs.Factory(list)
    twigs: dict[str, _Twig] = attrs.Factory(dict)

    def grow(self, device: TreeDevice) -> None:
        twig = self
        for switch in device.location.switches:
            twig = twig.twigs.setdefault(switch, _Twig())
        twig.devices.append(device)

    def branch(self, name: str) -> TreeBranch:
        """Return the branch below this point, without levels with one child and no device.

        :param name: of the first switch or root.
        """
        twig = self
        while not twig.devices and len(twig.twigs) == 1:
            ((name, twig),) = twig.twigs.items()
        parts: list[TreeBranch | TreeDevice] = [*twig.devices]
        parts += [below.branch(switch) for switch, below in twig.twigs.items()]
        return TreeBranch(name=name, below=tuple(sorted(parts, key=_lowest_address_of)))


# -- numbers: controllers, slots, and the guest's buses -----------------------------

#: Lower buses belong to the guest's own root and its ports.
FIRST_BUS: Final = 0x40
_BUSES: Final = 0x100
#: Expanders take these slots of the guest's own root.
FIRST_SLOT: Final = 0x06
EXPANDERS: Final = 0x1A - FIRST_SLOT
_SLOTS: Final = 32
_FUNCTIONS: Final = 8


def _number_parts(roots: tuple[TreeBranch, ...]) -> TreePlan:
    """Number all bridges, slots and buses of the guest's tree.

    :raises _FullError: there are too many.
    """
    if len(roots) > EXPANDERS:
        raise _FullError(
            f"the devices are below {len(roots)} PCIe roots, and a guest has at most {EXPANDERS}"
        )
    numbering = _Numbering()
    for place, (root, bus) in enumerate(zip(roots, _first_buses(roots), strict=True)):
        numbering.expander(root, FIRST_SLOT + place, bus)
    return TreePlan(bridges=tuple(numbering.bridges), seats=tuple(numbering.seats), roots=roots)


def _count_buses(part: TreeBranch | TreeDevice) -> int:
    """Count the buses that a part takes below its expander, including its port's."""
    if isinstance(part, TreeDevice):
        return 1
    return 2 + sum(_count_buses(inner) for inner in part.below)


def _first_buses(roots: tuple[TreeBranch, ...]) -> list[int]:
    """Return the bus of each expander, as the roundest numbers that fit."""
    needed = [1 + sum(_count_buses(part) for part in root.below) for root in roots]
    for step in (16, 8, 4, 2, 1):
        bus, buses = FIRST_BUS, []
        for count in needed:
            buses.append(bus)
            bus += -(-count // step) * step
        if bus <= _BUSES:
            return buses
    raise _FullError(
        f"the devices take {sum(needed)} PCI buses, and there are {_BUSES - FIRST_BUS} for them"
    )


@attrs.define
class _Numbering:
    """Numbers controllers depth first, in the order in which a guest's firmware numbers buses."""

    bridges: list[Bridge] = attrs.Factory(list)
    seats: list[TreeSeat] = attrs.Factory(list)
    bus: int = 0

    def expander(self, root: TreeBranch, slot: int, bus: int) -> None:
        self.bus = bus - 1
        index = self._add(TreePartKind.EXPANDER, 0, (slot, 0, False), root.cell)
        self._below(root.below, index, TreePartKind.ROOT_PORT)

    def _below(
        self, parts: tuple[TreeBranch | TreeDevice, ...], above: int, port: TreePartKind
    ) -> None:
        for place, part in zip(_place_ports(len(parts)), parts, strict=True):
            index = self._add(port, above, place)
            if isinstance(part, TreeDevice):
                self.seats.append(TreeSeat(device=part, port=index, bus=self.bus))
            else:
                upstream = self._add(TreePartKind.UPSTREAM, index, (0, 0, False))
                self._below(part.below, upstream, TreePartKind.DOWNSTREAM)

    def _add(
        self, kind: TreePartKind, parent: int, place: tuple[int, int, bool], cell: int | None = None
    ) -> int:
        self.bus += 1
        index = len(self.bridges) + 1
        slot, function, multifunction = place
        self.bridges.append(
            Bridge(kind, index, parent, slot, function, multifunction, self.bus, cell)
        )
        return index


def _place_ports(count: int) -> list[tuple[int, int, bool]]:
    """Return slot and function of each of *count* ports, and whether they share the slot."""
    if count <= _SLOTS:
        return [(place, 0, False) for place in range(count)]
    if count > _SLOTS * _FUNCTIONS:
        raise _FullError(f"there are {count} ports at one place, and room for 256")
    return [(place // _FUNCTIONS, place % _FUNCTIONS, True) for place in range(count)]
