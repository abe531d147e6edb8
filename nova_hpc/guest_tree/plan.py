# SPDX-License-Identifier: Apache-2.0
"""From the devices' places on the host to the guest's tree.

The rule is that :func:`nova_hpc.topology.level.distance` says the same of
every pair of devices in the guest and on the host. The tree is the smallest
that does so: levels of switches at which nothing branches are left out, and a
device that shares no switch with another of this guest has a port of its own.

A guest's firmware gives out bus numbers depth first from the number of each
expander. So that the addresses stay as they are when volumes or interfaces
come and go, the expanders' numbers are fixed here, well above the buses of the
guest's own root complex.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.guest_tree.model import Branch, Bridge, Device, Kind, Plan, Seat
from nova_hpc.topology.model import address_key
from nova_hpc.wire.guest_abi import Abi, Mode


class PlanError(ValueError):
    """A set of devices that cannot be shown as asked.

    ``str()`` is for the server's user: counts and levels. ``operator`` names
    addresses.
    """

    def __init__(self, user: str, operator: str):
        super().__init__(user)
        self.operator = operator


class _FullError(ValueError):
    """More than a guest can have; the text says of what."""


def plan(devices: Iterable[Device], cells: Mapping[int, int], abi: Abi) -> Plan:
    """Plan a guest's tree.

    :param devices: what the guest gets, in any order.
    :param cells: host NUMA node -> guest cell; empty for a guest without
        NUMA cells, whose expanders are then near to no cell.
    :raises PlanError: the devices cannot be shown so.
    """
    found = sorted(devices, key=lambda device: address_key(device.address))
    if abi.mode is Mode.FLAT or not found:
        return Plan()
    roots = _mirror(found, cells) if abi.mode is Mode.MIRROR else _by_cell(found, cells)
    try:
        return _number(roots)
    except _FullError as error:
        raise PlanError(f"{_asked(abi.mode)} is not possible: {error}.", str(error)) from error


def _asked(mode: Mode) -> str:
    return f"hpc:guest_topology={mode.value}"


def _by_cell(devices: list[Device], cells: Mapping[int, int]) -> tuple[Branch, ...]:
    """One expander a cell. Devices elsewhere stay on the guest's own root."""
    found: dict[int, list[Device]] = {}
    for device in devices:
        numa = device.location.numa
        if numa is not None and numa in cells:
            found.setdefault(cells[numa], []).append(device)
    return tuple(
        Branch(name=f"cell {cell}", below=tuple(below), cell=cell)
        for cell, below in sorted(found.items())
    )


def _mirror(devices: list[Device], cells: Mapping[int, int]) -> tuple[Branch, ...]:
    if cells:
        _check_cells(devices, cells)
    roots: dict[str, list[Device]] = {}
    for device in devices:
        # An unknown root complex is nobody else's.
        root = device.location.root or f"unknown, of {device.address}"
        roots.setdefault(root, []).append(device)
    return tuple(_root(name, below, cells) for name, below in roots.items())


def _check_cells(devices: list[Device], cells: Mapping[int, int]) -> None:
    strays = [device for device in devices if device.location.numa not in cells]
    if strays:
        raise PlanError(
            f"{_asked(Mode.MIRROR)} is not possible: {len(strays)} of the server's "
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
            f"{_asked(Mode.MIRROR)} is not possible: devices of one PCIe root of the host are near "
            "to different NUMA nodes, which a guest cannot have; use a flavor with numa or flat.",
            f"devices of {', '.join(split)} are near to different NUMA nodes",
        )


def _root(name: str, devices: list[Device], cells: Mapping[int, int]) -> Branch:
    """The expander for one root complex of the host."""
    trunk = _Twig()
    below: list[Branch | Device] = []
    for device in devices:
        if device.location.switches:
            trunk.grow(device)
        else:
            below.append(device)  # integrated in the root complex: near to no port
    for switch, twig in trunk.twigs.items():
        branch = twig.branch(switch)
        # Alone below its switch (as far as this guest goes): a port will do.
        below.extend(branch.devices if len(branch.devices) == 1 else [branch])
    numa = devices[0].location.numa
    cell = None if numa is None else cells.get(numa)
    return Branch(name=name, below=tuple(sorted(below, key=_first)), cell=cell)


def _first(part: Branch | Device) -> tuple[int, ...]:
    """Sort key: the lowest host address."""
    if isinstance(part, Device):
        return address_key(part.address)
    return min(address_key(device.address) for device in part.devices)


