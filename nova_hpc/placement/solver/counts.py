# SPDX-License-Identifier: Apache-2.0
"""How many groups each part of the host can hold, and the cost of holding them.

Devices of one domain are interchangeable, so these tables count groups in
domains and never enumerate combinations of devices: one table per domain,
from a number of groups to its least cost, merged upwards along the tree. The
bounded choice takes its plans from them, and refusals their numbers.

A table with only a number of groups cannot measure the damage of a profile. The costs here
are the devices left over in the domains that are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.solver.demand import Demand, add_capacities
from nova_hpc.placement.solver.domains import (
    ALONE,
    TIDY,
    IommuUnit,
    Item,
    Key,
    Rank,
    Site,
    capacities_by_kind,
)
from nova_hpc.placement.solver.spanning import SearchStage

#: (sum of the ranks of the groups, devices left over in the domains that were
#: touched, crowding of adapters that give several functions)
Cost = tuple[int, int, int]

ZERO: Final[Cost] = (0, 0, 0)


def add_costs(first: Cost, second: Cost) -> Cost:
    """Sum of two costs, field by field."""
    return (first[0] + second[0], first[1] + second[1], first[2] + second[2])


def _left_over_cost(
    demand: Demand, counted: Iterable[int], caps: Mapping[int, int], groups: int, rank: Rank
) -> Cost:
    """Return the cost of devices that stay unused in a domain of these capacities with *groups*."""
    if not groups or rank not in TIDY:
        return ZERO
    return (0, sum(demand.serving(caps, i) - groups * demand.per_group[i] for i in counted), 0)


def _crowding_cost(
    demand: Demand, counted: Iterable[int], items: Iterable[Item], groups: int
) -> Cost:
    """Return the cost of several functions of one adapter in one server.

    It is the sum of the squared numbers of functions that the adapters give, if these are spread
    evenly over the adapters among *items*.
    """
    total = 0
    for index in set(range(len(demand.names))) - set(counted):
        adapters = sum(1 for item in items if item.kind >> index & 1)
        if adapters:
            per_adapter, more = divmod(groups * demand.per_group[index], adapters)
            total += adapters * per_adapter * per_adapter + more * (2 * per_adapter + 1)
    return (0, 0, total)


@attrs.define(eq=False)
class CountedDomain:
    """A domain of the device tree, with the cheapest cost for each number of device groups in
    it.
    """

    key: Key
    rank: Rank
    items: tuple[Item, ...]
    children: tuple[CountedDomain, ...] = ()
    #: groups -> cost
    table: dict[int, Cost] = attrs.field(factory=dict)
    #: groups -> groups of each child; empty in a leaf
    split: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    #: in a leaf: groups -> names of the units that are used up
    units: dict[int, tuple[str, ...]] = attrs.field(factory=dict)
    #: in a leaf: wide units that are used up for any number of groups
    forced: tuple[str, ...] = ()

    def leaves(self, groups: int) -> Iterator[tuple[CountedDomain, int]]:
        """Yield leaf domains of the cheapest way for *groups* device groups, with their shares."""
        if not self.children:
            if groups:
                yield self, groups
            return
        for child, share in zip(self.children, self.split[groups], strict=True):
            yield from child.leaves(share)


def build_regions(
    demand: Demand,
    site: Site,
    stage: SearchStage,
    counted: Sequence[int],
    chosen: Sequence[IommuUnit] = (),
    closed: frozenset[str] = frozenset(),
) -> dict[Key, CountedDomain]:
    """Build the device tree of each region, with its cost tables.

    A region is the NUMA node, socket or host that is local to a guest cell. A wide IOMMU unit has
    devices in several domains; the trees are for one choice of these.

    :param chosen: wide units that must be used up
    :param closed: names of the units that must not be used here
    """
    forced = frozenset(unit.name for unit in chosen)
    parts: dict[Key, list[Item]] = {}
    for item in site.items:
        where = item.region(stage.region)
        if where is not None and (item.unit is None or item.unit not in closed - forced):
            parts.setdefault(where, []).append(item)
    units = {unit.name: unit for unit in site.units if unit.name not in forced | closed}
    return {
        key: _grow_domain(
            demand, tuple(items), key, stage.region, stage.rank, counted, units, forced
        )
        for key, items in parts.items()
    }


def _grow_domain(
    demand: Demand,
    items: tuple[Item, ...],
    key: Key,
    rank: Rank,
    bottom: Rank,
    counted: Sequence[int],
    units: Mapping[str, IommuUnit],
    forced: frozenset[str],
) -> CountedDomain:
    """Build the tree of a domain with its tables, down to domains of rank *bottom*.

    Groups lie in a domain of rank *bottom* or below. The table of such a leaf also counts how much
    wider the groups are than the tightest possible ones.
    """
    domain = CountedDomain(key, rank, items)
    caps = capacities_by_kind(items)
    if rank <= bottom:
        _fill_leaf(demand, domain, units, forced)
        tighter = _list_tighter_limits(demand, items, bottom)
        domain.table = {
            groups: add_costs(
                _crowding_cost(demand, counted, items, groups),
                (sum(max(0, groups - most) for most in tighter), 0, 0),
            )
            for groups in domain.table
        }
    else:
        parts: dict[Key, list[Item]] = {}
        for item in items:
            parts.setdefault(item.keys[rank - 1], []).append(item)
        domain.children = tuple(
            _grow_domain(demand, tuple(part), name, Rank(rank - 1), bottom, counted, units, forced)
            for name, part in sorted(
                # Among equally good domains the one with most free functions is taken,
                # so that servers share an adapter as late as possible.
                parts.items(),
                key=lambda pair: (-max(item.free for item in pair[1]), pair[1][0].order),
            )
        )
        _merge_children(demand.groups, domain)
    domain.table = {
        groups: add_costs(cost, _left_over_cost(demand, counted, caps, groups, rank))
        for groups, cost in domain.table.items()
    }
    return domain


def _list_tighter_limits(demand: Demand, items: Sequence[Item], rank: Rank) -> list[int]:
    """Return for each rank below *rank* the number of groups that could be that tight."""
    result = []
    for step in list(Rank)[:rank]:
        parts: dict[Key, dict[int, int]] = {}
        for item in items:
            key = item.keys[step]
            if key[0] != ALONE or demand.size == 1:
                caps = parts.setdefault(key, {})
                caps[item.kind] = caps.get(item.kind, 0) + item.free
        result.append(sum(demand.most(caps) for caps in parts.values()))
    return result


def _merge_children(limit: int, domain: CountedDomain) -> None:
    """Merge the children's tables: the least cost of each sum of groups, and its shares.

    :param limit: maximum of groups in total.
    """
    table: dict[int, Cost] = {0: ZERO}
    split: dict[int, tuple[int, ...]] = {0: ()}
    for child in domain.children:
        merged: dict[int, Cost] = {}
        shares: dict[int, tuple[int, ...]] = {}
        for before, cost in table.items():
            # More groups first, so that the earlier child wins among equal costs.
            for groups, own in child.table.items():
                total = before + groups
                if total > limit:
                    continue
                both = add_costs(cost, own)
                share = (*split[before], groups)
                if (
                    total not in merged
                    or both < merged[total]
                    or (both == merged[total] and share > shares[total])
                ):
                    merged[total], shares[total] = both, share
        table, split = merged, shares
    domain.table, domain.split = table, split


def _fill_leaf(
    demand: Demand,
    domain: CountedDomain,
    units: Mapping[str, IommuUnit],
    forced: frozenset[str],
) -> None:
    """Fill the table of a leaf: each possible number of groups, and the units that it uses up.

    Devices of a chosen unit must all be used, so their number is a lower bound for the groups.
    Units inside the leaf are used up as a whole or not at all.
    """
    free: dict[int, int] = {}
    must: dict[int, int] = {}
    local: dict[str, IommuUnit] = {}
    for item in domain.items:
        if item.unit is None:
            free[item.kind] = free.get(item.kind, 0) + item.free
        elif item.unit in forced:
            must[item.kind] = must.get(item.kind, 0) + item.free
            if item.unit not in domain.forced:
                domain.forced = (*domain.forced, item.unit)
        else:
            local[item.unit] = units[item.unit]
    barred = domain.key[0] == ALONE and demand.size > 1
    if barred:
        if not must:
            domain.table, domain.units = {0: ZERO}, {0: ()}
        return
    if not must and not local:
        most = demand.most(free)
        domain.table = dict.fromkeys(range(most + 1), ZERO)
        domain.units = dict.fromkeys(range(most + 1), ())
        return
    for names, sums in _sums_of_units(demand, must, sorted(local.items())):
        most = demand.most(add_capacities(free, sums))
        for groups in range(most, -1, -1):
            if not demand.absorbs(sums, groups):
                break
            # Sums come with the largest first: units serve only whole, so
            # using them up costs later servers least.
            domain.table.setdefault(groups, ZERO)
            domain.units.setdefault(groups, names)


def _sums_of_units(
    demand: Demand, must: Mapping[int, int], local: Sequence[tuple[str, IommuUnit]]
) -> list[tuple[tuple[str, ...], dict[int, int]]]:
    """List every sum of whole IOMMU units that one server could use up, each once.

    :param must: the units that have to be used up anyway: kind -> number of devices.
    :returns: names of the units, and kind -> number of their devices together.
    """
    names_by_sum: dict[tuple[tuple[int, int], ...], tuple[str, ...]] = {
        tuple(sorted(must.items())): ()
    }
    for name, unit in local:
        for sums, names in list(names_by_sum.items()):
            more = add_capacities(dict(sums), unit.caps)
            if demand.absorbs(more, demand.groups):
                names_by_sum.setdefault(tuple(sorted(more.items())), (*names, name))
    return sorted(
        ((names, dict(sums)) for sums, names in names_by_sum.items()),
        key=lambda pair: (-sum(pair[1].values()), pair[0]),
    )
