"""What the exact search pays for, packed into one integer.

From the left: spread, damage, groups lost, devices left over, crowding, appeal.
All but the spread are sums over domains; those that depend on nothing but what
is taken from a domain are added here, once the domain's states are complete.
"""

from __future__ import annotations

from typing import Final

from nova_hpc.placement.solver.classes import Class
from nova_hpc.placement.solver.damage import Limits
from nova_hpc.placement.solver.domains import Rank
from nova_hpc.placement.solver.leaves import Costs
from nova_hpc.placement.solver.problem import TIDY, Layout, Problem
from nova_hpc.topology.level import Level


class Charges:
    """The units of the packed cost, and what taking devices from a domain costs.

    The widths of the fields are the same for all outer choices of one problem.
    """

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self.problem = problem
        self.layout = layout
        taken = problem.demand.size * problem.demand.groups
        #: devices that the request could take
        self.most: Final = sum(item.free for item in problem.site.items)
        everything = self.most + sum(item.free for item in problem.site.rest)
        # A shape counts a device at most once at each level.
        worth = (len(Level) * problem.yardstick.worth * everything).bit_length()
        self.crowd: Final = 1 << (self.most * (len(problem.request.cells) + 1)).bit_length()
        self.left: Final = self.crowd << (taken * taken).bit_length()
        self.groups: Final = self.left << (len(TIDY) * self.most).bit_length()
        self.damage: Final = self.groups << worth
        self.spread: Final = self.damage << worth

    def unpack(self, cost: int) -> tuple[int, int, int, int, int]:
        """Spread, damage, groups lost, devices left over and crowding of a cost."""
        return (
            cost // self.spread,
            cost % self.spread // self.damage,
            cost % self.damage // self.groups,
            cost % self.groups // self.left,
            cost % self.left // self.crowd,
        )

    def add(self, cls: Class, costs: Costs) -> Costs:
        """Add what the devices taken from this domain are worth to others."""
        if not cls.real or cls.rank is Rank.PIX:
            return costs
        lay = self.layout
        mask = lay.taken_mask
        if cls.rank is Rank.NUMA and self.problem.yardstick.limited:
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

    def _of(self, cls: Class, state: int) -> int:
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
        yardstick = problem.yardstick
        if yardstick.measures:
            level = cls.rank.level
            left = [one - other for one, other in zip(cls.free, gone, strict=True)]
            now, then = problem.open
            lost = yardstick.usable(level, cls.free, now) - yardstick.usable(level, left, then)
            cost = lost * self.damage
            before, after = self._limits(cls, state)
            lost = yardstick.count(level, cls.free, before) - yardstick.count(level, left, after)
            cost += lost * self.groups
        if tidy and cls.rank in TIDY:
            cost += (cls.tidy[0] - tidy) * self.left
        return cost

    def _limits(self, cls: Class, state: int) -> tuple[Limits | None, Limits | None]:
        """What CPUs and pages allow in this domain, before and after."""
        problem, lay = self.problem, self.layout
        if not problem.yardstick.limited:
            return None, None
        if cls.rank is Rank.HOST:
            return problem.host_limits
        if cls.rank is not Rank.NUMA:
            return None, None
        seats = enumerate(zip(lay.seats_at, lay.seats_masks, strict=True))
        sort = next((number for number, (at, mask) in seats if state >> at & mask), None)
        return problem.limits(cls.node, None), problem.limits(cls.node, sort)
