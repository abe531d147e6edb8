# SPDX-License-Identifier: Apache-2.0
"""The host as the solver sees it: usable pools in a tree of nested domains.

Ranks are finer than the levels of ``hpc:affinity``: below one switch the
solver also separates devices with one switch between them (PIX) from devices with
several (PXB), because the first are faster.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import DevicePool, FreeHost, HostNode
from nova_hpc.placement.solver.demand import Demand
from nova_hpc_common.level import Level, Location

#: The name of a domain; equal keys at one rank are the same place.
Key = tuple[str, ...]

#: First word of the key of a device whose place is unknown at a rank. Such a
#: device is in a domain of its own, in which only groups of one device fit,
#: because an unknown place is never equal to another unknown place.
ALONE: Final = "alone"


#: More functions than a PCI function can have (SR-IOV counts them in 16 bits).
MAX_FREE: Final = 65535


class Rank(enum.IntEnum):
    """The size of a domain, from one PCIe switch to the whole host. A domain contains those of
    smaller rank.
    """

    PIX = 0
    SWITCH = 1
    ROOT = 2
    NUMA = 3
    SOCKET = 4
    HOST = 5

    @property
    def level(self) -> Level:
        """The level of ``hpc:affinity`` that a domain of this rank satisfies."""
        return _LEVELS[self]

    @classmethod
    def of(cls, level: Level) -> Rank:
        """Return the widest rank that satisfies *level* of ``hpc:affinity``."""
        return cls(level + 1)


_LEVELS: Final[tuple[Level, ...]] = (Level.SWITCH, *Level)

#: Ranks whose domains should be touched only if they are used up.
TIDY: Final = (Rank.SWITCH, Rank.ROOT, Rank.NUMA)


@attrs.frozen(eq=False)
class Item:
    """A device pool with at least one free device for the request, in the form that the search
    uses.
    """

    id: str
    name: str
    free: int
    kind: int  # bit i: can serve the i-th name of the demand
    keys: tuple[Key, ...]  # its domain at each rank
    location: Location
    unit: str | None
    #: Label under which damage counts the devices: the role, or for pools without one
    #: the name of the want that they serve; None if they are not counted.
    label: str | None = None
    #: As :attr:`DevicePool.rival` and `whole`, if both pools are in one place.
    rival: str | None = None
    whole: bool = False
    #: As :attr:`DevicePool.aliases`.
    aliases: int = 0

    @property
    def order(self) -> tuple[str, str]:
        """Sort key that makes the order of otherwise equal items the same in all processes."""
        return (self.name, self.id)

    def rank_to(self, peer: Item) -> Rank:
        """Return the tightest rank at which this pool of devices and *peer* share a domain."""
        for rank in Rank:
            key = self.keys[rank]
            if key[0] != ALONE and key == peer.keys[rank]:
                return rank
        return Rank.HOST

    def region(self, rank: Rank) -> Key | None:
        """Return the key of the NUMA node, socket or host whose guest cells are local to this item.

        None if the item is known to be local to no cell.
        """
        if rank is Rank.HOST:
            return self.keys[Rank.HOST]
        key = self.keys[rank]
        return key if key[0] in ("numa", "socket") else None


@attrs.frozen
class GroupMember:
    """One device of a group: the pool that it is from, and the index of the alias that it
    serves.
    """

    index: int  # of the name in the demand
    item: Item


#: The devices of one group.
Members = tuple[GroupMember, ...]


@attrs.frozen(eq=False)
class IommuUnit:
    """Devices that IOMMU groups bind together: one guest gets all of them, or none."""

    name: str
    items: tuple[Item, ...]

    @property
    def caps(self) -> dict[int, int]:
        """Number of the unit's devices of each kind (bit mask of aliases)."""
        return capacities_by_kind(self.items)


@attrs.frozen
class Site:
    """A host as the search uses it: its usable pools, IOMMU units and nodes, in a fixed order."""

    items: tuple[Item, ...]  # those without a unit, and those of the units
    units: tuple[IommuUnit, ...]
    nodes: tuple[HostNode, ...]
    #: names of devices left out, because another function of their unit
    #: serves no want
    useless: tuple[str, ...] = ()
    #: other free pools, which only the damage counts
    rest: tuple[Item, ...] = ()
    #: contradictory entries that are ignored, each with the reason
    ignored: tuple[str, ...] = ()