@attrs.define
class _Twig:
    """A switch of the host with the devices right below it and further switches."""

    devices: list[Device] = attrs.Factory(list)
    twigs: dict[str, _Twig] = attrs.Factory(dict)

    def grow(self, device: Device) -> None:
        twig = self
        for switch in device.location.switches:
            twig = twig.twigs.setdefault(switch, _Twig())
        twig.devices.append(device)

    def branch(self, name: str) -> Branch:
        """The same without the levels at which nothing branches."""
        twig = self
        while not twig.devices and len(twig.twigs) == 1:
            ((name, twig),) = twig.twigs.items()
        parts: list[Branch | Device] = [*twig.devices]
        parts += [below.branch(switch) for switch, below in twig.twigs.items()]
        return Branch(name=name, below=tuple(sorted(parts, key=_first)))


# -- numbers: controllers, slots, and the guest's buses -----------------------------

#: Buses below are the guest's own root's and its ports'.
FIRST_BUS: Final = 0x40
_BUSES: Final = 0x100
#: Expanders take these slots of the guest's own root.
FIRST_SLOT: Final = 0x06
EXPANDERS: Final = 0x1A - FIRST_SLOT
_SLOTS: Final = 32
_FUNCTIONS: Final = 8


def _number(roots: tuple[Branch, ...]) -> Plan:
    """Number all parts.

    :raises _FullError: there are too many.
    """
    if len(roots) > EXPANDERS:
        raise _FullError(
            f"the devices are below {len(roots)} PCIe roots, and a guest has at most {EXPANDERS}"
        )
    numbering = _Numbering()
    for place, (root, bus) in enumerate(zip(roots, _first_buses(roots), strict=True)):
        numbering.expander(root, FIRST_SLOT + place, bus)
    return Plan(bridges=tuple(numbering.bridges), seats=tuple(numbering.seats), roots=roots)


def _buses(part: Branch | Device) -> int:
    """How many buses a part takes below its expander, with those of its port."""
    if isinstance(part, Device):
        return 1
    return 2 + sum(_buses(each) for each in part.below)


def _first_buses(roots: tuple[Branch, ...]) -> list[int]:
    """The bus of each expander: as round numbers as there is room for."""
    needed = [1 + sum(_buses(part) for part in root.below) for root in roots]
    for step in (16, 8, 4, 2, 1):
        bus, found = FIRST_BUS, []
        for count in needed:
            found.append(bus)
            bus += -(-count // step) * step
        if bus <= _BUSES:
            return found
    raise _FullError(
        f"the devices take {sum(needed)} PCI buses, and there are {_BUSES - FIRST_BUS} for them"
    )


@attrs.define
class _Numbering:
    bridges: list[Bridge] = attrs.Factory(list)
    seats: list[Seat] = attrs.Factory(list)
    bus: int = 0

    def expander(self, root: Branch, slot: int, bus: int) -> None:
        self.bus = bus - 1
        index = self._add(Kind.EXPANDER, 0, (slot, 0, False), root.cell)
        self._below(root.below, index, Kind.ROOT_PORT)

    def _below(self, parts: tuple[Branch | Device, ...], above: int, port: Kind) -> None:
        for place, part in zip(_places(len(parts)), parts, strict=True):
            index = self._add(port, above, place)
            if isinstance(part, Device):
                self.seats.append(Seat(device=part, port=index, bus=self.bus))
            else:
                upstream = self._add(Kind.UPSTREAM, index, (0, 0, False))
                self._below(part.below, upstream, Kind.DOWNSTREAM)

    def _add(
        self, kind: Kind, parent: int, place: tuple[int, int, bool], cell: int | None = None
    ) -> int:
        self.bus += 1
        index = len(self.bridges) + 1
        slot, function, multifunction = place
        self.bridges.append(
            Bridge(kind, index, parent, slot, function, multifunction, self.bus, cell)
        )
        return index


def _places(count: int) -> list[tuple[int, int, bool]]:
    """Slot and function of each of *count* ports, and whether the slot is shared."""
    if count <= _SLOTS:
        return [(place, 0, False) for place in range(count)]
    if count > _SLOTS * _FUNCTIONS:
        raise _FullError(f"there are {count} ports at one place, and room for 256")
    return [(place // _FUNCTIONS, place % _FUNCTIONS, True) for place in range(count)]
