# SPDX-License-Identifier: Apache-2.0
"""The bounded way to a good device set, if the exact search would take too long.

Exact for the level that every group reaches and for the balance over the
guest's cells. The devices inside the widest domain are taken greedily, so that as
many groups as possible are tighter than the domain itself, and so that the remaining
devices stay together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from nova_hpc.placement.model import DeviceSet, HostNode, Nvlink
from nova_hpc.placement.solver.cells import Seating, list_seatings
from nova_hpc.placement.solver.counts import CountedDomain, build_regions
from nova_hpc.placement.solver.demand import Demand, assign_devices_to_names
from nova_hpc.placement.solver.domains import (
    ALONE,
    GroupMember,
    Item,
    Key,
    Members,
    Rank,
    Site,
    capacities_by_kind,
    node_region,
)
from nova_hpc.placement.solver.feasible import list_stages, narrow_to_sets
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.realise import GroupChoice
from nova_hpc.placement.solver.solve import Solver
from nova_hpc.placement.solver.spanning import (
    SearchStage,
    iterate_set_choices,
    iterate_unit_choices,
    split_wide_units,
)

#: Choices of NVLink sets that are tried.
MAX_TRIES = 32


@attrs.frozen
class _GroupPlan:
    """The number of device groups in each domain, before single devices are chosen."""

    stage: SearchStage
    seating: Seating
    trees: dict[Key, CountedDomain]

    def leaves(self) -> Iterator[tuple[Key, CountedDomain, int]]:
        for region, groups in sorted(self.seating.shares.items()):
            if groups:
                for leaf, share in self.trees[region].leaves(groups):
                    yield region, leaf, share


@attrs.frozen
class _PlacedGroup:
    """One device group with its devices, guest cell and rank."""

    built: Members
    cell: int | None
    rank: Rank  # of its devices and its cell


def solve_greedily(solver: Solver, limit: int) -> list[DeviceSet]:
    """Find device sets by a heuristic search, best first; [] if it finds none.

    It is used if the exact search would take too many steps.
    """
    problem, links = solver.problem, solver.links
    device_sets = []
    if problem.request.nvlink is not Nvlink.NONE:
        sets = itertools.islice(iterate_set_choices(links.sets, problem.demand.groups), MAX_TRIES)
        for chosen in sets:
            held = {item.id for members in chosen for item in members}
            device_sets += _realise_plans(
                solver, narrow_to_sets(problem.site, links.names, held), limit
            )
        # Devices of several sets may have been mixed in one group.
        device_sets = [devices for devices in device_sets if not devices.score[1]]
    if problem.request.nvlink is not Nvlink.REQUIRED:
        device_sets += _realise_plans(solver, problem.site, limit)
    return merge_device_sets([], device_sets, limit)


def merge_device_sets(
    some: Sequence[DeviceSet], more: Sequence[DeviceSet], limit: int
) -> list[DeviceSet]:
    """Return the best *limit* device sets of two lists, each set once."""
    unique = {str((devices.picks, devices.cells)): devices for devices in (*more, *some)}
    ranked = sorted(unique.values(), key=lambda devices: (devices.score, str(devices.picks)))
    return ranked[:limit]


def _realise_plans(solver: Solver, site: Site, limit: int) -> list[DeviceSet]:
    problem = solver.problem
    planner = _GroupPlanner(problem, site)
    return [
        solver.finish(
            GroupChoice(
                tuple((group.built, group.cell) for group in planner.realise(plan)),
                dict(plan.seating.nodes),
            )
        )
        for plan in planner.plans(limit)
    ]


class _GroupPlanner:
    """Plans the device groups of one request on one host, first as counts and then as devices."""

    def __init__(self, problem: SearchProblem, site: Site) -> None:
        self.request = problem.request
        self.demand = problem.demand
        self.site = site
        self.counted = sorted(problem.countable)
        self.nodes = {node.id: node for node in site.nodes}

    def plans(self, limit: int) -> list[_GroupPlan]:
        """Return the cheapest plans of the tightest stage that has a plan; [] if none has."""
        for stage in list_stages(self.request):
            plans = self._plans(stage, limit)
            if plans:
                return plans
        return []

    def _plans(self, stage: SearchStage, limit: int) -> list[_GroupPlan]:
        """Return the cheapest *limit* plans of one stage."""
        wide, never = split_wide_units(self.demand, self.site, stage)
        closed = never | {unit.name for unit in wide}
        plans: list[_GroupPlan] = []
        for chosen in iterate_unit_choices(self.demand, wide):
            trees = build_regions(self.demand, self.site, stage, self.counted, chosen, closed)
            for seating in list_seatings(
                self.request.cells,
                self.site.nodes,
                stage.region,
                {key: tree.table for key, tree in trees.items()},
                self.demand.groups,
                limit,
                self._appeal if stage.region > Rank.NUMA else _no_appeal,
            ):
                plans.append(_GroupPlan(stage, seating, trees))
        plans.sort(key=lambda plan: plan.seating.cost)
        return plans[:limit]

    def _appeal(self, node: HostNode) -> int:
        """Prefer nodes with devices for cells, even if the cells may be elsewhere."""
        where = node_region(node, Rank.NUMA)
        return -sum(item.free for item in self.site.items if item.region(Rank.NUMA) == where)

    def realise(self, plan: _GroupPlan) -> list[_PlacedGroup]:
        """Choose the devices of a plan and give each group its guest cell."""
        waiting: dict[Key, list[Members]] = {}
        for region, leaf, share in plan.leaves():
            waiting.setdefault(region, []).extend(
                build_group_members(
                    self.demand,
                    self.counted,
                    leaf.items,
                    [*leaf.units[share], *leaf.forced],
                    share,
                    plan.stage.rank,
                )
            )
        placed: list[_PlacedGroup] = []
        for region, groups in waiting.items():
            placed.extend(self._seat(plan, region, groups))
        return sorted(
            placed,
            key=lambda group: (
                -1 if group.cell is None else group.cell,
                [part.item.order for part in group.built],
            ),
        )

    def _seat(self, plan: _GroupPlan, region: Key, groups: list[Members]) -> list[_PlacedGroup]:
        """Give each group of a region one of the region's cells."""
        if not self.request.cells:
            return [_PlacedGroup(built, None, _rank_of_group(built, None)) for built in groups]
        room = {
            cell: plan.seating.groups[cell]
            for cell, node in plan.seating.nodes.items()
            if node_region(self.nodes[node], plan.stage.region) == region
        }
        pairs = sorted(
            (_rank_of_group(built, self.nodes[plan.seating.nodes[cell]]), index, cell)
            for index, built in enumerate(groups)
            for cell in room
        )
        placed: dict[int, _PlacedGroup] = {}
        for rank, index, cell in pairs:
            if index not in placed and room[cell]:
                room[cell] -= 1
                placed[index] = _PlacedGroup(groups[index], cell, rank)
        return list(placed.values())


