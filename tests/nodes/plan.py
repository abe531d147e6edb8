# SPDX-License-Identifier: Apache-2.0
"""From a description to functions with addresses, places and IOMMU groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.nodes.describe import Bridge, Endpoint, Machine, Root, every


@dataclass
class Placed:
    """One function in its place."""

    part: Bridge | Endpoint
    domain: int
    bus: int
    slot: int
    number: int
    numa: int
    #: Its directory below /sys/devices.
    folder: str
    above: Placed | None
    #: Buses behind a bridge.
    buses: tuple[int, int] | None = None
    physical: Placed | None = None
    virtual: list[Placed] = field(default_factory=list)
    group: int | None = None

    @property
    def address(self) -> str:
        """As the kernel writes it."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.number}"


def functions(machine: Machine) -> list[Placed]:
    """Every function of *machine*, a bridge before what is below it."""
    found: list[Placed] = []
    for root in machine.roots:
        found.extend(_root(root, "", None))
    if machine.iommu:
        _group(found)
    addresses = [each.address for each in found]
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"{machine.name}: an address is there twice")
    return found


def _root(root: Root, folder: str, above: Placed | None) -> Iterator[Placed]:
    folder = f"{folder}pci{root.domain:04x}:{root.bus:02x}/"
    yield from _below(root.below, root.domain, root.bus, root.numa, folder, above)


def _below(
    parts: Sequence[Bridge | Endpoint],
    domain: int,
    bus: int,
    numa: int,
    folder: str,
    above: Placed | None,
) -> Iterator[Placed]:
    for part in parts:
        slot, number = (int(text, 16) for text in part.at.split("."))
        placed = Placed(part, domain, bus, slot, number, numa, folder, above)
        placed.folder += placed.address
        yield placed
        inside = f"{placed.folder}/"
        if isinstance(part, Bridge):
            last = max([part.bus, *(each.bus for each in every(part.below) if _has_bus(each))])
            placed.buses = (part.bus, last)
            yield from _below(part.below, domain, part.bus, numa, inside, placed)
            continue
        if part.vfs is not None:
            for index in range(part.vfs.count):
                route = bus << 8 | slot << 3 | number
                route += part.vfs.offset + index * part.vfs.stride
                if route >> 8 != bus:
                    raise ValueError(f"{placed.address}: a virtual function on another bus")
                virtual = Placed(part, domain, bus, route >> 3 & 31, route & 7, numa, folder, above)
                virtual.folder += virtual.address
                virtual.physical = placed
                placed.virtual.append(virtual)
                yield virtual
        if part.behind is not None:
            yield from _root(part.behind, inside, None)


def _has_bus(part: Bridge | Endpoint) -> bool:
    return isinstance(part, Bridge)


def _group(found: Sequence[Placed]) -> None:
    """Number the IOMMU groups as Linux forms them (drivers/iommu/iommu.c, pci_device_group)."""
    heads: dict[str, int] = {}
    for one in found:
        head = one
        above = one.above
        while above is not None:
            if not _isolated(above):
                head = above  # what is below this bridge cannot be told apart
            above = above.above
        if head.physical is None and not _separate(head, found):
            # Functions of one slot that may reach each other inside the device.
            slot = _slot(head)
            head = next(each for each in found if _slot(each) == slot)
        one.group = heads.setdefault(head.address, len(heads))


def _slot(one: Placed) -> tuple[int, int, int]:
    return one.domain, one.bus, one.slot


def _separate(one: Placed, found: Sequence[Placed]) -> bool:
    """A function with ACS of its own, or the only one in its slot (VFs aside)."""
    mates = [each for each in found if _slot(each) == _slot(one) and each.physical is None]
    return len(mates) == 1 or _acs(one)


def _isolated(bridge: Placed | None) -> bool:
    """ACS on the whole path from *bridge* up (pci_acs_path_enabled)."""
    while bridge is not None:
        part = bridge.part
        # An upstream port that is the only function in its slot needs none.
        if not (isinstance(part, Bridge) and part.kind == "upstream") and not _acs(bridge):
            return False
        bridge = bridge.above
    return True


def _acs(one: Placed) -> bool:
    if one.part.acs is None:
        return False
    able, does = one.part.acs
    needed = 0x1D & able
    return does & needed == needed