def capacities_by_kind(items: Iterable[Item]) -> dict[int, int]:
    """Return kind (bit mask of aliases) -> number of free devices of this kind in *items*."""
    caps: dict[int, int] = {}
    for item in items:
        caps[item.kind] = caps.get(item.kind, 0) + item.free
    return caps


def survey_host(demand: Demand, host: FreeHost) -> Site:
    """Translate *host* for the search: merge duplicates, drop useless pools, and sort.

    A device of an IOMMU unit is usable only if every function of the unit is free and serves a
    want. Unusable devices still count for the damage, as :attr:`Site.rest`.

    :raises ValueError: the host lists one NUMA node twice, with different data.
    """
    ordered, ignored, broken = _keep_believed_pools(host.pools)
    nodes, socket_of = _nodes_and_sockets(host.nodes, ordered)
    places = settle_locations([pool.location for pool in ordered], socket_of)
    kinds = [demand.kind(pool.serves) for pool in ordered]
    broken |= {
        pool.unit
        for pool, kind in zip(ordered, kinds, strict=True)
        if pool.unit is not None and (kind == 0 or pool.free < 1)
    }
    together = _rivals_in_one_place(ordered, places)
    items, useless, rest, members = [], [], [], dict[str, list[Item]]()
    for pool, kind, place in zip(ordered, kinds, places, strict=True):
        if pool.free < 1:
            continue
        usable = kind != 0 and pool.unit not in broken
        if kind and not usable:
            useless.append(pool.name)
        label = pool.role
        if label is None and kind:
            label = demand.names[(kind & -kind).bit_length() - 1]
        item = Item(
            id=pool.id,
            name=pool.name,
            free=pool.free,
            kind=kind if usable else 0,
            keys=_domain_keys_of(together.get(pool.rival or "", pool.id), place),
            location=place,
            unit=pool.unit if usable else None,
            label=label,
            rival=pool.rival if pool.rival in together else None,
            whole=pool.whole,
            aliases=pool.aliases,
        )
        if not usable:
            rest.append(item)
            continue
        items.append(item)
        if pool.unit is not None:
            members.setdefault(pool.unit, []).append(item)
    units = []
    for name, group in sorted(members.items()):
        if len(group) > 1 or group[0].free > 1:
            units.append(IommuUnit(name, tuple(group)))
        else:  # a unit of one device is no constraint
            items[items.index(group[0])] = attrs.evolve(group[0], unit=None)
    return Site(tuple(items), tuple(units), nodes, tuple(useless), tuple(rest), tuple(ignored))


def _rivals_in_one_place(pools: Iterable[DevicePool], places: Iterable[Location]) -> dict[str, str]:
    """Find adapters in the same place as their functions.

    :returns: rival -> key for a domain of their own.
    """
    places_by_rival: dict[str, set[Location]] = {}
    for pool, place in zip(pools, places, strict=True):
        if pool.rival is not None and pool.free > 0:
            places_by_rival.setdefault(pool.rival, set()).add(place)
    return {rival: f"rivals {rival}" for rival, where in places_by_rival.items() if len(where) == 1}


def _keep_believed_pools(
    pools: Iterable[DevicePool],
) -> tuple[list[DevicePool], list[str], set[str]]:
    """Split the pools of a host by whether their ids are unique.

    :returns: the pools by name, each once; the faults of the others; and their IOMMU units.
    """
    by_id: dict[str, DevicePool] = {}
    twice: dict[str, str] = {}
    ignored = []
    for pool in pools:
        kept_pool = by_id.setdefault(pool.id, pool)
        if kept_pool is pool:
            continue
        if attrs.evolve(kept_pool, free=pool.free) != pool:
            twice[pool.id] = min(pool.name, kept_pool.name)
        elif pool.free < kept_pool.free:
            # The smaller count of a pool that is listed twice is used.
            by_id[pool.id] = pool
    broken = {pool.unit for pool in pools if pool.id in twice and pool.unit is not None}
    for identifier, name in sorted(twice.items()):
        del by_id[identifier]
        ignored.append(f"{name} is listed twice with different data")
    ordered = sorted(by_id.values(), key=lambda pool: (pool.name, pool.id))
    for pool in ordered:
        if not 0 <= pool.free <= MAX_FREE:
            ignored.append(f"{pool.name} has the impossible number of {pool.free} free devices")
            if pool.unit is not None:
                broken.add(pool.unit)
    return [pool for pool in ordered if pool.free <= MAX_FREE], ignored, broken


