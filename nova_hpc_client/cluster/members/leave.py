# SPDX-License-Identifier: Apache-2.0
"""Chooses the members to remove when a cluster shrinks, so that the others are closest together.

The choice is exact. Among all sets of the wanted size, the best set has the fewest failed members,
then the fewest rejected ones. Then it spans the fewest domains of the widest level, then of the
next one, down to hosts. Of several such sets, the one with the lowest sum of numbers is chosen.

For example, members 1 and 2 are below one leaf, and 3, 4 and 5 below another. If 3 members stay,
they are 3, 4 and 5, which need only one leaf.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

#: The cost of keeping some members: tuples are compared in order, and the smallest is the best.
_Cost = tuple[int, ...]
#: Numbers that are kept: nothing, one list, or a pair of such choices. They are joined only at the
#: end, because most of them are dropped.
_Kept = tuple[Any, ...]
#: Best cost and numbers for each count of kept members; the index is the count.
_Table = list[tuple[_Cost, _Kept]]

#: Index of the widest level's domains in a cost.
_FIRST_LEVEL: Final = 2
#: Name of the domain of members without a known one; they count as if they shared a domain.
UNKNOWN: Final = ""


@attrs.frozen
class MemberPlace:
    """The place of a member.

    :ivar path: names of its domains, the widest first, its host last; "" if unknown.
    :ivar rejected: its measurement found it slow, or not as promised.
    """

    path: tuple[str, ...]
    failed: bool = False
    rejected: bool = False


def choose_leavers(places: Mapping[int, MemberPlace], keep: int) -> frozenset[int]:
    """Choose the members to remove so that the others are closest together.

    :param places: number of a member -> its place; all paths have the same length.
    :param keep: the number of members that stay; 1 to all.
    :returns: numbers of the members to remove.
    :raises ValueError: *keep* is outside this range.
    """
    if not 1 <= keep <= len(places):
        raise ValueError(f"{keep} of {len(places)} members cannot stay")
    levels = len(next(iter(places.values())).path)
    table = _find_best_kept(places, sorted(places), 0, levels, keep)
    return frozenset(places) - set(_flatten_kept(table[keep][1]))


def _flatten_kept(kept: _Kept) -> Iterator[int]:
    left = [kept]
    while left:
        for part in left.pop():
            if isinstance(part, int):
                yield part
            else:
                left.append(part)


def _find_best_kept(
    places: Mapping[int, MemberPlace], numbers: Sequence[int], level: int, levels: int, keep: int
) -> _Table:
    """Return for each count up to *keep* the best members of *numbers* to keep, with their cost.

    A cost consists of the number of failed members, of rejected ones, of domains for each level,
    and the sum of the members' numbers. The tables of the domains inside this one are computed
    first, and then joined pair by pair.
    """
    size = _FIRST_LEVEL + levels + 1
    nothing: _Table = [((0,) * size, ())]
    if level == levels:
        order = sorted(
            numbers,
            key=lambda number: (places[number].failed, places[number].rejected, number),
        )
        table = nothing
        cost = [0] * size
        for count, number in enumerate(order[:keep], 1):
            cost[0] += places[number].failed
            cost[1] += places[number].rejected
            cost[-1] += number
            table.append((tuple(cost), tuple(order[:count])))
        return table
    total = nothing
    for some in _split_by_domain(places, numbers, level):
        below = _find_best_kept(places, some, level + 1, levels, keep)
        # Keeping any member of this domain costs one domain of the level.
        paid: _Table = [below[0]]
        for cost_of, kept in below[1:]:
            at = _FIRST_LEVEL + level
            paid.append(((*cost_of[:at], cost_of[at] + 1, *cost_of[at + 1 :]), kept))
        total = _join_tables(total, paid, keep)
    return total


def _split_by_domain(
    places: Mapping[int, MemberPlace], numbers: Sequence[int], level: int
) -> Sequence[Sequence[int]]:
    groups: dict[str, list[int]] = {}
    for number in numbers:
        groups.setdefault(places[number].path[level], []).append(number)
    return list(groups.values())


def _join_tables(first: _Table, second: _Table, keep: int) -> _Table:
    """Return the best combination of both tables, for each count of kept members."""
    most = min(keep, len(first) + len(second) - 2)
    table: list[tuple[_Cost, _Kept] | None] = [None] * (most + 1)
    for first_count, (cost_here, kept_here) in enumerate(first):
        for second_count, (cost_there, kept_there) in enumerate(second[: most + 1 - first_count]):
            cost = tuple(map(operator.add, cost_here, cost_there))
            best = table[first_count + second_count]
            if best is None or cost < best[0]:
                table[first_count + second_count] = (cost, (kept_here, kept_there))
    return [entry for entry in table if entry is not None]
