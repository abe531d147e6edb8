# SPDX-License-Identifier: Apache-2.0
"""Data of the plan: devices, bridges, seats."""

from __future__ import annotations

import enum

import attrs

from nova_hpc.guest_tree.windows import Span, pack_spans
from nova_hpc_common.level import Location


class TreePartKind(enum.Enum):
    """The kinds of controllers in a guest's PCIe tree, with libvirt's names."""

    #: A PCIe root complex of its own (QEMU's pxb-pcie).
    EXPANDER = "expander"
    ROOT_PORT = "root-port"
    UPSTREAM = "switch-upstream"
    DOWNSTREAM = "switch-downstream"


@attrs.frozen
class TreeDevice:
    """A device of the host that the guest gets, with its place on the host and address space."""

    address: str  # on the host, normalised
    location: Location
    #: 64-bit address space that the device takes in its port's window.
    span: Span = attrs.field(factory=Span)
    #: The device takes part in GPUDirect cliques.
    clique: bool = False


@attrs.frozen
class TreeBranch:
    """A part of the guest's PCIe tree: a switch, or an expander if *cell* is set, with its
    children.
    """

    name: str  # name of the host's switch or root
    below: tuple[TreeBranch | TreeDevice, ...]
    cell: int | None = None  # the guest's NUMA cell of an expander

    @property
    def devices(self) -> tuple[TreeDevice, ...]:
        """All devices below this branch, in order."""
        devices: list[TreeDevice] = []
        for part in self.below:
            devices.extend([part] if isinstance(part, TreeDevice) else part.devices)
        return tuple(devices)

    @property
    def span(self) -> Span:
        """The 64-bit address space that the branch needs."""
        return pack_spans(part.span for part in self.below)


@attrs.frozen
class Bridge:
    """One PCIe controller of the guest: an expander, a root port or a switch port."""

    kind: TreePartKind
    #: Number of the controller; parents come before children, without gaps, from 1.
    index: int
    #: Index of the controller above; 0 is the guest's own root complex.
    parent: int
    slot: int
    function: int
    #: The controller shares its slot with others.
    multifunction: bool
    #: Bus number from the guest's firmware; fixed for an expander.
    bus: int
    cell: int | None = None  # the guest's NUMA cell of an expander


@attrs.frozen
class TreeSeat:
    """The place of a device in the guest's tree: slot 0 below a port of its own."""

    device: TreeDevice
    #: Bridge.index of its port.
    port: int
    #: Bus of the port; the device's address in the guest is ``0000:BUS:00.0``.
    bus: int


@attrs.frozen
class TreePlan:
    """The whole PCIe tree of a guest. Without bridges the guest keeps Nova's flat topology."""

    bridges: tuple[Bridge, ...] = ()  # by index
    seats: tuple[TreeSeat, ...] = ()
    #: The same plan as a tree, for diagrams.
    roots: tuple[TreeBranch, ...] = ()

    @property
    def span(self) -> Span:
        """The 64-bit address space that all devices of the guest need."""
        return pack_spans(root.span for root in self.roots)

    @property
    def cliques(self) -> dict[str, int]:
        """Host address -> GPUDirect clique, for GPUs that share a switch of the host.

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
