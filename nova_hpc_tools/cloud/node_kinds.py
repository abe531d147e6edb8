# SPDX-License-Identifier: Apache-2.0
"""Kinds of nodes in a cloud: roles, counts and tree shape, withheld devices included. Pure.

A node does not report the place of a withheld device. Another node that has the same devices in
the same places, and a device of that role at the same address, shows the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from nova_hpc_tools.snapshot import SnapshotDevice, SnapshotNode


@attrs.frozen
class FleetKind:
    """A kind of nodes, which have the same devices: an example node and the names of all hosts."""

    #: One that withholds as little as any, with the devices that it withholds.
    model: SnapshotNode
    hosts: tuple[str, ...]
    #: Addresses that the model withholds, and whose place no other node shows.
    unplaced: tuple[str, ...] = ()


def find_node_kinds(nodes: Iterable[SnapshotNode]) -> list[FleetKind]:
    """Sort nodes into kinds with the same devices, in the order of their first hosts.

    :param nodes: without their servers.
    """
    given = list(nodes)
    kinds: list[FleetKind] = []
    # One that withholds less can show the places of another's devices.
    for node in sorted(given, key=lambda node: len(node.withheld) + len(node.ailing)):
        for number, kind in enumerate(kinds):
            if (full := complete_node(node, kind.model)) is not None:
                kinds[number] = attrs.evolve(kind, hosts=(*kind.hosts, full.host))
                break
        else:
            there = {device.address for device in node.devices}
            unplaced = tuple(address for address in node.withheld if address not in there)
            kinds.append(FleetKind(node, (node.host,), unplaced))
    order = {node.host: number for number, node in reversed([*enumerate(given)])}
    return sorted(kinds, key=lambda kind: min(order[host] for host in kind.hosts))


def complete_node(node: SnapshotNode, model: SnapshotNode) -> SnapshotNode | None:
    """Add the devices that *node* withholds; None if it is not of the kind of *model*."""
    devices = {device.address: device for device in node.devices}
    # A sick device that a server has is withheld when the server leaves.
    gone = {*node.withheld, *node.ailing}
    spare = sum(address not in devices for address in node.withheld) + len(node.ailing)
    for other in model.devices:
        own = devices.get(other.address)
        if own is None and other.address in gone:
            # A provider of several functions is withheld by its own address.
            devices[other.address] = other
            spare -= 1
        elif own is not None and own.free < other.free <= own.free + spare:
            spare -= other.free - own.free
            devices[other.address] = attrs.evolve(own, free=other.free)
    if _shape_of(tuple(devices.values())) != _shape_of(model.devices):
        return None
    ordered = tuple(devices[address] for address in sorted(devices))
    return attrs.evolve(node, devices=ordered)


def _shape_of(devices: Sequence[SnapshotDevice]) -> object:
    """Return a key of the devices' roles, counts and tree, without the names of its parts."""
    return _shape_below([(_path_of(device), device) for device in devices])


def _path_of(device: SnapshotDevice) -> tuple[object, ...]:
    place = device.location
    return place.socket, place.numa, place.root, *place.switches


def _shape_below(devices: Sequence[tuple[tuple[object, ...], SnapshotDevice]]) -> object:
    below: dict[object, list[tuple[tuple[object, ...], SnapshotDevice]]] = {}
    here = []
    for path, device in devices:
        if path:
            below.setdefault(path[0], []).append((path[1:], device))
        else:
            ports = device.ports is not None
            here.append((str(device.role), tuple(sorted(device.aliases)), device.free, ports))
    return repr((sorted(here), sorted(str(_shape_below(part)) for part in below.values())))
