# SPDX-License-Identifier: Apache-2.0
"""The exact search: a dynamic program over the tree of domains.

The table of a class maps each state (see problem.Layout) to the least cost of
reaching it inside one such subtree. Tables of siblings are merged, then groups
are closed: a group whose devices are together in a domain of rank r costs r.
Nothing here enumerates combinations of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from nova_hpc.placement.solver.classes import DomainClass, DomainNode, Forest
from nova_hpc.placement.solver.costs import Charges, Costs, Leaves, StepBudget
from nova_hpc.placement.solver.domains import Rank
from nova_hpc.placement.solver.problem import Layout, SearchProblem


@attrs.frozen
class SearchStep:
    """How the search reached a state: the state before it, and the groups that were closed.

    A group is closed when all its devices are chosen.
    """

    before: int
    groups: int = 0
    hits: int = 0
    #: in the pass of the seats: sort of the cell, and whether it has one more
    sort: int = -1
    more: int = 0


@attrs.frozen(eq=False)
class TablePass:
    """One pass of the search over a cost table, with the step that led to each state."""

    name: str  # local, waiting, seat, bind, joined
    back: dict[int, SearchStep]


@attrs.frozen(eq=False)
class ClassTable:
    """The cost table of a domain class, and the steps that lead to each state."""

    prefixes: list[Costs]  # after so many children or parts
    passes: list[TablePass]
    final: Costs


class ExactSearch:
    """Dynamic programming over one device tree, for all levels.

    It computes one table per domain class, from the switches up to the host, and finds the cheapest
    choice.
    """

    def __init__(
        self,
        problem: SearchProblem,
        forest: Forest,
        root: DomainNode,
        hits: int,
        nvlink: Sequence[int],
        budget: StepBudget,
    ) -> None:
        self.problem = problem
        self.classes = forest.classes
        self.root = root
        self.layout = Layout(problem, hits, nvlink)
        self.nvlink = frozenset(nvlink)
        self.hits = hits
        self.budget = budget
        self._tables: dict[tuple[int, int, int], ClassTable] = {}
        self.charges = Charges(problem, self.layout)
        self.leaves = Leaves(problem, self.layout, self.charges, budget, self._merge)

    def solve(self, reach: Rank, bind: Rank) -> tuple[int, int] | None:
        """Return the least cost and its final state, if all groups can be closed within *reach*.

        None if they cannot.

        :param reach: widest rank of a domain that contains the devices of a group
        :param bind: widest rank of a domain that contains a group and its guest cell
        """
        lay = self.layout
        table = self.table(self.root.cls, reach, bind).final
        # The final state: all groups are closed, all their devices are taken, all cells are
        # seated. The counts of tracked labels and caps may have any value.
        want = lay.closed * (self.problem.demand.groups - self.hits) + lay.hit * self.hits
        want += sum(n * unit for n, unit in zip(lay.totals, lay.names, strict=True))
        want += sum(
            len(sort.ids) * unit for sort, unit in zip(self.problem.sorts, lay.seats, strict=True)
        )
        cells = len(self.problem.request.cells)
        want += lay.more * (self.problem.demand.groups % cells if cells else 0)
        fixed = ~(lay.taken_mask & ~lay.name_mask | lay.cap_mask)
        solutions = [(cost, state) for state, cost in table.items() if state & fixed == want]
        return min(solutions, default=None)

    def table(self, cls: DomainClass, reach: Rank, bind: Rank) -> ClassTable:
        """Return the cost table of a domain class for one pair of *reach* and *bind*; cached."""
        # Below its reach, all stages have the same table.
        key = (cls.number, reach if reach <= cls.rank else 99, bind)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._make(cls, reach, bind)
        return table

    def _make(self, cls: DomainClass, reach: Rank, bind: Rank) -> ClassTable:
        """Compute the table of a class.

        First the tables of its parts or children are merged one by one. Then the passes close
        groups and seat cells. Last, impossible states are dropped and the domain's own cost is
        added. The tables between the steps are kept, so that a solution can be traced back.
        """
        if cls.rank is Rank.PIX:
            tables = [self.leaves.either(signature) for signature in cls.parts]
            avails: list[Sequence[int]] = [self.leaves.avail(signature) for signature in cls.parts]
        else:
            below = [self.classes[number] for number in cls.children]
            tables = [self.table(child, reach, bind).final for child in below]
            avails = [child.avail for child in below]
        prefixes: list[Costs] = [{0: 0}]
        have = [0] * len(cls.avail)
        for table, avail in zip(tables, avails, strict=True):
            have = [had + added for had, added in zip(have, avail, strict=True)]
            prefixes.append(self._needed(self._merge(prefixes[-1], table), have))
        passes: list[TablePass] = []
        costs = prefixes[-1]
        for name, price in self._passes(cls, reach, bind):
            self.budget.spend(4 * len(costs))
            if name == "bind":
                costs, back = self._bind(costs, price)
            elif name == "seat":
                costs, back = self._seat(cls, costs, bind)
            else:
                costs, back = self._close(cls, costs, name, price)
            passes.append(TablePass(name, back))
        self.budget.spend(4 * len(costs))
        costs = self._complete(cls, costs, reach, bind)
        return ClassTable(prefixes, passes, self.charges.add(cls, costs))

    def _passes(self, cls: DomainClass, reach: Rank, bind: Rank) -> Iterator[tuple[str, int]]:
        """The passes for a class, each with the price of one group.

        A group costs the rank of the smallest domain that contains it. A guest cell on its NUMA
        node adds nothing; with any other cell it costs the domain of both.

        local
            A group closes here. With guest cells it gets the cell of this NUMA node.
        waiting
            A group closes here, but its cell may be on another node. It is paid when it is bound.
        seat
            The NUMA node may take one guest cell.
        joined
            A group whose devices are on several nodes closes here, and gets a cell below.
        bind
            A waiting group gets a cell below.
        """
        rank = cls.rank
        near = not cls.alone or self.problem.demand.size == 1
        price = rank * self.charges.spread
        if not self.problem.sorts:
            if near and rank <= reach:
                yield "local", price
            return
        if rank <= Rank.NUMA:
            if near and rank <= reach and cls.on_node:
                yield "local", price
            if near and rank == reach and bind > Rank.NUMA:
                yield "waiting", 0
            if rank is Rank.NUMA and cls.on_node:
                yield "seat", 0
        elif rank <= bind:
            if rank <= reach:
                yield "joined", price
            if reach < Rank.SOCKET:
                yield "bind", price

    def _merge(self, left: Costs, right: Costs) -> Costs:
        """Compute the least cost of each sum of a left and a right state (min-plus convolution).

        A sum in which a field exceeds its maximum is dropped (see :class:`Layout`).
        """
        self.budget.spend(len(left) * len(right))
        if len(left) == 1 and 0 in left and not left[0]:
            return right
        if len(right) == 1 and 0 in right and not right[0]:
            return left
        offset, guard = self.layout.offset, self.layout.guard
        out: Costs = {}
        get = out.get
        pairs = list(right.items())
        for first, cost in left.items():
            shifted = first + offset
            for second, more in pairs:
                if (shifted + second) & guard:
                    continue
                state, total = first + second, cost + more
                old = get(state)
                if old is None or total < old:
                    out[state] = total
        return out

    def _needed(self, costs: Costs, have: Sequence[int]) -> Costs:
        """Drop states that took too few devices in this domain for the other domains to make up."""
        lay = self.layout
        low = 0
        for total, all_, had, unit in zip(
            lay.totals, self.root.cls.avail, have, lay.names, strict=True
        ):
            missing = total - (all_ - had)
            if missing > 0:
                low += min(missing, total) * unit
        if not low:
            return costs
        mask, borrow = lay.name_mask, lay.borrow
        return {
            state: cost
            for state, cost in costs.items()
            if ((state & mask | borrow) - low) & borrow == borrow
        }

    def _close(
        self, cls: DomainClass, costs: Costs, name: str, price: int
    ) -> tuple[Costs, dict[int, SearchStep]]:
        """Close any number of groups from the loose devices.

        Loose devices are taken, but belong to no closed group. Each new group subtracts its
        devices from them, and each new hit its devices that are not in the NVLink set. The top
        bits in *borrow* show whether a subtraction was possible for every name.
        """
        lay = self.layout
        most = self.problem.demand.groups - self.hits
        mask, borrow, need, rest = lay.name_mask, lay.borrow, lay.need, lay.rest
        extra = lay.waiting if name == "waiting" else 0
        joined = name == "joined"
        sets = min(cls.sets, self.hits)
        after, back = dict(costs), dict[int, SearchStep]()
        get = after.get
        for state, cost in costs.items():
            groups, hits = lay.groups(state), lay.hits(state)
            hungry = lay.hungry(state) if joined else self.problem.demand.groups
            loose = (state & mask | borrow) - groups * need - hits * rest
            for more in range(sets - hits + 1):
                left = loose - more * rest
                if left & borrow != borrow or more > hungry:
                    break
                step = 0
                while True:
                    if step or more:
                        new = state + step * (lay.closed + extra) + more * (lay.hit + extra)
                        total = cost + (step + more) * price
                        old = get(new)
                        if old is None or total < old:
                            after[new] = total
                            back[new] = SearchStep(state, step, more)
                    step += 1
                    if groups + step > most or step + more > hungry:
                        break
                    left -= need
                    if left & borrow != borrow:
                        break
        if extra:
            after = {state: cost for state, cost in after.items() if self._fits(state)}
        return after, back

    def _fits(self, state: int) -> bool:
        return not (state + self.layout.offset) & self.layout.guard

    def _bind(self, costs: Costs, price: int) -> tuple[Costs, dict[int, SearchStep]]:
        """Give waiting groups to guest cells without one; return the costs and the steps back."""
        lay = self.layout
        after, back = dict(costs), dict[int, SearchStep]()
        for state, cost in costs.items():
            for count in range(1, min(lay.waits(state), lay.hungry(state)) + 1):
                new, total = state - count * lay.waiting, cost + count * price
                if total < after.get(new, total + 1):
                    after[new] = total
                    back[new] = SearchStep(state, count)
        return after, back

    def _seat(
        self, cls: DomainClass, costs: Costs, bind: Rank
    ) -> tuple[Costs, dict[int, SearchStep]]:
        """Put at most one guest cell on the node; its groups have to fit it.

        A cell gets the base number of groups, or one more if the groups do not divide evenly.
        Without binding across nodes its groups must all be local to it.
        """
        lay = self.layout
        extra = self.problem.demand.groups % len(self.problem.request.cells)
        after, back = dict[int, int](), dict[int, SearchStep]()
        # A cell whose place makes no other difference goes near devices.
        appeal = max(self.charges.most - sum(cls.avail), 0) if bind > Rank.NUMA else 0
        for state, cost in costs.items():
            local = lay.groups(state) + lay.hits(state) - lay.waits(state)
            if not local and cost < after.get(state, cost + 1):
                after[state] = cost
                back.pop(state, None)
            for sort, suits in enumerate(cls.suits):
                if not suits:
                    continue
                for more in (0, 1) if extra else (0,):
                    quota = lay.base + more
                    if local > quota or (bind <= Rank.NUMA and local < quota):
                        continue
                    new = state + lay.seats[sort] + more * lay.more
                    total = cost + appeal
                    if total < after.get(new, total + 1):
                        after[new] = total
                        back[new] = SearchStep(state, sort=sort, more=more)
        return after, back

    def _complete(self, cls: DomainClass, costs: Costs, reach: Rank, bind: Rank) -> Costs:
        """Drop states with loose devices that cannot be closed further up.

        From the reach on, every taken device must be in a closed group. From the widest rank for
        binding on, no group may wait and no cell may lack groups.
        """
        lay = self.layout
        if cls.rank >= reach:
            mask, need, rest, sets = lay.name_mask, lay.need, lay.rest, cls.sets
            costs = {
                state: cost
                for state, cost in costs.items()
                if lay.hits(state) == sets
                and state & mask == lay.groups(state) * need + sets * rest
            }
        if self.problem.sorts and cls.rank >= bind and cls.rank >= Rank.SOCKET:
            costs = {
                state: cost
                for state, cost in costs.items()
                if not lay.waits(state) and not lay.hungry(state)
            }
        return costs
