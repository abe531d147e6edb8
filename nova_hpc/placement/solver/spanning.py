# SPDX-License-Identifier: Apache-2.0
"""Devices of several domains that go together: NVLink sets and wide IOMMU units.

The table of a domain cannot hold them. The sets and units of a server are chosen outside,
with one search for each choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from nova_hpc.placement.model import FreeHost, Nvlink, Request
from nova_hpc.placement.solver.demand import Demand, add_capacities
from nova_hpc.placement.solver.domains import (
    ALONE,
    GroupMember,
    IommuUnit,
    Item,
    Key,
    Members,
    Rank,
    Site,
)

#: Maximum of choices of sets that are searched for one number of groups.
MAX_SELECTIONS = 512

#: Maximum of choices of units that reach over several domains. Such units are IOMMU groups
#: wider than the requested level; a host has a handful.
MAX_CHOICES = 512


@attrs.frozen(eq=False)
class SearchStage:
    """One way to place groups: the rank of a group's domain, and the region of its guest cell.

    Each group is within one domain of *rank*, and local to the NUMA node, socket or host of its
    cell.
    """

    rank: Rank
    region: Rank


@attrs.frozen(eq=False)
class LinkedSets:
    """The NVLink sets of a host that a request could use, and the aliases that they serve."""

    #: indices of the names that NVLink devices serve
    names: tuple[int, ...]
    #: sets that one group takes exactly, in a fixed order
    sets: tuple[tuple[Item, ...], ...]
    #: whether the host has any set at all
    known: bool


def read_linked_sets(request: Request, demand: Demand, site: Site, host: FreeHost) -> LinkedSets:
    """Read the host's NVLink sets for *request*; sets with devices in use are left out."""
    if request.nvlink is Nvlink.NONE:
        return LinkedSets((), (), bool(host.nvlink))
    present = {item.id: item for item in (*site.items, *site.rest)}
    linked = {pool_id for members in host.nvlink for pool_id in members}
    kinds = 0
    for pool in host.pools:
        if pool.id in linked:
            kinds |= demand.kind(pool.serves)
    names = tuple(i for i in range(len(demand.names)) if kinds >> i & 1)
    sets = []
    for members in set(host.nvlink):
        items = [present[pool_id] for pool_id in members if pool_id in present]
        items.sort(key=lambda item: item.order)
        if (
            names
            and items
            and len(items) == len(members)
            and all(item.free == 1 and item.kind for item in items)
            and assign_names_in_set(demand, names, items) is not None
        ):
            sets.append(tuple(items))
    sets.sort(key=lambda items: [item.order for item in items])
    return LinkedSets(names, tuple(sets), bool(host.nvlink))


def iterate_set_choices(
    sets: Sequence[Sequence[Item]], count: int
) -> Iterator[tuple[Sequence[Item], ...]]:
    """Yield all ways to choose *count* NVLink sets that share no device."""

    def extend(
        start: int, chosen: tuple[Sequence[Item], ...], used: frozenset[str]
    ) -> Iterator[tuple[Sequence[Item], ...]]:
        if len(chosen) == count:
            yield chosen
            return
        for number in range(start, len(sets) - (count - len(chosen)) + 1):
            members = {item.id for item in sets[number]}
            if not members & used:
                yield from extend(number + 1, (*chosen, sets[number]), used | members)

    return extend(0, (), frozenset())


def assign_names_in_set(
    demand: Demand, nvlink: Sequence[int], items: Sequence[Item]
) -> Members | None:
    """Assign each device of an NVLink set to an alias of the group.

    None if the set's devices do not match the aliases.
    """
    slots = [i for i in nvlink for _ in range(demand.per_group[i])]
    if len(slots) != len(items):
        return None
    owner: dict[int, int] = {}  # slot -> number of the item

    def place(number: int, seen: set[int]) -> bool:
        for slot, index in enumerate(slots):
            if slot not in seen and items[number].kind >> index & 1:
                seen.add(slot)
                if slot not in owner or place(owner[slot], seen):
                    owner[slot] = number
                    return True
        return False

    if not all(place(number, set()) for number in range(len(items))):
        return None
    return tuple(GroupMember(slots[slot], items[number]) for slot, number in sorted(owner.items()))


def split_wide_units(
    demand: Demand, site: Site, stage: SearchStage
) -> tuple[tuple[IommuUnit, ...], frozenset[str]]:
    """Return IOMMU units with devices in several domains of the stage's rank.

    :returns: these units, and names of units that the request cannot use.
    """
    if not site.units:
        return (), frozenset()
    caps: dict[Key, dict[int, int]] = {}
    for item in site.items:
        inside = caps.setdefault(item.keys[stage.rank], {})
        inside[item.kind] = inside.get(item.kind, 0) + item.free
    # Devices in a domain that holds no group cannot be used up.
    empty = {
        key
        for key, inside in caps.items()
        if not demand.most(inside) or (key[0] == ALONE and demand.size > 1)
    }
    wide, never = [], set()
    for unit in site.units:
        keys = {item.keys[stage.rank] for item in unit.items}
        if keys & empty or any(item.region(stage.region) is None for item in unit.items):
            never.add(unit.name)
        elif len(keys) > 1:
            wide.append(unit)
    return tuple(wide), frozenset(never)


def iterate_unit_choices(
    demand: Demand, wide: Sequence[IommuUnit]
) -> Iterator[tuple[IommuUnit, ...]]:
    """Yield combinations of wide IOMMU units that one server could use up, the smallest first."""
    level: list[tuple[tuple[int, ...], dict[int, int]]] = [((), {})]
    count = 0
    while level:
        larger = []
        for chosen, must in level:
            yield tuple(wide[i] for i in chosen)
            count += 1
            if count >= MAX_CHOICES:
                return
            for i in range(chosen[-1] + 1 if chosen else 0, len(wide)):
                more = add_capacities(must, wide[i].caps)
                if demand.absorbs(more, demand.groups):
                    larger.append(((*chosen, i), more))
        level = larger
