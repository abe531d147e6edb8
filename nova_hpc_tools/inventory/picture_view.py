# SPDX-License-Identifier: Apache-2.0
"""A node's inventory as the content of a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from nova_hpc.placement.model import DevicePool, FreeHost
from nova_hpc.topology.cpuset import format_list
from nova_hpc.topology.model import BridgeKind, Node, NumaNode, PciFunction
from nova_hpc_common.level import Location
from nova_hpc_guest.show import format_size
from nova_hpc_tools.inventory.standing import NONE, FunctionStanding, Offer
from nova_hpc_tools.pictures.model import DeviceTile, Largest, NodePicture, TileState
from nova_hpc_tools.pictures.place_tree import build_place_boxes
from nova_hpc_tools.site import pci_classes
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.snapshot.largest_sets import measure_largest_sets

_STATES: Final = {
    Offer.OFFERED: TileState.OFFERED,
    Offer.POSSIBLE: TileState.POSSIBLE,
    Offer.REFUSED: TileState.REFUSED,
    Offer.NO_ROLE: TileState.HOST,
}


def view_inventory_node(
    node: Node, standings: Mapping[str, FunctionStanding], spec: DeviceSpec
) -> NodePicture:
    """Build the picture of a node without its servers, which an inventory does not contain.

    :param standings: address -> role and offer.
    :param spec: the devices that the node offers or could offer.
    """
    titles = {numa.id: _title_numa_node(numa) for numa in node.numa_nodes}
    switches = {
        function.address: f"switch {function.address}"
        for function in node.functions
        if function.bridge is BridgeKind.UPSTREAM
    }
    located = [
        (_locate_by_root(node, function), _describe_function(node, function, standings))
        for function in node.functions
        if _is_drawn(node, function, standings)
    ]
    drawn = {numa.id for numa in node.numa_nodes if numa.cpus}
    return NodePicture(
        name=node.hostname or node.source,
        facts=tuple(_list_node_facts(node, standings)),
        boxes=build_place_boxes(located, titles, switches, empty=sorted(drawn)),
        largest=measure_offered_sets(spec),
        problems=node.problems,
    )


def measure_offered_sets(spec: DeviceSpec) -> Largest:
    """Measure the largest device set of each role that the node could give without servers.

    :returns: role -> level -> number of devices.
    """
    pools = tuple(
        DevicePool(
            id=str(number),
            name=offer.provider,
            location=offer.tags.location,
            free=len(offer.functions),
            serves=frozenset(),
            unit=offer.tags.group,
            role=offer.tags.role,
        )
        for number, offer in enumerate(spec.offers)
        if offer.network is None
    )
    names = sorted({pool.role for pool in pools if pool.role is not None})
    return {role: measure_largest_sets(FreeHost("", pools), role) for role in names}


def _is_drawn(node: Node, function: PciFunction, standings: Mapping[str, FunctionStanding]) -> bool:
    if function.is_bridge:
        return False
    if function.physical_function is not None:
        return node.function(function.physical_function) is None
    known = function.address in standings
    return known or bool(function.path) or not pci_classes.is_chipset(function.class_code)


def _locate_by_root(node: Node, function: PciFunction) -> Location:
    """Return the place of a function; without a NUMA node, its only local one, if any."""
    location = function.location
    if location.numa is None and len(function.local_numa_nodes) == 1:
        (only,) = function.local_numa_nodes
        return Location(only, location.socket, location.root, location.switches)
    return location


def _describe_function(
    node: Node, function: PciFunction, standings: Mapping[str, FunctionStanding]
) -> DeviceTile:
    virtual = [standings.get(address, NONE) for address in function.virtual_functions]
    own = standings.get(function.address, NONE)
    given = [standing for standing in virtual if standing.offer is not Offer.NO_ROLE]
    # Servers get the virtual functions of an adapter if it has any.
    best = min(given, key=lambda standing: list(Offer).index(standing.offer), default=own)
    if own.offer in (Offer.OFFERED, Offer.POSSIBLE) and best.offer is Offer.REFUSED:
        best, given = own, []
    open_now = [item for item in given if item.offer in (Offer.OFFERED, Offer.POSSIBLE)]
    state = TileState.UNKNOWN if function.unknown else _STATES[best.offer]
    single = state in (TileState.OFFERED, TileState.POSSIBLE)
    return DeviceTile(
        address=function.address,
        state=state,
        role=best.role,
        product=_name_product(function),
        free=len(open_now) if given else int(single),
        total=len(given) if given else 1,
        details=tuple(_list_function_details(function, best)),
    )


def _name_product(function: PciFunction) -> str:
    ids = f"{function.vendor_id or '????'}:{function.product_id or '????'}"
    return function.model or f"{pci_classes.class_name_of(function.class_code)} {ids}"


def _list_function_details(function: PciFunction, standing: FunctionStanding) -> Iterator[str]:
    if function.unknown:
        yield f"unknown: {function.unknown}"
    if standing.reason:
        yield standing.reason
    if function.driver:
        yield f"driver {function.driver}"
    if function.iommu_group is not None:
        yield f"IOMMU group {function.iommu_group}"
    names = [device.name for device in function.rdma]
    names += [name.partition(" ")[2] for name in function.os_devices]
    if names:
        yield " ".join(dict.fromkeys(names))


def _title_numa_node(numa: NumaNode) -> str:
    parts = [f"NUMA node {numa.id}"]
    if numa.cpus:
        parts.append(f"CPUs {format_list(numa.cpus)}")
    elif numa.memory_of is not None:
        parts.append(f"memory of {numa.memory_of}")
    else:
        parts.append("no CPUs")
    if numa.memory_kib:
        parts.append(format_size(numa.memory_kib))
    return " · ".join(parts)


def _list_node_facts(node: Node, standings: Mapping[str, FunctionStanding]) -> Iterator[str]:
    sockets = {numa.socket for numa in node.numa_nodes if numa.socket is not None}
    memory = sum(numa.memory_kib or 0 for numa in node.numa_nodes)
    counts = [
        _count_noun(len(sockets), "socket") if sockets else "",
        _count_noun(sum(bool(numa.cpus) for numa in node.numa_nodes), "NUMA node"),
        _count_noun(len(node.cpus), "CPU"),
        format_size(memory) if memory else "",
    ]
    yield ", ".join(filter(None, counts))
    roles: dict[str, list[FunctionStanding]] = {}
    for standing in standings.values():
        if standing.role:
            roles.setdefault(standing.role, []).append(standing)
    for role, members in sorted(roles.items()):
        words = [
            f"{number} {offer.value}"
            for offer in Offer
            if (number := sum(member.offer is offer for member in members))
        ]
        yield f"{role}: {', '.join(words)}"
    if not roles:
        yield "nothing here has a role: servers get no device of it"


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
