# SPDX-License-Identifier: Apache-2.0
"""The search in the order of the objective: levels, NVLink sets, distances, cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from nova_hpc.placement.model import DeviceSet, Nvlink, Pick
from nova_hpc.placement.solver import operator_reasons
from nova_hpc.placement.solver.classes import (
    CLOSED,
    FORCED,
    HIT,
    DomainNode,
    Forest,
    smallest_domain_of,
)
from nova_hpc.placement.solver.costs import StepBudget
from nova_hpc.placement.solver.domains import ALONE, IommuUnit, Item, Key, Members, Rank
from nova_hpc.placement.solver.exact import ExactSearch
from nova_hpc.placement.solver.feasible import narrow_to_sets, tightest_rank_of
from nova_hpc.placement.solver.measure import DISTANCES, Measured, measure_choice
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.realise import GroupChoice, Realiser
from nova_hpc.placement.solver.spanning import (
    MAX_CHOICES,
    MAX_SELECTIONS,
    LinkedSets,
    iterate_set_choices,
    iterate_unit_choices,
)
from nova_hpc_common.level import AffinityPolicy, Level

#: Limits for the places of groups: widest rank of a group, and of a group with its cell.
Reach = tuple[Rank, Rank]


#: Steps of the search's budget for each device of a tree that is grown.
GROW: Final = 60

Thing = TypeVar("Thing")


@attrs.frozen
class Bans:
    """Host nodes and devices that the search for an alternative set must not use."""

    nodes: frozenset[int] = frozenset()
    items: frozenset[str] = frozenset()


NOTHING: Final = Bans()


@attrs.frozen(eq=False)
class _SearchSolution:
    """The cheapest final state of a search, with the search that found it."""

    cost: int
    state: int
    search: ExactSearch
    sets: tuple[Sequence[Item], ...]
    stage: Reach


class Solver:
    """Finds the best device set of one request on one host.

    :param most: steps that its searches may take; MAX_WORK if None.
    """

    def __init__(self, problem: SearchProblem, links: LinkedSets, most: int | None = None) -> None:
        self.problem = problem
        self.links = links
        self.budget = StepBudget(most)
        self.forest = Forest(problem)
        self.local, self.wide = _split_units(problem)
        self._searches: dict[object, ExactSearch] = {}
        self._plain: DomainNode | None = None
        #: Whether some outer choices were skipped because there are too many. The set is
        #: valid then, but there may be a better one.
        self.truncated = False
        self._rooms: dict[Rank, int] = {}
        #: The tightest level that counts allow, once it is computed.
        self._floors: list[Level | None] = []
        #: Classes of the domains of the plain tree, for sketches.
        self._plain_classes: dict[tuple[Rank, Key], int] = {}

    def best(self, bans: Bans = NOTHING) -> DeviceSet | None:
        """Search the best device set of the host; None if there is none.

        Counts alone exclude most hosts that cannot hold the groups. Then the levels are searched,
        the tightest possible first; the first level with a solution is the best.

        :param bans: nodes and devices that it must not use.
        :raises TooMuchError: the exact search would exceed its bound
        """
        if self._room(Rank.HOST) < self.problem.demand.groups:
            return None
        floor = self._floor()
        if floor is None:
            return None
        for level in self.levels():
            if level < floor:
                continue
            solution = self._at(level, bans)
            if solution is not None:
                return self._name(level, solution)
        return None

    def _floor(self) -> Level | None:
        """Return the tightest level that counts allow; None if they allow none.

        It is needed only if choices of NVLink sets would be enumerated: every other search finds
        the level itself as quickly.
        """
        if self.problem.request.nvlink is Nvlink.NONE or not self.links.sets:
            return Level.SWITCH
        if not self._floors:
            problem, site = self.problem, self.problem.site
            if problem.request.nvlink is Nvlink.REQUIRED:
                held = {item.id for members in self.links.sets for item in members}
                site = narrow_to_sets(site, self.links.names, held)
            rank = tightest_rank_of(problem.request, problem.demand, site)
            self._floors.append(None if rank is None else rank.level)
        return self._floors[0]

    def plain(self) -> DomainNode:
        """Return the device tree of the host before an NVLink set or unit is chosen; cached."""
        if self._plain is None:
            self._plain = self.forest.grow({}, (), self.local)
        return self._plain

    def levels(self) -> list[Level]:
        """Return the levels of ``hpc:affinity`` that the request allows, tightest first."""
        request = self.problem.request
        last = request.level if request.policy is AffinityPolicy.REQUIRED else Level.HOST
        if request.cells and request.on_cells:
            last = min(last, Level.NUMA)
        return [level for level in Level if level <= last]

    def stages(self, level: Level) -> list[Reach]:
        """Return pairs of group and cell reach that satisfy *level*, shortest distance first."""
        rank = Rank.of(level)
        if level > Level.NUMA and self.problem.request.cells:
            # A group can be tight and still far from its cell.
            near = [Rank.PIX, Rank.SWITCH, Rank.ROOT, Rank.NUMA]
            return [(reach, rank) for reach in (*near, rank)]
        bind = Rank.NUMA if self.problem.request.cells else Rank.HOST
        if level is Level.SWITCH:
            return [(Rank.PIX, bind), (Rank.SWITCH, bind)]
        # The tighter stages failed before.
        return [(rank, bind)]

    def _at(self, level: Level, bans: Bans) -> _SearchSolution | None:
        """Search the best solution of *level*: most NVLink sets first, then the shortest distance.

        None if the level has none.
        """
        groups = self.problem.demand.groups
        stages = [stage for stage in self.stages(level) if self._room(stage[0]) >= groups]
        if not stages:
            return None
        nvlink = self.problem.request.nvlink
        most = groups if nvlink is not Nvlink.NONE else 0
        least = groups if nvlink is Nvlink.REQUIRED else 0
        for hits in range(most, least - 1, -1):
            searches = list(self._variants(hits, bans, stages[-1][0]))
            for stage in stages:
                solutions = []
                for number, (search, sets) in enumerate(searches):
                    got = search.solve(*stage)
                    if got is not None:
                        # The aliases of the chosen sets, which the trees do not contain.
                        cost = got[0] + _sum_of_aliases(sets) * search.charges.aliases
                        solutions.append((cost, number, _SearchSolution(*got, search, sets, stage)))
                if solutions:
                    return min(solutions, key=lambda entry: entry[:2])[2]
        return None

    def _variants(
        self, hits: int, bans: Bans, reach: Rank
    ) -> Iterator[tuple[ExactSearch, tuple[Sequence[Item], ...]]]:
        """Yield the searches for so many NVLink sets: one for each outer choice.

        An outer choice decides about NVLink sets and wide IOMMU units. Choices whose trees have the
        same class and the same aliases have the same solutions, so only the first is searched.

        :param hits: number of the NVLink sets.
        """
        seen = set()
        sketches = set()
        for sets in self._first(iterate_set_choices(self._sets(bans, reach), hits), MAX_SELECTIONS):
            held = {item.id for members in sets for item in members}
            touched = {item.unit for members in sets for item in members if item.unit}
            if sets and bans == NOTHING and not touched and not self.wide:
                self.budget.spend(GROW)
                sketch = self._sketch(sets)
                if sketch in sketches:
                    continue
                sketches.add(sketch)
            for units in self._first(
                iterate_unit_choices(self.problem.demand, self.wide), MAX_CHOICES - 1
            ):
                names = {unit.name for unit in units}
                if any(unit.name in touched and unit.name not in names for unit in self.wide):
                    continue
                marks = self._marks(held, names | touched, bans)
                if marks is None:
                    continue
                key = (
                    hits,
                    tuple(sorted(marks.items())),
                    bans.nodes,
                    tuple(map(_ids_of_items, sets)),
                )
                search = self._searches.get(key)
                if search is None:
                    self.budget.spend(GROW * len(self.problem.site.items))
                    root = self.forest.grow(marks, sets, self.local, bans.nodes)
                    search = ExactSearch(
                        self.problem, self.forest, root, hits, self._nvlink(hits), self.budget
                    )
                    self._searches[key] = search
                same = (search.root.cls.number, search.hits, _sum_of_aliases(sets))
                if same not in seen:
                    seen.add(same)
                    yield search, sets

    def _sketch(self, sets: Sequence[Sequence[Item]]) -> tuple[object, ...]:
        """Describe the devices of a choice of sets and their places, without names.

        The trees of two choices are alike if their sketches are equal, so they need not be grown. A
        sketch has, for each domain, its class in the plain tree, the devices taken in it, and how
        many sets lie in it and in no smaller one.
        """
        classes = self._classes_of_plain()
        homes: dict[tuple[int, Key], int] = {}
        below: dict[Key, list[tuple[object, ...]]] = {}
        above: dict[Key, Item] = {}
        for members in sets:
            at = smallest_domain_of(members)
            homes[at] = homes.get(at, 0) + 1
            for item in members:
                mark = (item.kind, item.free, self.problem.label[item.id], item.aliases)
                below.setdefault(item.keys[0], []).append(mark)
                above[item.keys[0]] = item
        sketch: tuple[object, ...] = ()
        for rank in Rank:
            upper: dict[Key, list[tuple[object, ...]]] = {}
            ups: dict[Key, Item] = {}
            for key, parts in below.items():
                parts.sort()
                sketch = (classes[rank, key], homes.get((rank, key), 0), tuple(parts))
                item = above[key]
                if rank is not Rank.HOST:
                    upper.setdefault(item.keys[rank + 1], []).append(sketch)
                    ups[item.keys[rank + 1]] = item
            below, above = upper, ups
        return sketch

    def _classes_of_plain(self) -> dict[tuple[Rank, Key], int]:
        if not self._plain_classes:
            waiting = [self.plain()]
            while waiting:
                node = waiting.pop()
                self._plain_classes[node.cls.rank, node.up[node.cls.rank]] = node.cls.number
                waiting += node.children
        return self._plain_classes

    def _first(self, things: Iterator[Thing], limit: int) -> Iterator[Thing]:
        """Yield the first *limit* things; set :attr:`truncated` if there are more."""
        for number, thing in enumerate(things):
            if number >= limit:
                self.truncated = True
                return
            yield thing

    def _room(self, rank: Rank) -> int:
        """Return the number of groups that fit in domains of *rank*, by counts alone; cached."""
        if rank not in self._rooms:
            demand = self.problem.demand
            domains: dict[Key, dict[int, int]] = {}
            for item in self.problem.site.items:
                caps = domains.setdefault(item.keys[rank], {})
                caps[item.kind] = caps.get(item.kind, 0) + item.free
            self._rooms[rank] = sum(
                demand.most(caps)
                for key, caps in domains.items()
                if key[0] != ALONE or demand.size == 1
            )
        return self._rooms[rank]

    def _nvlink(self, hits: int) -> tuple[int, ...]:
        return self.links.names if hits else ()

    def _sets(self, bans: Bans, reach: Rank) -> list[Sequence[Item]]:
        """Return NVLink sets that may be used, and that are not wider than a group."""
        return [
            members
            for members in self.links.sets
            if not any(item.id in bans.items for item in members)
            and all(members[0].rank_to(item) <= reach for item in members[1:])
        ]

    def _marks(self, held: set[str], units: set[str], bans: Bans) -> dict[str, int] | None:
        """Return device id -> its role in an outer choice; None if the choice contradicts the bans.

        Devices of the chosen sets are hits. The other devices of used units are forced. Banned
        devices, and the devices of unused wide units and of units with a banned device, are closed.
        """
        marks: dict[str, int] = {}
        if not (held or units or bans.items or self.wide):
            return marks
        wide = {unit.name for unit in self.wide}
        closed = {item.unit for item in self.problem.site.items if item.id in bans.items}
        if closed & units:
            return None
        for item in self.problem.site.items:
            if item.id in held:
                marks[item.id] = HIT
            elif item.unit is not None and item.unit in units:
                marks[item.id] = FORCED
            elif item.id in bans.items or (
                item.unit is not None and (item.unit in wide or item.unit in closed)
            ):
                marks[item.id] = CLOSED
        return marks

    def _name(self, level: Level, solution: _SearchSolution) -> DeviceSet:
        """Build the device set of a solution, with the score that the search found.

        The search does not see the devices of NVLink sets, so their crowding and their aliases are
        added here.
        """
        choice = Realiser(solution.search, solution.sets, *solution.stage).realise(solution.state)
        demand = self.problem.demand
        far = DISTANCES[solution.stage[0]]
        wanted = self.problem.request.nvlink is not Nvlink.NONE
        *costs, crowd, aliases = solution.search.charges.unpack(solution.cost)
        spare = sum(item.free for item in self.problem.site.items) - demand.size * demand.groups
        score = (
            int(level),
            demand.groups - solution.search.hits if wanted else 0,
            int(far),
            *costs,
            crowd + sum(len(members) for members in solution.sets),
            spare,
            aliases + _sum_of_aliases(solution.sets),
        )
        return self._device_set(
            _order_choice_groups(choice), choice.cells, Measured(level, far, score)
        )

    def finish(self, choice: GroupChoice) -> DeviceSet:
        """Build the device set of a choice of groups, and measure its level and score."""
        groups = _order_choice_groups(choice)
        measured = measure_choice(self.problem, self.links, groups, choice.cells)
        return self._device_set(groups, choice.cells, measured)

    def _device_set(
        self,
        groups: Sequence[tuple[Members, int | None]],
        cells: Mapping[int, int],
        measured: Measured,
    ) -> DeviceSet:
        """Build the device set of these groups: a pick for each device, with its group and cell."""
        problem = self.problem
        demand, request = problem.demand, problem.request
        index_of = {key: i for i, keys in enumerate(demand.keys) for key in keys}
        picks: list[Pick] = []
        for number, (built, cell) in enumerate(groups):
            # Wants of one name are alike; each group has its own share of them.
            keys: dict[int, list[str]] = {}
            for key, count in sorted(request.groups[number].counts.items()):
                keys.setdefault(index_of[key], []).extend([key] * count)
            for part in sorted(built, key=lambda part: (part.index, part.item.order)):
                picks.append(Pick(keys[part.index].pop(0), part.item.id, number, cell))
        return DeviceSet(
            picks=tuple(picks),
            level=measured.level,
            distance=measured.distance,
            cells=dict(sorted(cells.items())),
            score=measured.score,
            reason=operator_reasons.explain_chosen_set(
                request,
                demand,
                problem.site,
                self.links,
                measured.level,
                measured.distance,
                measured.score[1],
            ),
            measured=problem.profile.measured,
        )


def _order_choice_groups(choice: GroupChoice) -> list[tuple[Members, int | None]]:
    return sorted(
        choice.groups,
        key=lambda pair: (
            -1 if pair[1] is None else pair[1],
            sorted(part.item.order for part in pair[0]),
        ),
    )


def _sum_of_aliases(sets: Sequence[Sequence[Item]]) -> int:
    return sum(item.aliases for members in sets for item in members)


def _ids_of_items(items: Sequence[Item]) -> tuple[str, ...]:
    return tuple(item.id for item in items)


def _split_units(problem: SearchProblem) -> tuple[frozenset[str], tuple[IommuUnit, ...]]:
    """Return names of the IOMMU units inside one leaf domain, and the units that are wider."""
    local, wide = set(), []
    for unit in problem.site.units:
        if len({item.keys[0] for item in unit.items}) == 1:
            local.add(unit.name)
        else:
            wide.append(unit)
    return frozenset(local), tuple(wide)
