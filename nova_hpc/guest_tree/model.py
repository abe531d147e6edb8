# SPDX-License-Identifier: Apache-2.0
"""The words of the plan: devices, bridges, seats."""

from __future__ import annotations

import enum

import attrs

from nova_hpc.guest_tree.windows import Span, pack_spans
from nova_hpc.topology.level import Location


class TreePartKind(enum.Enum):
    """The parts of a guest's PCIe tree."""

    #: A PCIe root complex of its own (QEMU's pxb-pcie).
    EXPANDER = "expander"
    ROOT_PORT = "root-port"
    UPSTREAM = "switch-upstream"
    DOWNSTREAM = "switch-downstream"


@attrs.frozen
class TreeDevice:
    """A device of the host that the guest gets."""

    address: str  # of the host, normalised
    location: Location
    #: 64-bit address space that it takes of its port's window.
    span: Span = attrs.field(factory=Span)
    #: It takes part in GPUDirect cliques.
    clique: bool = False


@attrs.frozen
class TreeBranch:
    """A switch of the guest, or with a cell an expander, and what is below."""

    name: str  # that of the host's switch or root
    below: tuple[TreeBranch | TreeDevice, ...]
    cell: int | None = None  # of an expander: the guest's NUMA cell

    @property
    def devices(self) -> tuple[TreeDevice, ...]:
        """All devices below, in order."""
        devices: list[TreeDevice] = []
        for part in self.below:
            devices.extend([part] if isinstance(part, TreeDevice) else part.devices)
        return tuple(devices)

    @property
    def span(self) -> Span:
        """64-bit address space of all that is below."""
        return pack_spans(part.span for part in self.below)


@attrs.frozen
class Bridge:
    """One controller of the guest."""

    kind: TreePartKind
    #: Number of the controller; parents come before children, without gaps, from 1.
    index: int
    #: Controller above: 0 is the guest's own root complex.
    parent: int
    slot: int
    function: int
    #: It shares its slot with others.
    multifunction: bool
    #: Bus that the guest's firmware gives it; fixed for an expander.
    bus: int
    cell: int | None = None  # of an expander


@attrs.frozen
class TreeSeat:
    """The seat of one device: alone below a port, in slot 0."""

    device: TreeDevice
    #: Bridge.index of its port.
    port: int
    #: Bus of the port, so the guest's address is ``0000:BUS:00.0``.
    bus: int


@attrs.frozen
class TreePlan:
    """The whole tree. Without bridges: the guest stays flat."""

    bridges: tuple[Bridge, ...] = ()  # by index
    seats: tuple[TreeSeat, ...] = ()
    #: The same as a tree, for pictures.
    roots: tuple[TreeBranch, ...] = ()

    @property
    def span(self) -> Span:
        """64-bit address space that the devices take."""
        return pack_spans(root.span for root in self.roots)

    @property
    def cliques(self) -> dict[str, int]:
        """Host address -> clique, where several GPUs share a switch of the host.

        A clique is a number of four bits, so there are at most 16.
        """
        below: dict[tuple[str, ...], list[str]] = {}
        for seat in self.seats:
            place = seat.device.location
            if seat.device.clique and place.root is not None and place.switches:
                below.setdefault((place.root, place.switches[0]), []).append(seat.device.address)
        shared = [addresses for addresses in below.values() if len(addresses) > 1]
        return {
            address: number for number, addresses in enumerate(shared[:16]) for address in addresses
        }
