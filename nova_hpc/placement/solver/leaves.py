"""Tables of the alike devices and the units in one leaf of the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nova_hpc.placement.solver.budget import Budget
from nova_hpc.placement.solver.classes import Many
from nova_hpc.placement.solver.problem import Layout, Problem

#: State -> least cost.
Costs = dict[int, int]


class Leaves:
    """Counts of devices as states; the same for all leaves of a search."""

    def __init__(
        self,
        problem: Problem,
        layout: Layout,
        crowd: int,
        budget: Budget,
        merge: Callable[[Costs, Costs], Costs],
    ) -> None:
        self.problem = problem
        self.layout = layout
        self.budget = budget
        self._crowd = crowd  # cost of a device that is alone on its adapter
        self._merge = merge
        self._parts: dict[tuple[object, ...], list[Costs]] = {}
        self._alikes: dict[Many, Costs] = {}

    def avail(self, signature: tuple[object, ...]) -> list[int]:
        """Devices that may be taken, for each name."""
        avail = [0] * len(self.problem.demand.names)
        many: tuple[Many, ...] = signature[1]  # type: ignore[assignment]
        for kind, free, _, count, _ in many:
            for index in range(len(avail)):
                if kind >> index & 1:
                    avail[index] += free * count
        return avail

    def part(self, signature: tuple[object, ...]) -> list[Costs]:
        """The tables of a part, after each sort of devices in it."""
        known = self._parts.get(signature)
        if known is None:
            many: tuple[Many, ...] = signature[1]  # type: ignore[assignment]
            known = [{0: 0}]
            for one in many:
                known.append(self._merge(known[-1], self.alike(one)))
            if signature[0]:  # a unit: all of it, or nothing
                known[-1] = {**known[-1], 0: 0}
            self._parts[signature] = known
        return known

    def alike(self, many: Many) -> Costs:
        """The table of alike devices."""
        known = self._alikes.get(many)
        if known is None:
            known = self._alikes[many] = self._alike(many)
        return known

    def _alike(self, many: Many) -> Costs:
        kind, free, label, count, forced = many
        lay = self.layout
        names = [i for i in range(len(lay.names)) if kind >> i & 1]
        track = 0
        if label in self.problem.tracked:
            track = lay.tracked[self.problem.tracked.index(label)]
        total = free * count
        most = min(total, sum(lay.totals[i] for i in names))
        out: Costs = {}
        for taken in range(total if forced else 0, most + 1):
            each, more = divmod(taken, count)
            crowd = (count - more) * each * each + more * (each + 1) * (each + 1)
            for split in _splits(taken, [lay.totals[i] for i in names]):
                self.budget.spend(40)
                state = taken * track + sum(
                    n * lay.names[i] for n, i in zip(split, names, strict=True)
                )
                out[state] = crowd * self._crowd
        return out


def _splits(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write *total* as a sum of numbers within these limits."""
    if not limits:
        if not total:
            yield ()
        return
    if len(limits) == 1:
        if total <= limits[0]:
            yield (total,)
        return
    for one in range(min(total, limits[0]), -1, -1):
        for rest in _splits(total - one, limits[1:]):
            yield (one, *rest)