def _no_appeal(node: HostNode) -> int:
    return 0


def _rank_of_group(built: Members, node: HostNode | None) -> Rank:
    """Return the tightest rank that contains the devices of a group, and its guest cell's node.

    :param node: NUMA node of the cell; None without a cell.
    """
    first = built[0].item
    rank = max((first.rank_to(part.item) for part in built[1:]), default=Rank.PIX)
    if node is None:
        return rank
    for part in built:
        for region in (Rank.NUMA, Rank.SOCKET, Rank.HOST):
            if part.item.region(region) == node_region(node, region):
                # On the cell's own node the cell is no farther than the devices.
                rank = max(rank, region if region > Rank.NUMA else rank)
                break
    return rank


class _Stock:
    """The devices that a greedy choice may still take, by alias and pool."""

    def __init__(self, free: dict[tuple[int, Item], int]) -> None:
        self.free = {pair: count for pair, count in free.items() if count > 0}
        self.taken: dict[Item, int] = {}

    def of(self, index: int, items: Sequence[Item]) -> int:
        return sum(self.free.get((index, item), 0) for item in items)

    def take(self, index: int, item: Item) -> None:
        self.free[index, item] -= 1
        self.taken[item] = self.taken.get(item, 0) + 1


def build_group_members(
    demand: Demand,
    counted: Sequence[int],
    items: Sequence[Item],
    units: Sequence[str],
    groups: int,
    rank: Rank,
) -> list[Members]:
    """Choose the devices of *groups* groups in one domain of *rank*.

    :param items: the devices of the domain
    :param units: names of the units that are used up completely; no other is touched
    """
    whole = set(units)
    usable = [item for item in items if item.unit is None or item.unit in whole]
    if whole or any(item.kind & (item.kind - 1) for item in usable):
        stock = _Stock(_label_devices(demand, usable, groups))
    else:
        stock = _Stock({(item.kind.bit_length() - 1, item): item.free for item in usable})
    usable.sort(key=lambda item: item.order)
    domains = _domains_by_rank(usable, rank)
    return [_take_group(demand, counted, stock, domains) for _ in range(groups)]


