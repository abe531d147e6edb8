# SPDX-License-Identifier: Apache-2.0
"""From single functions to a tree: paths, kinds of bridges, locality, groups.

A reader passes one :class:`Raw` for each function, with the data of its source, and gets
finished functions. All rules about places are in this module, so that two readers of the
same machine cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from nova_hpc.topology.model import (
    BridgeKind,
    IommuGroup,
    NumaNode,
    PciFunction,
    address_key,
    normalise_address,
)

BRIDGE_CLASS = "0604"  # PCI-to-PCI bridge
_SUBTRACTIVE = "060401"  # only conventional PCI bridges decode so


@attrs.define
class Raw:
    """A PCI function as it was read, before its place (NUMA node, switches) is worked out."""

    function: PciFunction
    #: Addresses above, outermost first; None if the source does not contain them.
    above: tuple[str, ...] | None = None
    #: Secondary and subordinate bus of a bridge.
    buses: tuple[int, int] | None = None
    port: BridgeKind | None = None
    is_bridge: bool = False
    #: CPUs that are near; None if not stated.
    local_cpus: frozenset[int] | None = None
    #: None if not stated; -1 if the source states that no node is nearest.
    numa_node: int | None = None
    reasons: list[str] = attrs.Factory(list)

    @property
    def address(self) -> str:
        """The normalised PCI address of the function."""
        return self.function.address

    @property
    def bus(self) -> tuple[int, int]:
        """The PCI domain and bus number of the function."""
        key = address_key(self.address)
        return key[0], key[1]

    @property
    def has_bus_numbers(self) -> bool:
        """Whether a bridge has valid bus numbers: those behind it are higher than its own."""
        return self.buses is not None and self.bus[1] < self.buses[0] <= self.buses[1]


def place_functions(
    raws: Iterable[Raw], nodes: Sequence[NumaNode], groups: Mapping[int, frozenset[str]]
) -> tuple[list[PciFunction], list[PciFunction]]:
    """Work out the places of all functions.

    The result has the functions, and the bridges without bus numbers, each sorted by address. The
    paths come first, because they decide the kinds of the bridges. The kinds decide the switches
    and the isolation of each path. Locality and IOMMU groups are added last.

    :param groups: the members of each IOMMU group.
    """
    by_address = {raw.address: raw for raw in raws}
    paths = {address: _path_of_raw(raw, by_address) for address, raw in by_address.items()}
    used = {bridge for path in paths.values() for bridge in path}
    kinds = _bridge_kinds_of(by_address, paths)
    belongs = {member: group for group, members in groups.items() for member in members}
    active: list[PciFunction] = []
    inactive: list[PciFunction] = []
    for address in sorted(by_address, key=address_key):
        raw = by_address[address]
        path = paths[address]
        local, numa, socket = _locality_of(raw, nodes)
        function = attrs.evolve(
            raw.function,
            root=raw.function.root or _root_name_of(path[0] if path else address),
            path=path,
            switches=_shared_points_on(path, kinds),
            bridge=kinds.get(address),
            local_numa_nodes=local,
            numa_node=numa,
            socket=socket,
            iommu_group=belongs.get(address, raw.function.iommu_group),
            acs_isolates=raw.function.acs_isolates if address in kinds else None,
            acs_on_path=_is_isolated_path(path, kinds, by_address),
            unknown="; ".join(raw.reasons) or None,
        )
        # Its bus numbers were read and are impossible, and nothing is below it: the firmware
        # assigned no buses to the port. lstopo leaves it out.
        idle = raw.is_bridge and raw.buses is not None and not raw.has_bus_numbers
        (inactive if idle and address not in used else active).append(function)
    return active, inactive


def _path_of_raw(raw: Raw, by_address: Mapping[str, Raw]) -> tuple[str, ...]:
    """Return the addresses of the bridges above a function, outermost first.

    Without a tree, bus numbers give the path. For example, a function on bus 0x19 is below the
    bridge with buses 0x18 to 0x1f. That bridge is on bus 0x17, so the next one has 0x17 in its
    range.
    """
    if raw.above is not None:
        # Addresses above that this reading does not contain are left out: a capture may
        # have been thinned.
        return tuple(address for address in raw.above if address in by_address)
    # The source has no tree, but every bridge has the numbers of the buses behind it.
    # Bus numbers grow downwards, so the loop ends.
    path: list[str] = []
    below = raw.bus
    while True:
        around = [
            bridge
            for bridge in by_address.values()
            if bridge.is_bridge
            and bridge.buses is not None
            and bridge.has_bus_numbers
            and bridge.bus[0] == below[0]
            and bridge.buses[0] <= below[1] <= bridge.buses[1]
        ]
        if not around:
            return tuple(reversed(path))
        nearest = max(around, key=lambda bridge: address_key(bridge.address))
        path.append(nearest.address)
        below = nearest.bus


def _root_name_of(topmost: str) -> str:
    """Return the kernel's name for the host bridge above a function of the top bus."""
    domain, bus, _ = topmost.split(":")
    return f"pci{domain}:{bus}"


