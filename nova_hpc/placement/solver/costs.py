# SPDX-License-Identifier: Apache-2.0
"""The exact search's spending: steps, and the costs of devices.

Costs are packed into one integer. From the left: spread, damage, groups lost,
devices left over, crowding, aliases, appeal. All but the spread are sums over domains.
Costs that depend only on the devices taken from a domain are added by
:class:`Charges`, once the domain's states are complete. :class:`Leaves` has the
tables of alike devices, where the merging begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from nova_hpc.placement.profile import Limits
from nova_hpc.placement.solver.classes import DomainClass, Many
from nova_hpc.placement.solver.domains import TIDY, Rank
from nova_hpc.placement.solver.problem import Layout, SearchProblem
from nova_hpc_common.level import Level

#: Maximum of steps in the exact search of one call of choose_device_sets(), a fraction of a
#: second: pairs of states that are merged, and states that are visited.
#: Servers of a few GPUs and virtual functions need some thousand.
MAX_WORK: Final = 1_500_000


#: Maximum of steps in all searches of one pass over hosts, some seconds. A host
#: with sixteen GPUs and 256 virtual functions takes some ten thousand.
PASS_WORK: Final = 6_000_000
#: Replaces MAX_WORK once they are used up: it is enough to find a set at all.
SPARE_WORK: Final = 50_000


class TooMuchError(Exception):
    """The exact search would take more steps than its limit; the greedy search is used instead."""


class StepBudget:
    """The steps that a search may still take. Steps give the same limit on fast and slow
    machines.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = MAX_WORK if most is None else most
        self.left = self.most

    @property
    def spent(self) -> int:
        """The number of steps taken so far, at most the limit."""
        return self.most - max(self.left, 0)

    def spend(self, steps: int) -> None:
        """Subtract *steps* of the exact search from its budget.

        :raises TooMuchError: the budget is used up.
        """
        self.left -= steps
        if self.left < 0:
            raise TooMuchError


class PassWork:
    """The steps that the searches of one scheduling request over all hosts may still take together.

    If it is used up, device sets are chosen without the damage term. The level, the distance
    and the spread are as good as ever, but the damage to later servers is ignored. So one
    request on many unlike hosts takes bounded time, whatever their devices.
    """

    def __init__(self, most: int | None = None) -> None:
        self.left = PASS_WORK if most is None else most
        #: Hosts that were searched without damage.
        self.unmeasured = 0

    @property
    def used_up(self) -> bool:
        """Whether the steps are used up, so that damage is no longer measured."""
        return self.left <= 0


#: State -> least cost.
Costs = dict[int, int]


