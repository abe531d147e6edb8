"""Numbers for the parts of a tree: controllers, slots, and the guest's buses.

A guest's firmware gives out bus numbers depth first from the number of each
expander. So that the addresses stay as they are when volumes or interfaces
come and go, the expanders' numbers are fixed here, well above the buses of the
guest's own root complex.
"""

from __future__ import annotations

from typing import Final

import attrs

from nova_hpc.guest_tree.model import Branch, Bridge, Device, Kind, Plan, Seat

#: Buses below are the guest's own root's and its ports'.
FIRST_BUS: Final = 0x40
_BUSES: Final = 0x100
#: Expanders take these slots of the guest's own root.
FIRST_SLOT: Final = 0x06
EXPANDERS: Final = 0x1A - FIRST_SLOT
_SLOTS: Final = 32
_FUNCTIONS: Final = 8


class FullError(ValueError):
    """More than a guest can have; the text says of what."""


def number(roots: tuple[Branch, ...]) -> Plan:
    """Number all parts.

    :raises FullError: there are too many.
    """
    if len(roots) > EXPANDERS:
        raise FullError(
            f"the devices are below {len(roots)} PCIe roots, and a guest has at most {EXPANDERS}"
        )
    numbering = _Numbering()
    for place, (root, bus) in enumerate(zip(roots, _first_buses(roots), strict=True)):
        numbering.expander(root, FIRST_SLOT + place, bus)
    return Plan(bridges=tuple(numbering.bridges), seats=tuple(numbering.seats), roots=roots)


def buses(part: Branch | Device) -> int:
    """How many buses a part takes below its expander, with those of its port."""
    if isinstance(part, Device):
        return 1
    return 2 + sum(buses(each) for each in part.below)


def _first_buses(roots: tuple[Branch, ...]) -> list[int]:
    """The bus of each expander: as round numbers as there is room for."""
    needed = [1 + sum(buses(part) for part in root.below) for root in roots]
    for step in (16, 8, 4, 2, 1):
        bus, found = FIRST_BUS, []
        for count in needed:
            found.append(bus)
            bus += -(-count // step) * step
        if bus <= _BUSES:
            return found
    raise FullError(
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
        raise FullError(f"there are {count} ports at one place, and room for 256")
    return [(place // _FUNCTIONS, place % _FUNCTIONS, True) for place in range(count)]