def _bridge_kinds_of(
    by_address: Mapping[str, Raw], paths: Mapping[str, tuple[str, ...]]
) -> dict[str, BridgeKind]:
    """Return bridge address -> its kind (root port, upstream or downstream port, PCI bridge).

    The place decides if the PCI Express capability cannot be read: PCI Express alternates root
    port, upstream port, downstream port, upstream port, ...; an upstream port is the one with
    bridges below it.
    """
    parents = {
        path[-1] for address, path in paths.items() if path and by_address[address].is_bridge
    }
    kinds: dict[str, BridgeKind] = {}
    for address, raw in sorted(by_address.items(), key=lambda item: len(paths[item[0]])):
        if not raw.is_bridge:
            continue
        above = kinds.get(paths[address][-1]) if paths[address] else None
        if raw.port is not None:
            kind = raw.port
        elif raw.function.class_code == _SUBTRACTIVE or above is BridgeKind.PCI:
            kind = BridgeKind.PCI
        elif above is None:
            kind = BridgeKind.ROOT_PORT
        elif above is BridgeKind.UPSTREAM:
            kind = BridgeKind.DOWNSTREAM
        else:
            kind = BridgeKind.UPSTREAM if address in parents else BridgeKind.PCI
        kinds[address] = kind
    return kinds


def _shared_points_on(path: tuple[str, ...], kinds: Mapping[str, BridgeKind]) -> tuple[str, ...]:
    upstream = tuple(address for address in path if kinds.get(address) is BridgeKind.UPSTREAM)
    return upstream or path[:1]


def _is_isolated_path(
    path: tuple[str, ...], kinds: Mapping[str, BridgeKind], by_address: Mapping[str, Raw]
) -> bool | None:
    """Whether ACS isolates on the whole *path*; upstream ports need none."""
    states = [
        False if kinds[address] is BridgeKind.PCI else by_address[address].function.acs_isolates
        for address in path
        if address in kinds and kinds[address] is not BridgeKind.UPSTREAM
    ]
    if False in states:
        return False
    return None if None in states or not states else True


def _locality_of(
    raw: Raw, nodes: Sequence[NumaNode]
) -> tuple[frozenset[int], int | None, int | None]:
    """Return the local NUMA nodes, the one NUMA node, and the socket of a function.

    The last two are None if unknown or not one. ``local_cpus`` comes first, because lstopo uses it
    and because it can name several nodes. In current kernels it follows from ``numa_node``, which
    decides if ``local_cpus`` is missing or empty (a node without CPUs).
    """
    ids = frozenset(node.id for node in nodes)
    with_cpus = [node for node in nodes if node.cpus]
    stated = None if raw.numa_node == -1 else raw.numa_node
    if stated is not None and stated not in ids:
        raw.reasons.append(f"numa_node is {stated}, and there is no such NUMA node")
        stated = None
    cpus = raw.local_cpus
    if cpus is not None and with_cpus:
        # The kernel leaves offline CPUs out of the list, so it shows nothing about them.
        cpus &= (online := frozenset().union(*(node.cpus - node.offline for node in with_cpus)))
        if stated is None and cpus == online:
            cpus |= frozenset().union(*(node.offline for node in with_cpus))
    if cpus and not (stated is not None and _is_offline(stated, nodes)):
        touched = [node for node in with_cpus if node.cpus & cpus]
        whole = [node for node in touched if node.cpus - node.offline <= cpus]
        if len(touched) > 1 and len(whole) < len(touched):
            # Parts of several nodes: hardware is not wired so. hwloc also rejects such a
            # set and takes the whole machine.
            touched = with_cpus
        local = frozenset(node.id for node in touched)
        if stated is not None and stated not in local:
            owner = next(node for node in nodes if node.id == stated)
            if owner.cpus:
                raw.reasons.append(
                    f"numa_node is {stated}, but local_cpus are those of {_format_node_ids(local)}"
                )
            else:
                local = frozenset({stated})
    elif stated is not None:
        local = frozenset({stated})
    elif len(with_cpus) == 1 or raw.numa_node == -1:
        # On a machine with one node everything is local to it.
        local = frozenset(node.id for node in with_cpus)
    else:
        if with_cpus:
            raw.reasons.append("NUMA node: neither local_cpus nor numa_node contains it")
        local = frozenset()
    local = _with_cpus(local, nodes)
    sockets = {node.socket for node in nodes if node.id in local}
    return (
        local,
        next(iter(local)) if len(local) == 1 else None,
        sockets.pop() if len(sockets) == 1 else None,
    )


def _is_offline(number: int, nodes: Sequence[NumaNode]) -> bool:
    """Whether a NUMA node has CPUs and all are offline, so that no device's list contains them."""
    return any(node.id == number and node.cpus and node.cpus == node.offline for node in nodes)


def _with_cpus(local: frozenset[int], nodes: Sequence[NumaNode]) -> frozenset[int]:
    """Return the NUMA nodes for a guest; the nearest ones with CPUs if *local* has only memory."""
    local_nodes = [node for node in nodes if node.id in local]
    near: frozenset[int] = frozenset().union(*(node.near for node in local_nodes))
    return near if near and not any(node.cpus for node in local_nodes) else local


def _format_node_ids(numbers: frozenset[int]) -> str:
    return "node " + ", ".join(str(number) for number in sorted(numbers))


def make_groups(groups: Mapping[int, frozenset[str]]) -> tuple[IommuGroup, ...]:
    """Build the IOMMU groups, sorted by number; PCI members come before other members."""
    finished = []
    for number, members in sorted(groups.items()):
        pci: list[str] = []
        not_pci: list[str] = []
        for member in members:
            try:
                pci.append(normalise_address(member))
            except ValueError:
                not_pci.append(member)
        finished.append(IommuGroup(number, (*sorted(pci, key=address_key), *sorted(not_pci))))
    return tuple(finished)