def _domains_by_rank(items: Sequence[Item], rank: Rank) -> list[list[list[Item]]]:
    """Return domains of the ranks up to *rank*, tightest first; a domain is a list of items."""
    result = []
    for step in list(Rank)[:rank]:
        parts: dict[Key, list[Item]] = {}
        for item in items:
            parts.setdefault(item.keys[step], []).append(item)
        result.append(list(parts.values()))
    result.append([list(items)])
    return result


def _label_devices(
    demand: Demand, usable: Sequence[Item], groups: int
) -> dict[tuple[int, Item], int]:
    """Choose exactly the devices to use: (index of a name, item) -> number.

    For domains with units that must be used up, or with devices that serve several names: the
    assignment of devices to names is then a flow, not a free choice.
    """
    forced = [item for item in usable if item.unit is not None]
    others = [item for item in usable if item.unit is None]
    flow = assign_devices_to_names(
        demand, capacities_by_kind(others), capacities_by_kind(forced), groups
    )
    # Devices near the forced ones come first.
    others.sort(
        key=lambda item: (
            min((item.rank_to(f) for f in forced), default=0),
            item.aliases,
            item.order,
        )
    )
    labelled: dict[tuple[int, Item], int] = {}
    for item in (*forced, *others):
        left = item.free
        for index in range(len(demand.names)):
            count = min(left, flow.get((item.kind, index), 0))
            if count:
                flow[item.kind, index] -= count
                labelled[index, item] = count
                left -= count
    return labelled


def _take_group(
    demand: Demand,
    counted: Sequence[int],
    stock: _Stock,
    domains: Sequence[Sequence[Sequence[Item]]],
) -> Members:
    """Take the devices of one group from the tightest domain that has them."""
    for rank, domain in enumerate(domains):
        best: tuple[tuple[int, int], Sequence[Item]] | None = None
        for items in domain:
            have = [stock.of(i, items) for i in range(len(demand.names))]
            if any(have[i] < need for i, need in enumerate(demand.per_group)):
                continue
            if demand.size > 1 and items[0].keys[rank][0] == ALONE:
                continue  # several functions of one pool, of unknown place
            left = sum(have[i] - demand.per_group[i] for i in counted)
            crowd = min(stock.taken.get(item, 0) for item in items)
            if best is None or (left, crowd) < best[0]:
                best = ((left, crowd), items)
        if best is not None:
            return _take_nearest_devices(demand, counted, stock, best[1])
    raise AssertionError("the tables promised devices that are not there")


def _take_nearest_devices(
    demand: Demand, counted: Sequence[int], stock: _Stock, items: Sequence[Item]
) -> Members:
    """Choose the devices of one group among *items*, which suffice."""
    built: list[GroupMember] = []
    # Devices given one by one are scarcer, so they choose the place.
    order = sorted(
        range(len(demand.names)), key=lambda i: (i not in counted, -demand.per_group[i], i)
    )
    for index in order:
        # The sum of the ranks between each item and the devices already in the group.
        away: dict[Item, int] = {
            item: sum(item.rank_to(member.item) for member in built)
            for item in items
            if stock.free.get((index, item), 0)
        }
        for _ in range(demand.per_group[index]):
            item = min(
                (item for item in away if stock.free[index, item]),
                key=lambda item: (
                    away[item],
                    stock.taken.get(item, 0),
                    item.aliases,
                    -item.free,
                    item.order,
                ),
            )
            stock.take(index, item)
            built.append(GroupMember(index, item))
            for candidate in away:
                away[candidate] += candidate.rank_to(item)
    return tuple(built)
