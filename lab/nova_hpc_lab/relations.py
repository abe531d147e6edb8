"""How far apart devices are: as the host's inventory says, and as the guest sees. Pure.

The guest's side is made from its own sysfs by the rules that read the host's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.topology import place
from nova_hpc.topology.cpuset import parse_list
from nova_hpc.topology.level import Distance, Location, distance
from nova_hpc.topology.model import Function, NumaNode
from nova_hpc_lab.accounts import HostDevice
from nova_hpc_lab.evidence import identity
from nova_hpc_lab.node import GuestReport


@attrs.frozen
class Pair:
    """Two devices, by their identities, and how far apart they are."""

    one: str
    other: str
    host: Distance
    guest: Distance

    def __str__(self) -> str:
        return f"{self.one} - {self.other}: host {self.host.name}, guest {self.guest.name}"


def guest_places(report: GuestReport) -> dict[str, Location]:
    """Address -> place of every function of a guest that is no bridge."""
    nodes = [
        NumaNode(id=cell.number, cpus=parse_list(cell.cpus) if cell.cpus else frozenset())
        for cell in report.cells
    ]
    raws = [
        place.Raw(
            function=Function(
                address=function.address,
                class_code=function.device_class,
                root=function.path[0] if function.path else None,
            ),
            above=function.path[1:-1],
            is_bridge=function.device_class.startswith(place.BRIDGE_CLASS),
            # In a guest, no cell is none, also where there is only one.
            numa_node=None if function.numa_node < 0 else function.numa_node,
        )
        for function in report.functions
    ]
    found, _ = place.place(raws, nodes, {})
    told = {each.address: each.numa_node >= 0 for each in report.functions}
    return {
        function.address: attrs.evolve(
            function.location, numa=function.numa_node if told[function.address] else None
        )
        for function in found
        if not function.is_bridge
    }


def pairs(given: Iterable[HostDevice], report: GuestReport) -> list[Pair]:
    """Every pair of the server's devices.

    :param given: those that the server has, on the host.
    :raises KeyError: the guest does not show one of them.
    """
    places = guest_places(report)
    seen: Mapping[str, Location] = {
        identity(function.bars, function.macs): places[function.address]
        for function in report.functions
        if function.address in places
    }
    return [
        Pair(
            one=one.identity,
            other=other.identity,
            host=distance(one.location, other.location),
            guest=distance(seen[one.identity], seen[other.identity]),
        )
        for one, other in itertools.combinations(
            sorted(given, key=lambda device: device.address), 2
        )
    ]