class Leaves:
    """Cost tables of the devices in the leaves of the tree (the devices below one switch).

    A table contains, for each packed count of taken devices, the least cost. All leaves of a search
    share the tables.
    """

    def __init__(
        self,
        problem: SearchProblem,
        layout: Layout,
        charges: Charges,
        budget: StepBudget,
        merge: Callable[[Costs, Costs], Costs],
    ) -> None:
        self.problem = problem
        self.layout = layout
        self.budget = budget
        self._crowd = charges.crowd  # cost of a device that is alone on its adapter
        self._aliases = charges.aliases
        self._merge = merge
        self._parts: dict[tuple[object, ...], list[Costs]] = {}
        self._eithers: dict[tuple[object, ...], Costs] = {}
        self._alikes: dict[Many, Costs] = {}

    def avail(self, signature: tuple[object, ...]) -> list[int]:
        """Count the available devices for each alias, among devices with *signature*."""
        avail = [0] * len(self.problem.demand.names)
        many: tuple[Many, ...] = signature[1]  # type: ignore[assignment]
        for kind, free, _, count, *_ in many:
            for index in range(len(avail)):
                if kind >> index & 1:
                    avail[index] += free * count
        instead: tuple[object, ...] | None = signature[2]  # type: ignore[assignment]
        if instead is not None:
            avail = [
                own + alternative
                for own, alternative in zip(avail, self.avail(instead), strict=True)
            ]
        return avail

    def either(self, signature: tuple[object, ...]) -> Costs:
        """Return the cost table of a part, merged with the table of its alternative.

        A part is a set of interchangeable devices, named by its signature.

        :returns: state (devices taken, packed in one number) -> lowest cost.
        """
        own = self.part(signature)[-1]
        instead: tuple[object, ...] | None = signature[2]  # type: ignore[assignment]
        if instead is None:
            return own
        both = self._eithers.get(signature)
        if both is None:
            both = dict(own)
            for state, cost in self.either(instead).items():
                both[state] = min(cost, both.get(state, cost))
            self._eithers[signature] = both
        return both

    def part(self, signature: tuple[object, ...]) -> list[Costs]:
        """Return the cost tables of a part: after its first sort, its second, and so on."""
        tables = self._parts.get(signature)
        if tables is None:
            many: tuple[Many, ...] = signature[1]  # type: ignore[assignment]
            tables = [{0: 0}]
            for sort in many:
                tables.append(self._merge(tables[-1], self.alike(sort)))
            if signature[0]:  # a unit: all of it, or nothing
                tables[-1] = {**tables[-1], 0: 0}
            self._parts[signature] = tables
        return tables

    def alike(self, many: Many) -> Costs:
        """Return the cost table of interchangeable devices, cached: state -> lowest cost."""
        table = self._alikes.get(many)
        if table is None:
            table = self._alikes[many] = self._alike(many)
        return table

    def _alike(self, many: Many) -> Costs:
        """Compute the cost of taking each number of these devices, for each split over their names.

        The devices are spread evenly over the adapters, which has the least crowding: the sum of
        the squared numbers of functions that each adapter gives. For example, four functions of two
        adapters cost 2² + 2² = 8, and not 4² = 16.
        """
        kind, free, label, count, forced, capped, aliases = many
        lay = self.layout
        names = [i for i in range(len(lay.names)) if kind >> i & 1]
        track = 0
        if label in self.problem.tracked:
            track = lay.tracked[self.problem.tracked.index(label)]
        caps = [cap for number, cap in enumerate(lay.caps) if capped >> number & 1]
        total = free * count
        most = min(total, sum(lay.totals[i] for i in names))
        out: Costs = {}
        for taken in range(total if forced else 0, most + 1):
            per_adapter, more = divmod(taken, count)
            crowd = (count - more) * per_adapter * per_adapter + more * (per_adapter + 1) * (
                per_adapter + 1
            )
            for split in _iterate_splits(taken, [lay.totals[i] for i in names]):
                self.budget.spend(40)
                held = 0
                for unit, limit, inside in caps:
                    taken_inside = sum(n for n, i in zip(split, names, strict=True) if i in inside)
                    if taken_inside > limit:
                        break
                    held += taken_inside * unit
                else:
                    state = (
                        held
                        + taken * track
                        + sum(n * lay.names[i] for n, i in zip(split, names, strict=True))
                    )
                    out[state] = crowd * self._crowd + taken * aliases * self._aliases
        return out