def locations_by_pool(host: FreeHost) -> dict[str, Location]:
    """Return pool id -> the reliable part of its location (NUMA node, socket, root, switches)."""
    _, socket_of = _nodes_and_sockets(host.nodes, host.pools)
    settled = settle_locations([pool.location for pool in host.pools], socket_of)
    return {pool.id: place for pool, place in zip(host.pools, settled, strict=True)}


def settle_locations(
    places: Sequence[Location], socket_of: Mapping[int, int | None]
) -> list[Location]:
    """Remove contradictory parts from the locations, so that each domain is inside the next.

    A PCIe root whose devices claim several NUMA nodes is not a reliable place. The place of a
    device without a node is unknown if it is below a root that has one.

    :returns: one location for each of *places*.
    """
    numas: dict[str, set[int]] = {}
    sockets: dict[str, set[int | None]] = {}
    for place in places:
        if place.root is not None:
            if place.numa is not None and place.numa >= 0:
                numas.setdefault(place.root, set()).add(place.numa)
            else:
                sockets.setdefault(place.root, set()).add(place.socket)
    settled = []
    for place in places:
        numa = place.numa if place.numa is not None and place.numa >= 0 else None
        socket = place.socket if numa is None else socket_of.get(numa)
        root, switches = place.root, place.switches
        if root is not None:
            root_numas = numas.get(root, set())
            if len(root_numas) > 1 or (root_numas and numa is None):
                root, switches = None, ()
            elif numa is None and len(sockets.get(root, ())) > 1:
                socket = None
        else:
            switches = ()
        settled.append(Location(numa=numa, socket=socket, root=root, switches=switches))
    return settled


def _nodes_and_sockets(
    nodes: Sequence[HostNode], pools: Sequence[DevicePool]
) -> tuple[tuple[HostNode, ...], dict[int, int | None]]:
    """Return the NUMA nodes of the host, and node -> its socket; None if the socket is unknown."""
    claims: dict[int, set[int]] = {}
    for pool in pools:
        place = pool.location
        if place.numa is not None and place.numa >= 0:
            claimed_sockets = claims.setdefault(place.numa, set())
            if place.socket is not None:
                claimed_sockets.add(place.socket)
    socket_of: dict[int, int | None] = {
        numa: next(iter(claimed_sockets)) if len(claimed_sockets) == 1 else None
        for numa, claimed_sockets in claims.items()
    }
    by_id: dict[int, HostNode] = {}
    for node in nodes:
        if by_id.setdefault(node.id, node) != node:
            raise ValueError(f"the host lists NUMA node {node.id} twice, with different data")
        if node.socket is not None:
            socket_of[node.id] = node.socket
    if not by_id:
        # The host lists no nodes, so the nodes of its devices count.
        by_id = {numa: HostNode(id=numa) for numa in claims}
    known_nodes = tuple(
        HostNode(number, socket_of.get(number), node.dedicated_cpus, node.pages)
        for number, node in sorted(by_id.items())
    )
    return known_nodes, socket_of


def node_region(node: HostNode, rank: Rank) -> Key:
    """Return the key of the region of a guest cell on *node*, as in :meth:`Item.region`."""
    if rank is Rank.HOST:
        return ("host",)
    if rank is Rank.SOCKET and node.socket is not None:
        return ("socket", str(node.socket))
    return ("numa", str(node.id))


def _domain_keys_of(identifier: str, place: Location) -> tuple[Key, ...]:
    key: Key = (ALONE, identifier)
    if place.root is not None and place.switches:
        key = ("pix", place.root, *place.switches)
    keys = [key]
    for level in Level:
        # If a wider place is unknown, only the tighter one is certain.
        key = place.domain(level) or key
        keys.append(key)
    return tuple(keys)
