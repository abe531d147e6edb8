"""From the devices' places on the host to the guest's tree.

The rule is that :func:`nova_hpc.topology.level.distance` says the same of
every pair of devices in the guest and on the host. The tree is the smallest
that does so: levels of switches at which nothing branches are left out, and a
device that shares no switch with another of this guest has a port of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.guest_tree import numbering
from nova_hpc.guest_tree.model import Branch, Device, Plan
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
        return numbering.number(roots)
    except numbering.FullError as error:
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