def _iterate_splits(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write *total* as a sum of one number for each of these limits."""
    if not limits:
        if not total:
            yield ()
        return
    if len(limits) == 1:
        if total <= limits[0]:
            yield (total,)
        return
    for share in range(min(total, limits[0]), -1, -1):
        for rest in _iterate_splits(total - share, limits[1:]):
            yield (share, *rest)


class Charges:
    """The cost of a choice, packed into one integer, and the damage of taking devices from a
    domain.

    The widths of the fields are the same for all outer choices of one problem. Each unit is a
    power of two above the maximum of everything to its right. So comparing two packed costs
    compares their fields from left to right.
    """

    def __init__(self, problem: SearchProblem, layout: Layout) -> None:
        self.problem = problem
        self.layout = layout
        taken = problem.demand.size * problem.demand.groups
        #: devices that the request could take
        self.most: Final = sum(item.free for item in problem.site.items)
        everything = self.most + sum(item.free for item in problem.site.rest)
        # A shape counts a device at most once at each level.
        worth = (len(Level) * problem.profile.worth * everything).bit_length()
        aliases = max((item.aliases for item in problem.site.items), default=0)
        self.aliases: Final = 1 << (self.most * (len(problem.request.cells) + 1)).bit_length()
        self.crowd: Final = self.aliases << (taken * aliases).bit_length()
        self.left: Final = self.crowd << (taken * taken).bit_length()
        self.groups: Final = self.left << (len(TIDY) * self.most).bit_length()
        self.damage: Final = self.groups << worth
        self.spread: Final = self.damage << worth

    def unpack(self, cost: int) -> tuple[int, int, int, int, int, int]:
        """Split a packed cost: spread, damage, groups lost, devices left over, crowding and
        aliases.
        """
        return (
            cost // self.spread,
            cost % self.spread // self.damage,
            cost % self.damage // self.groups,
            cost % self.groups // self.left,
            cost % self.left // self.crowd,
            cost % self.crowd // self.aliases,
        )

    def add(self, cls: DomainClass, costs: Costs) -> Costs:
        """Add the damage of taking devices from this domain to each cost of a table.

        It depends only on the taken devices and, at NUMA rank, on the seated cell. So it is
        computed once for all states that agree in these fields.
        """
        if not cls.real or cls.rank is Rank.PIX:
            return costs
        lay = self.layout
        mask = lay.taken_mask
        if cls.rank is Rank.NUMA and self.problem.profile.limited:
            mask |= lay.seat_mask
        memo: Costs = {}
        after: Costs = {}
        for state, cost in costs.items():
            key = state & mask
            extra = memo.get(key)
            if extra is None:
                extra = memo[key] = self._of(cls, state)
            after[state] = cost + extra
        return after

    def _of(self, cls: DomainClass, state: int) -> int:
        """Compute damage, lost groups and leftovers of a state in one domain, as one cost."""
        problem, lay = self.problem, self.layout
        gone = list(cls.held)
        tidy = cls.tidy[1]
        for index, count in enumerate(lay.taken(state)):
            label = problem.label_of[index]
            if label is not None and label >= 0 and label not in problem.tracked:
                gone[label] += count
            if index in problem.countable:
                tidy += count
        for label, count in zip(problem.tracked, lay.tracks(state), strict=True):
            gone[label] += count
        cost = 0
        profile = problem.profile
        if profile.shapes:
            level = cls.rank.level
            left = [
                free_count - gone_count
                for free_count, gone_count in zip(cls.free, gone, strict=True)
            ]
            open_before, open_after = problem.open
            lost = profile.usable(level, cls.free, open_before) - profile.usable(
                level, left, open_after
            )
            cost = lost * self.damage
            before, after = self._limits(cls, state)
            lost = profile.count(level, cls.free, before) - profile.count(level, left, after)
            cost += lost * self.groups
        if tidy and cls.rank in TIDY:
            cost += (cls.tidy[0] - tidy) * self.left
        return cost

    def _limits(self, cls: DomainClass, state: int) -> tuple[Limits | None, Limits | None]:
        """Return the limits that CPUs and pages set in this domain, before and after, if any."""
        problem, lay = self.problem, self.layout
        if not problem.profile.limited:
            return None, None
        if cls.rank is Rank.HOST:
            return problem.host_limits
        if cls.rank is not Rank.NUMA:
            return None, None
        seats = enumerate(zip(lay.seats_at, lay.seats_masks, strict=True))
        sort = next((number for number, (at, mask) in seats if state >> at & mask), None)
        return problem.limits(cls.node, None), problem.limits(cls.node, sort)
