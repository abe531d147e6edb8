# SPDX-License-Identifier: Apache-2.0
"""The members that go when a cluster shrinks: those whose going brings the others nearest.

Exact: of all ways to keep so many members, the one that keeps the fewest failed ones, then
the fewest that were rejected, then spans the fewest domains of the widest level, then of the
next one, down to hosts; of several such ways, the one with the lowest numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

#: How good it is to keep some members; the smaller the better, compared in order.
_Cost = tuple[int, ...]
#: Numbers that are kept: nothing, one list, or two such choices together. Joined at the end
#: only, since most are thrown away.
_Kept = tuple[Any, ...]
#: Best cost and numbers for each count of members kept.
_Table = list[tuple[_Cost, _Kept]]

#: Where the domains begin in a cost.
_FIRST_LEVEL: Final = 2
#: The domain of members whose own is unknown; they count as if they shared one.
UNKNOWN: Final = ""


@attrs.frozen
class MemberPlace:
    """The place of a member.

    :ivar path: names of its domains, the widest first, its host last; empty where unknown.
    :ivar rejected: whoever measured it found it slow, or not as promised.
    """

    path: tuple[str, ...]
    failed: bool = False
    rejected: bool = False


def choose_leavers(places: Mapping[int, MemberPlace], keep: int) -> frozenset[int]:
    """The numbers of the members that go.

    :param places: of each member, by its number; all paths have one length.
    :param keep: how many stay; 1 to all.
    :raises ValueError: *keep* is not within that.
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
    """For each count up to *keep*, the best members of *numbers* to keep.

    A cost: failed members, rejected ones, domains of each level, sum of the numbers.
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
        # Whoever keeps any member of this domain pays for the domain.
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
    """The best of both together, for each count."""
    most = min(keep, len(first) + len(second) - 2)
    table: list[tuple[_Cost, _Kept] | None] = [None] * (most + 1)
    for first_count, (cost_here, kept_here) in enumerate(first):
        for second_count, (cost_there, kept_there) in enumerate(second[: most + 1 - first_count]):
            cost = tuple(map(operator.add, cost_here, cost_there))
            best = table[first_count + second_count]
            if best is None or cost < best[0]:
                table[first_count + second_count] = (cost, (kept_here, kept_there))
    return [entry for entry in table if entry is not None]
