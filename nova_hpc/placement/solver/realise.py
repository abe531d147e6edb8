# SPDX-License-Identifier: Apache-2.0
"""From the states of the exact search back to devices."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from nova_hpc.placement.solver.classes import Alike, DomainNode
from nova_hpc.placement.solver.costs import Costs
from nova_hpc.placement.solver.domains import GroupMember, Item, Members, Rank
from nova_hpc.placement.solver.exact import ExactSearch
from nova_hpc.placement.solver.spanning import assign_names_in_set


@attrs.define(eq=False)
class OpenSeat:
    """A guest cell on a host node that still needs *left* groups."""

    sort: int
    node: int
    left: int  # groups that it still lacks


@attrs.frozen(eq=False)
class GroupChoice:
    """The device groups of a solution, each with its guest cell, and the host node of each cell."""

    groups: tuple[tuple[Members, int | None], ...]  # devices, cell id
    cells: dict[int, int]  # cell id -> node


@attrs.define(eq=False)
class _Bag:
    """The devices, groups and guest cells that are collected on the way up through the domains."""

    loose: list[list[Item]]
    open: list[int] = attrs.field(factory=list)  # NVLink sets without their other devices
    waiting: list[Members] = attrs.field(factory=list)
    local: list[Members] = attrs.field(factory=list)
    done: list[tuple[Members, OpenSeat | None]] = attrs.field(factory=list)
    seats: list[OpenSeat] = attrs.field(factory=list)

    def add(self, below: _Bag) -> None:
        for own_items, more in zip(self.loose, below.loose, strict=True):
            own_items.extend(more)
        self.open += below.open
        self.waiting += below.waiting
        self.local += below.local
        self.done += below.done
        self.seats += below.seats


class Realiser:
    """Turns the packed state of a solution into named devices.

    It walks down the tree and undoes the steps of the search: each pass of a table, from the last
    to the first, then the merges of its children. On the way back up it repeats the passes with
    real devices.
    """

    def __init__(
        self, search: ExactSearch, sets: Sequence[Sequence[Item]], reach: Rank, bind: Rank
    ) -> None:
        self.search = search
        self.demand = search.problem.demand
        self.sets = sets
        self.reach = reach
        self.bind = bind

    def realise(self, state: int) -> GroupChoice:
        """Convert a final state of the search to named devices and guest cells."""
        bag = self._domain(self.search.root, state)
        ids = [list(sort.ids) for sort in self.search.problem.sorts]
        cell_of: dict[int, int] = {}
        cells: dict[int, int] = {}
        for seat in sorted(bag.seats, key=lambda seat: seat.node):
            cell = ids[seat.sort].pop(0)
            cell_of[id(seat)] = cell
            cells[cell] = seat.node
        groups = [(built, None if seat is None else cell_of[id(seat)]) for built, seat in bag.done]
        return GroupChoice(tuple(groups), cells)

    def _domain(self, node: DomainNode, state: int) -> _Bag:
        """Find the devices, groups and cells of a state in one domain."""
        if not state and not node.cls.sets:
            return _Bag([[] for _ in self.demand.names])
        table = self.search.table(node.cls, self.reach, self.bind)
        steps = []
        for table_pass in reversed(table.passes):
            step = table_pass.back.get(state)
            steps.append((table_pass.name, step))
            if step is not None:
                state = step.before
        bag = _Bag([[] for _ in self.demand.names])
        shares = self._shares(node, table.prefixes, state)
        if node.parts:
            for part, share in zip(node.parts, shares, strict=True):
                self._part(part, share, bag)
        for child, share in zip(node.children, shares, strict=not node.parts):
            bag.add(self._domain(child, share))
        bag.open += node.sets
        for name, step in reversed(steps):
            if name == "seat":
                if step is not None and step.sort >= 0:
                    self._sit(node, step.sort, step.more, bag)
            elif step is not None:
                self._close(name, step.groups, step.hits, bag)
        return bag

    def _shares(self, node: DomainNode, prefixes: Sequence[Costs], state: int) -> list[int]:
        """Split a state into the share of each child or part; among equals the first gives most."""
        if node.parts:
            tables = [self.search.leaves.either(part.signature) for part in node.parts]
        else:
            tables = [
                self.search.table(child.cls, self.reach, self.bind).final for child in node.children
            ]
        shares = []
        for number in range(len(tables) - 1, -1, -1):
            share = _least_share_of(
                prefixes[number], tables[number], state, prefixes[number + 1][state]
            )
            shares.append(share)
            state -= share
        return shares[::-1]

    def _part(self, part: Alike, state: int, bag: _Bag) -> None:
        """Take devices of one part, evenly if they have several functions."""
        if not state:
            return
        prefixes = self.search.leaves.part(part.signature)
        cost = self.search.leaves.either(part.signature)[state]
        if part.instead is not None and prefixes[-1].get(state) != cost:
            self._part(part.instead, state, bag)
            return
        for number in range(len(part.many) - 1, -1, -1):
            many, items = part.many[number], part.items[number]
            own = self.search.leaves.alike(many)
            # The table of a whole unit has the empty state added, so the
            # costs of the last prefix are looked up without it.
            share = _least_share_of(prefixes[number], own, state, prefixes[number + 1][state])
            state -= share
            counts = self.search.layout.taken(share)
            per_item, more = divmod(sum(counts), len(items))
            devices = [
                item for place, item in enumerate(items) for _ in range(per_item + (place < more))
            ]
            for index, count in enumerate(counts):
                bag.loose[index].extend(devices[:count])
                del devices[:count]

    def _sit(self, node: DomainNode, sort: int, more: int, bag: _Bag) -> None:
        """Put a guest cell on the NUMA node, with groups built there; it may still lack groups."""
        assert node.node is not None
        quota = self.search.layout.base + more
        seat = OpenSeat(sort, node.node.id, quota - len(bag.local))
        bag.seats.append(seat)
        bag.done += [(built, seat) for built in bag.local]
        bag.local = []

    def _close(self, name: str, groups: int, hits: int, bag: _Bag) -> None:
        """Repeat a pass of the search that closed groups, with the devices of the bag."""
        if name == "bind":
            closed = [bag.waiting.pop(0) for _ in range(groups)]
        else:
            closed = [self._around(bag.open.pop(0), bag) for _ in range(hits)]
            closed += [self._group(bag, range(len(self.demand.names))) for _ in range(groups)]
        if name == "waiting":
            bag.waiting += closed
        elif name in ("bind", "joined"):
            for built in closed:
                seat = next(seat for seat in bag.seats if seat.left)
                seat.left -= 1
                bag.done.append((built, seat))
        elif self.search.problem.sorts:
            bag.local += closed
        else:
            bag.done += [(built, None) for built in closed]

    def _group(self, bag: _Bag, indices: Sequence[int]) -> Members:
        """Take a group's devices from the bag's loose ones, as many of each name as it needs."""
        built = []
        for index in indices:
            need = self.demand.per_group[index]
            built += [GroupMember(index, item) for item in bag.loose[index][:need]]
            del bag.loose[index][:need]
        return tuple(built)

    def _around(self, number: int, bag: _Bag) -> Members:
        """Build a group of an NVLink set and of loose devices for its other names.

        :param number: index of the set.
        """
        others = [i for i in range(len(self.demand.names)) if i not in self.search.nvlink]
        named = assign_names_in_set(self.demand, sorted(self.search.nvlink), self.sets[number])
        assert named is not None
        return named + self._group(bag, others)


def _least_share_of(before: Costs, own: Costs, state: int, cost: int) -> int:
    """Return the least share of the last part in a state of this cost.

    :param before: the table before the last part was merged.
    :param own: the table of the last part.
    """
    if len(own) == 1:
        return next(iter(own))
    for share in sorted(own):
        rest = before.get(state - share)
        if rest is not None and rest + own[share] == cost:
            return share
    raise AssertionError("a state of the search came from nowhere")
