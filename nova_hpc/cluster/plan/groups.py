# SPDX-License-Identifier: Apache-2.0
"""The blocks (or spines) of a gang that needs several: the fewest, the smallest.

A choice of groups is good if its *leaves*, up to a maximum of them, hold the gang. So the
least number of groups and the leaves interact. A table has the capacity of the groups from the
i-th on with k groups and j leaves. With it no choice is begun that cannot be finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import attrs

from nova_hpc.cluster.plan.packing import iterate_unlike_choices
from nova_hpc.cluster.plan.tree import Part

#: Maximum of begun choices that are examined for one plan.
MOST_WORK: Final = 20_000
#: Maximum of equally good choices that are kept.
MOST_TIES: Final = 256


@attrs.define
class GroupBudget:
    """Counter of the search steps that are left for one plan of a gang."""

    left: int = MOST_WORK
    #: Whether no choice was left out.
    proven: bool = True

    def spend(self) -> bool:
        """Use one search step; return False if none is left, so the plan is not proved best."""
        if not self.left:
            self.proven = False
            return False
        self.left -= 1
        return True


@attrs.frozen
class _Begun:
    """An incomplete choice of groups of leaves, and the most members that its leaves can hold."""

    groups: tuple[Part, ...]
    #: j -> the maximum that j of their leaves hold.
    most: tuple[int, ...]


@attrs.frozen
class _GroupTable:
    """Capacities of groups of leaves of a domain (blocks or spines), as tables for the search."""

    leaves: int
    wanted: int
    #: The groups, the ones with most room first.
    groups: tuple[Part, ...]
    #: For each group: j -> capacity of its j largest leaves.
    gains: tuple[tuple[int, ...], ...]
    #: k -> i -> j -> capacity of the groups from the i-th on with k groups and j leaves.
    rest: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def count(self) -> int:
        """The smallest number of groups that can hold the gang."""
        return len(self.rest) - 1

    def possible(self, begun: _Begun, start: int) -> bool:
        """Whether the groups from index *start* on can complete the choice *begun*."""
        missing = self.count - len(begun.groups)
        if not 0 <= missing <= len(self.groups) - start:
            return False
        after = self.rest[missing][start]
        return any(
            held + after[self.leaves - used] >= self.wanted for used, held in enumerate(begun.most)
        )

    def with_group(self, begun: _Begun, index: int) -> _Begun:
        """Return a copy of the choice *begun* with the group at *index* added."""
        most = _sum_gains(begun.most, self.gains[index], self.leaves)
        return _Begun((*begun.groups, self.groups[index]), most)


def leaves_of(part: Part, height: int) -> list[Part]:
    """List the leaves below a part that is *height* levels above them."""
    if not height:
        return [part]
    return [leaf for inner in part.parts for leaf in leaves_of(inner, height - 1)]


def choose_fewest_groups(
    groups: Sequence[Part], height: int, leaves: int, wanted: int, budget: GroupBudget
) -> list[tuple[Part, ...]]:
    """Choose the fewest groups of leaves that hold a gang; of equal choices the smallest groups.

    :param height: how many levels the groups are above the leaves, at least 1.
    :param leaves: maximum of leaves; so many leaves of these groups hold the gang.
    :returns: all equally good choices, except exchanges of interchangeable groups; fewer
        if the budget ends, but at least one.
    """
    table = _build_group_table(groups, height, leaves, wanted)
    classes: dict[int, list[int]] = {}
    for index, group in enumerate(table.groups):
        classes.setdefault(group.free, []).append(index)
    states = [_Begun((), (0,) * (leaves + 1))]
    for indices in classes.values():
        states = _extend_choices(table, states, indices, budget)
        if not states:
            return [_choose_greedily(table)]
    return [state.groups for state in states]


def _extend_choices(
    table: _GroupTable, states: list[_Begun], indices: Sequence[int], budget: GroupBudget
) -> list[_Begun]:
    """Extend each incomplete choice by as few groups of one size as possible; [] without a budget.

    The sizes come in descending order, so few groups of this size leave large groups whole. A
    choice is kept only if smaller groups can complete it.
    """
    place = {id(table.groups[index]): index for index in indices}
    shapes: dict[int, list[Part]] = {}
    for index in indices:
        shapes.setdefault(table.groups[index].shape, []).append(table.groups[index])
    for number in range(len(indices) + 1):
        extended: list[_Begun] = []
        for state, some in _pair_choices(states, list(shapes.values()), number):
            if not budget.spend():
                return []
            begun = state
            for group in some:
                begun = table.with_group(begun, place[id(group)])
            if table.possible(begun, indices[-1] + 1):
                if len(extended) == MOST_TIES:
                    budget.proven = False
                    break
                extended.append(begun)
        if extended:
            return extended
    raise AssertionError("a choice that can be finished has no next step")


def _pair_choices(
    states: Sequence[_Begun], shapes: Sequence[Sequence[Part]], number: int
) -> Iterator[tuple[_Begun, list[Part]]]:
    for state in states:
        for some in iterate_unlike_choices(shapes, number):
            yield state, some


def _choose_greedily(table: _GroupTable) -> tuple[Part, ...]:
    """Choose the fewest groups by leaving out the largest ones, one by one."""
    begun = _Begun((), (0,) * (table.leaves + 1))
    for index in range(len(table.groups)):
        if not table.possible(begun, index + 1):
            begun = table.with_group(begun, index)
    return begun.groups


def _build_group_table(
    groups: Sequence[Part], height: int, leaves: int, wanted: int
) -> _GroupTable:
    """Compute the table; it has one layer more for each group until the gang fits."""
    order = tuple(sorted(groups, key=lambda group: -group.free))
    gains = tuple(_leaf_gains_of(group, height, leaves) for group in order)
    layers: list[tuple[tuple[int, ...], ...]] = [((0,) * (leaves + 1),) * (len(order) + 1)]
    while layers[-1][0][leaves] < wanted:
        before, rows = layers[-1], [(0,) * (leaves + 1)]
        for index in range(len(order) - 1, -1, -1):
            one_more = _sum_gains(before[index + 1], gains[index], leaves)
            rows.append(tuple(map(max, rows[-1], one_more)))
        layers.append(tuple(reversed(rows)))
    return _GroupTable(leaves, wanted, order, gains, tuple(layers))


def _leaf_gains_of(group: Part, height: int, leaves: int) -> tuple[int, ...]:
    frees = sorted((leaf.free for leaf in leaves_of(group, height)), reverse=True)
    return tuple(accumulate(frees[:leaves], initial=0))


def _sum_gains(first: Sequence[int], second: Sequence[int], leaves: int) -> tuple[int, ...]:
    """Combine two tables of members that j leaves hold at most into the table of both together.

    :returns: at index j the maximum that j leaves hold.
    """
    best = list(first)
    for used, held in enumerate(second):
        for number in range(leaves - used + 1):
            value = first[number] + held
            if value > best[number + used]:
                best[number + used] = value
    return tuple(best)
