# SPDX-License-Identifier: Apache-2.0
"""Other devices that are exactly as good, so that racing schedulers do not collide.

Schedulers that decide at the same moment see the same host, and all of them would choose
the same best set; all but one would then lose the host. Domains of one class, and devices
that are alike, can be exchanged without changing the score. A seed (for example of the
server) decides which of them are taken.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from nova_hpc.placement import ports
from nova_hpc.placement.model import DeviceSet, FreeHost, Request
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc.placement.solver.classes import Alike, DomainNode, Forest
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import GroupMember, Item, Site, survey_host
from nova_hpc.placement.solver.measure import measure_choice
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.spanning import read_linked_sets

#: NVLink sets and wide IOMMU units are not part of a class, so an exchange may
#: tear them apart; then another one is tried.
TRIES: Final = 8

Thing = TypeVar("Thing")


def rotate_devices(request: Request, host: FreeHost, devices: DeviceSet, seed: int) -> DeviceSet:
    """Return another device set with the same score as *devices*; *seed* decides which.

    So schedulers that decide at the same moment choose different devices.

    Pure: the same seed gives the same set, whatever the order of the pools. *devices* itself is
    returned if nothing can be exchanged.

    :param devices: a set from choose_device_sets() for this request and host
    :param seed: any integer; equal seeds give equal sets
    :raises ValueError: as in choose_device_sets()
    """
    if request.ports:
        return ports.exchange_with_ports(
            request, host, devices, functools.partial(rotate_devices, seed=seed)
        )
    demand = Demand.of(request)
    site = survey_host(demand, host)
    problem = SearchProblem.of(request, demand, site, _profile_of_everything(site))
    item_ids = {item.id for item in site.items}
    if not all(pick.pool in item_ids for pick in devices.picks):
        return devices  # chosen on another state of the host
    root = Forest(problem).grow({}, (), _local_units_of(site))
    linked = read_linked_sets(request, demand, site, host)
    own_groups = groups_of_set(demand, site, devices)
    before = measure_choice(problem, linked, own_groups, devices.cells)
    for attempt in range(TRIES):
        turn = _Turn(f"{seed}/{attempt}")
        turn.pair(root, root)
        turned_set = attrs.evolve(
            devices,
            picks=tuple(
                attrs.evolve(pick, pool=turn.items.get(pick.pool, pick.pool))
                for pick in devices.picks
            ),
            cells={cell: turn.nodes.get(node, node) for cell, node in devices.cells.items()},
        )
        if _uses_whole_units(site, turned_set):
            after = measure_choice(
                problem, linked, groups_of_set(demand, site, turned_set), turned_set.cells
            )
            if after == before:
                return turned_set
    return devices


def _profile_of_everything(site: Site) -> Profile:
    """Build a profile that uses every property that any profile could use."""
    labels = {item.label for item in (*site.items, *site.rest)} - {None}
    return Profile(
        tuple(FlavorShape({str(label): 1}, cpus=1) for label in sorted(map(str, labels)))
    )


def _local_units_of(site: Site) -> frozenset[str]:
    return frozenset(
        unit.name for unit in site.units if len({item.keys[0] for item in unit.items}) == 1
    )


class _Turn:
    """An exchange of equal subtrees and devices of a host, decided by a seed."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.items: dict[str, str] = {}
        self.nodes: dict[int, int] = {}

    def pair(self, original: DomainNode, substitute: DomainNode) -> None:
        """Record that *substitute* replaces *original* in each device; both are equal subtrees."""
        if original.node is not None and substitute.node is not None:
            self.nodes[original.node.id] = substitute.node.id
        turned = self._mixed(
            substitute.children,
            lambda node: node.cls.number,
            lambda node: repr((node.up, node.first)),
        )
        for child, instead in zip(original.children, turned, strict=True):
            self.pair(child, instead)
        parts = self._mixed(
            substitute.parts,
            lambda part: part.signature,
            lambda part: repr([item.id for items in part.items for item in items]),
        )
        for part, stand_in in zip(original.parts, parts, strict=True):
            self._swap(part, stand_in)

    def _swap(self, part: Alike, stand_in: Alike) -> None:
        for own_items, theirs in zip(part.items, stand_in.items, strict=True):
            mixed = self._mixed(theirs, lambda item: 0, lambda item: item.id)
            for item, replacement in zip(own_items, mixed, strict=True):
                self.items[item.id] = replacement.id
        if part.instead is not None and stand_in.instead is not None:
            self._swap(part.instead, stand_in.instead)

    def _mixed(
        self,
        things: Sequence[Thing],
        kind: Callable[[Thing], object],
        name: Callable[[Thing], str],
    ) -> list[Thing]:
        """Permute equal things among their positions by the server's seed; keep other positions.

        :param kind: returns equal values for equal things.
        :param name: returns a thing's name, which is hashed with the seed for the order.
        """
        kinds: dict[object, list[Thing]] = {}
        for thing in things:
            kinds.setdefault(kind(thing), []).append(thing)
        for alike in kinds.values():
            if len(alike) > 1:
                alike.sort(key=lambda thing: self._rank(name(thing)))
        return [kinds[kind(thing)].pop(0) for thing in things]

    def _rank(self, name: str) -> bytes:
        return hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()


def groups_of_set(
    demand: Demand, site: Site, devices: DeviceSet
) -> list[tuple[tuple[GroupMember, ...], int | None]]:
    """Return the device groups of a device set, each with its guest cell; None without a cell."""
    items: Mapping[str, Item] = {item.id: item for item in site.items}
    index_of = {key: i for i, keys in enumerate(demand.keys) for key in keys}
    groups: dict[int, list[GroupMember]] = {}
    cells: dict[int, int | None] = {}
    for pick in devices.picks:
        part = GroupMember(index_of[pick.want], items[pick.pool])
        groups.setdefault(pick.group, []).append(part)
        cells[pick.group] = pick.cell
    return [(tuple(parts), cells[number]) for number, parts in sorted(groups.items())]


def _uses_whole_units(site: Site, devices: DeviceSet) -> bool:
    """Whether every IOMMU unit is used up, or not used."""
    used: dict[str, int] = {}
    for pick in devices.picks:
        used[pick.pool] = used.get(pick.pool, 0) + 1
    return all(
        {used.get(item.id, 0) - item.free for item in unit.items} == {0}
        or not any(item.id in used for item in unit.items)
        for unit in site.units
    )
