"""The bounded way to a good device set, where the exact search would take too long.

Exact for the level that every group reaches and for the balance over the
guest's cells; the devices inside the widest domain are taken greedily.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from nova_hpc.placement.model import DeviceSet, HostNode, Nvlink, Policy, Request
from nova_hpc.placement.solver import estimate
from nova_hpc.placement.solver.build import Built, build
from nova_hpc.placement.solver.cells import Seating, seatings
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import Key, Rank, Site, node_region
from nova_hpc.placement.solver.nvlink import selections
from nova_hpc.placement.solver.realise import Choice
from nova_hpc.placement.solver.solve import Solver
from nova_hpc.placement.solver.tables import Domain, Stage, choices, regions, wide_units

#: Choices of NVLink sets that are tried.
MAX_TRIES = 32


def stages(request: Request) -> list[Stage]:
    """The ways to place the groups, tightest first; the request allows all.

    A guest cell counts as a member of its groups: they are on one switch,
    root or NUMA node only if that is on the cell's own node.
    """
    if request.cells:
        ladder = [Stage(rank, Rank.NUMA) for rank in list(Rank)[: Rank.NUMA + 1]]
        if not request.on_cells:
            ladder += [Stage(Rank.SOCKET, Rank.SOCKET), Stage(Rank.HOST, Rank.HOST)]
    else:
        ladder = [Stage(rank, Rank.HOST) for rank in Rank]
    if request.policy is Policy.REQUIRED:
        ladder = [stage for stage in ladder if stage.rank <= Rank.of(request.level)]
    return ladder


@attrs.frozen
class _Plan:
    """Groups in numbers: where, before devices are named."""

    stage: Stage
    seating: Seating
    trees: dict[Key, Domain]

    def leaves(self) -> Iterator[tuple[Key, Domain, int]]:
        for region, groups in sorted(self.seating.shares.items()):
            if groups:
                for leaf, share in self.trees[region].leaves(groups):
                    yield region, leaf, share


@attrs.frozen
class _Placed:
    """One finished group."""

    built: Built
    cell: int | None
    rank: Rank  # of its devices and its cell


def solve(solver: Solver, limit: int) -> list[DeviceSet]:
    """The best sets that are found, best first; [] if none is."""
    problem, links = solver.problem, solver.links
    found = []
    if problem.request.nvlink is not Nvlink.NONE:
        sets = itertools.islice(selections(links.sets, problem.demand.groups), MAX_TRIES)
        for chosen in sets:
            held = {item.id for members in chosen for item in members}
            found += _sets(solver, _only(problem.site, links.names, held), limit)
        # Devices of several sets may have been mixed in one group.
        found = [one for one in found if not one.score[1]]
    if problem.request.nvlink is not Nvlink.REQUIRED:
        found += _sets(solver, problem.site, limit)
    return merge([], found, limit)


def merge(some: Sequence[DeviceSet], more: Sequence[DeviceSet], limit: int) -> list[DeviceSet]:
    """The best of both, each once."""
    unique = {str((one.picks, one.cells)): one for one in (*more, *some)}
    ranked = sorted(unique.values(), key=lambda one: (one.score, str(one.picks)))
    return ranked[:limit]


def _only(site: Site, names: Sequence[int], held: set[str]) -> Site:
    """The host without the NVLink devices outside the chosen sets."""
    mask = sum(1 << i for i in names)
    items = tuple(item for item in site.items if not item.kind & mask or item.id in held)
    kept = {item.id for item in items}
    units = tuple(unit for unit in site.units if all(item.id in kept for item in unit.items))
    whole = {unit.name for unit in units}
    items = tuple(item for item in items if item.unit is None or item.unit in whole)
    return attrs.evolve(site, items=items, units=units)


def _sets(solver: Solver, site: Site, limit: int) -> list[DeviceSet]:
    problem = solver.problem
    planner = _Planner(problem.request, problem.demand, site)
    return [
        solver.finish(
            Choice(
                tuple((group.built, group.cell) for group in planner.realise(plan)),
                dict(plan.seating.nodes),
            )
        )
        for plan in planner.plans(limit)
    ]


class _Planner:
    """One request on one host."""

    def __init__(self, request: Request, demand: Demand, site: Site) -> None:
        self.request = request
        self.demand = demand
        self.site = site
        self.counted = estimate.countable(demand, site.items)
        self.nodes = {node.id: node for node in site.nodes}

    def plans(self, limit: int) -> list[_Plan]:
        """The cheapest plans of the tightest stage that has any."""
        for stage in stages(self.request):
            plans = self._plans(stage, limit)
            if plans:
                return plans
        return []

    def _plans(self, stage: Stage, limit: int) -> list[_Plan]:
        """The cheapest *limit* plans of one stage."""
        wide, never = wide_units(self.demand, self.site, stage)
        closed = never | {unit.name for unit in wide}
        plans: list[_Plan] = []
        for chosen in choices(self.demand, wide):
            trees = regions(
                self.demand, self.site, stage, self.counted, frozenset(), chosen, closed
            )
            for seating in seatings(
                self.request.cells,
                self.site.nodes,
                stage.region,
                {key: tree.table for key, tree in trees.items()},
                self.demand.groups,
                limit,
                self._appeal if stage.region > Rank.NUMA else _indifferent,
            ):
                plans.append(_Plan(stage, seating, trees))
        plans.sort(key=lambda plan: plan.seating.cost)
        return plans[:limit]

    def _appeal(self, node: HostNode) -> int:
        """Cells go where the devices are, even where they do not have to."""
        where = node_region(node, Rank.NUMA)
        return -sum(item.free for item in self.site.items if item.region(Rank.NUMA) == where)

    def realise(self, plan: _Plan) -> list[_Placed]:
        """Name the devices of a plan and give each group its cell."""
        waiting: dict[Key, list[Built]] = {}
        for region, leaf, share in plan.leaves():
            waiting.setdefault(region, []).extend(
                build(
                    self.demand,
                    self.counted,
                    leaf.items,
                    [*leaf.units[share], *leaf.forced],
                    share,
                    plan.stage.rank,
                )
            )
        placed: list[_Placed] = []
        for region, groups in waiting.items():
            placed.extend(self._seat(plan, region, groups))
        return sorted(
            placed,
            key=lambda group: (
                -1 if group.cell is None else group.cell,
                [part.item.order for part in group.built],
            ),
        )

    def _seat(self, plan: _Plan, region: Key, groups: list[Built]) -> list[_Placed]:
        """Give each group of a region one of the region's cells."""
        if not self.request.cells:
            return [_Placed(built, None, _rank(built, None)) for built in groups]
        room = {
            cell: plan.seating.groups[cell]
            for cell, node in plan.seating.nodes.items()
            if node_region(self.nodes[node], plan.stage.region) == region
        }
        pairs = sorted(
            (_rank(built, self.nodes[plan.seating.nodes[cell]]), index, cell)
            for index, built in enumerate(groups)
            for cell in room
        )
        placed: dict[int, _Placed] = {}
        for rank, index, cell in pairs:
            if index not in placed and room[cell]:
                room[cell] -= 1
                placed[index] = _Placed(groups[index], cell, rank)
        return list(placed.values())


def _indifferent(node: HostNode) -> int:
    return 0


def _rank(built: Built, node: HostNode | None) -> Rank:
    """The rank that the devices of a group, and its cell, have in common."""
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
