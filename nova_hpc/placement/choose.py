"""Choose the best device sets of one host for one request.

Pure and deterministic: the same input gives the same answer, in whatever
order the pools come. Exact for the level that every group reaches, for the
balance over the guest's cells and for whole IOMMU units; within those it takes
the tightest paths and then the least damage. The contributor documentation
("How devices are chosen") states the objective in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from nova_hpc.placement import damage, reasons
from nova_hpc.placement import profile as profiles
from nova_hpc.placement.build import Built, build
from nova_hpc.placement.cells import Seating, seatings
from nova_hpc.placement.demand import Demand
from nova_hpc.placement.domains import ALONE, Item, Key, Rank, Site, node_region, survey
from nova_hpc.placement.model import Answer, DeviceSet, Host, HostNode, Pick, Policy, Request
from nova_hpc.placement.profile import Profile
from nova_hpc.placement.tables import Domain, Stage, choices, regions, wide_units
from nova_hpc.topology.level import Distance, distance


def choose(
    request: Request, host: Host, limit: int = 1, profile: Profile = profiles.DEFAULT
) -> Answer:
    """The best device sets of *host* for *request*, or why there is none.

    :param limit: at most so many sets. Each is on other NUMA nodes or in
        other domains than the ones before: choosing another of two alike
        devices is no alternative. Sets on other nodes come first, in the
        order of their scores, and then sets in other domains of those nodes.
    :param profile: what later servers look like, the yardstick of damage
    :raises ValueError: the request contradicts itself (see Demand.of).
    """
    del profile
    demand = Demand.of(request)
    site = survey(demand, host)
    solver = _Solver(request, demand, site)
    found = solver.solve(max(limit, 1))
    if not found:
        return Answer(miss=reasons.miss(request, demand, site))
    return Answer(sets=tuple(found))


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


class _Solver:
    """One request on one host."""

    def __init__(self, request: Request, demand: Demand, site: Site) -> None:
        self.request = request
        self.demand = demand
        self.site = site
        self.counted = damage.countable(demand, site.items)
        self.nodes = {node.id: node for node in site.nodes}

    def solve(self, limit: int) -> list[DeviceSet]:
        found: dict[object, DeviceSet] = {}
        first: _Plan | None = None
        before: object = None
        for stage in stages(self.request):
            # Domains nest, so as many of them are the same ones.
            keys = {item.keys[stage.rank] for item in self.site.items}
            domains = (stage.region, len(keys), sum(key[0] == ALONE for key in keys))
            if domains == before:
                continue
            before = domains
            for plan in self._plans(stage, limit):
                first = first or plan
                self._add(found, plan)
            if len(found) >= limit:
                break
        if first is not None and len(found) < limit:
            # The same mapping of cells, but without one of its domains.
            for _, leaf, _ in list(first.leaves()):
                for plan in self._plans(first.stage, 1, frozenset({leaf.key})):
                    self._add(found, plan)
        ranked = sorted(
            found.values(),
            key=lambda one: (one.score, sorted(one.cells.items()), [p.pool for p in one.picks]),
        )
        # Other nodes first: what Nova still rejects, it rejects for a node.
        seen: list[object] = []
        again: list[bool] = []
        for one in ranked:
            again.append(one.cells in seen)
            seen.append(one.cells)
        ranked = [one for _, one in sorted(zip(again, ranked, strict=True), key=lambda p: p[0])]
        return ranked[:limit]

    def _add(self, found: dict[object, DeviceSet], plan: _Plan) -> None:
        groups = self._realise(plan)
        signature = (
            tuple(sorted(plan.seating.nodes.items())),
            tuple(
                sorted(
                    (group.cell if group.cell is not None else -1, part.index, _place(part.item))
                    for group in groups
                    for part in group.built
                )
            ),
        )
        if signature not in found:
            found[signature] = self._set(plan, groups)

    def _plans(self, stage: Stage, limit: int, banned: frozenset[Key] = frozenset()) -> list[_Plan]:
        """The cheapest *limit* plans of one stage."""
        wide, never = wide_units(self.demand, self.site, stage)
        closed = never | {unit.name for unit in wide}
        plans: list[_Plan] = []
        for chosen in choices(self.demand, wide):
            trees = regions(self.demand, self.site, stage, self.counted, banned, chosen, closed)
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

    def _realise(self, plan: _Plan) -> list[_Placed]:
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

    def _set(self, plan: _Plan, groups: list[_Placed]) -> DeviceSet:
        used: dict[str, int] = {}
        picks: list[Pick] = []
        for number, group in enumerate(groups):
            # Wants of one name are alike; each group has its own share of them.
            keys: dict[int, list[str]] = {}
            for key, count in sorted(self.request.groups[number].counts.items()):
                index = next(i for i, own in enumerate(self.demand.keys) if key in own)
                keys.setdefault(index, []).extend([key] * count)
            for part in sorted(group.built, key=lambda p: (p.index, p.item.order)):
                used[part.item.id] = used.get(part.item.id, 0) + 1
                picks.append(Pick(keys[part.index].pop(0), part.item.id, number, group.cell))
        rank = max(group.rank for group in groups)
        far = max(_distance(group.built) for group in groups)
        spread = sum(group.rank for group in groups)
        lost, left, spare = damage.done(self.demand, self.counted, self.site.items, used)
        return DeviceSet(
            picks=tuple(picks),
            level=rank.level,
            distance=far,
            cells=dict(sorted(plan.seating.nodes.items())),
            score=(int(rank.level), int(far), spread, lost, left, spare),
            reason=reasons.chosen(self.request, self.demand, self.site, rank.level, far),
        )


def _indifferent(node: HostNode) -> int:
    return 0


def _place(item: Item) -> Key:
    """Devices of one kind with equal places are alternatives to nobody."""
    return item.keys[item.rank_to(item)]


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


def _distance(built: Built) -> Distance:
    places = [part.item.location for part in built]
    return max(
        (
            distance(one, other)
            for number, one in enumerate(places)
            for other in places[number + 1 :]
        ),
        default=Distance.PIX,
    )
