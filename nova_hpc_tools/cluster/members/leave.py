# SPDX-License-Identifier: Apache-2.0
"""Which members go when a cluster shrinks: those whose going brings the others nearest.

Exact: of all ways to keep so many members, the one that keeps the fewest failed ones,
then spans the fewest domains of the widest level, then of the next one, down to hosts;
of several such ways, the one with the lowest numbers.
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

#: The domain of members of which nobody knows it; they count as if they shared one.
UNKNOWN: Final = ""


@attrs.frozen
class Place:
    """Where a member is.

    :ivar path: names of its domains, the widest first, its host last; empty where unknown.
    """

    path: tuple[str, ...]
    failed: bool = False


def choose(places: Mapping[int, Place], keep: int) -> frozenset[int]:
    """The numbers of the members that go.

    :param places: of each member, by its number; all paths have one length.
    :param keep: how many stay; 1 to all.
    :raises ValueError: *keep* is not within that.
    """
    if not 1 <= keep <= len(places):
        raise ValueError(f"{keep} of {len(places)} members cannot stay")
    levels = len(next(iter(places.values())).path)
    table = _best(places, sorted(places), 0, levels, keep)
    return frozenset(places) - set(_flat(table[keep][1]))


def _flat(kept: _Kept) -> Iterator[int]:
    left = [kept]
    while left:
        for each in left.pop():
            if isinstance(each, int):
                yield each
            else:
                left.append(each)


def _best(
    places: Mapping[int, Place], numbers: Sequence[int], level: int, levels: int, keep: int
) -> _Table:
    """For each count up to *keep*, the best members of *numbers* to keep.

    A cost: failed members, domains of each level, sum of the numbers.
    """
    size = 2 + levels
    nothing: _Table = [((0,) * size, ())]
    if level == levels:
        order = sorted(numbers, key=lambda each: (places[each].failed, each))
        table = nothing
        cost = [0] * size
        for count, each in enumerate(order[:keep], 1):
            cost[0] += places[each].failed
            cost[-1] += each
            table.append((tuple(cost), tuple(order[:count])))
        return table
    total = nothing
    for some in _split(places, numbers, level):
        below = _best(places, some, level + 1, levels, keep)
        # Whoever keeps any member of this domain pays for the domain.
        paid: _Table = [below[0]]
        for cost_of, kept in below[1:]:
            more = cost_of[1 + level] + 1
            paid.append(((*cost_of[: 1 + level], more, *cost_of[2 + level :]), kept))
        total = _joined(total, paid, keep)
    return total


def _split(
    places: Mapping[int, Place], numbers: Sequence[int], level: int
) -> Sequence[Sequence[int]]:
    found: dict[str, list[int]] = {}
    for each in numbers:
        found.setdefault(places[each].path[level], []).append(each)
    return list(found.values())


def _joined(one: _Table, other: _Table, keep: int) -> _Table:
    """The best of both together, for each count."""
    most = min(keep, len(one) + len(other) - 2)
    table: list[tuple[_Cost, _Kept] | None] = [None] * (most + 1)
    for here, (cost_here, kept_here) in enumerate(one):
        for there, (cost_there, kept_there) in enumerate(other[: most + 1 - here]):
            cost = tuple(map(operator.add, cost_here, cost_there))
            known = table[here + there]
            if known is None or cost < known[0]:
                table[here + there] = (cost, (kept_here, kept_there))
    return [entry for entry in table if entry is not None]
