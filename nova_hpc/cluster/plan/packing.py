# SPDX-License-Identifier: Apache-2.0
"""Takes places from interchangeable parts: the fewest parts, the smallest, all of one piece.

The three rules of a level, in this order. Use as few parts as possible. Among these choices
take the one whose parts are the smallest, compared from the largest part down, so that large
parts stay whole. Use up all of them but one, so that the remaining places are in one piece. If
k is the least number of parts that hold n, any k - 1 of them hold less than n. So the remainder
is less than any part that is used, and one part can have all of it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

import attrs

from nova_hpc.cluster.plan.tree import Cost, Part, add_level_costs, tally_sizes

#: Maximum of choices of equally good leaves that are compared for a gang that is to be spread.
MOST_TIES: Final = 256


@attrs.frozen(eq=False)
class Filled:
    """A distribution of members over hosts, and its cost; a smaller cost is better."""

    cost: Cost
    hosts: Mapping[str, int]
    #: Whether all choices were compared.
    proven: bool = True


def count_fewest_parts(frees: Sequence[int], wanted: int) -> int:
    """Return the smallest number of parts whose free places add up to *wanted*.

    :param frees: the free places of each part, the largest first; their sum is at least *wanted*.
    """
    if wanted <= 0:
        return 0
    return next(number for number, sum_ in enumerate(accumulate(frees), 1) if sum_ >= wanted)


def choose_smallest_parts(frees: Sequence[int], wanted: int) -> dict[int, int]:
    """Map a number of free places to the number of chosen parts with exactly that many.

    The fewest parts are chosen that hold *wanted* members, and among these the smallest, so that
    large parts stay whole. For example, nine places in parts with 6, 5 and 4 free ones need two
    parts: 5 and 4.

    :param frees: the largest first; their sum is at least *wanted*.
    """
    count = count_fewest_parts(frees, wanted)
    before = [0, *accumulate(frees)]
    chosen: dict[int, int] = {}
    start = 0
    while count:
        value = frees[start]
        end = start
        while end < len(frees) and frees[end] == value:
            end += 1
        for number in range(min(count, end - start) + 1):
            left = count - number
            # The maximum that the parts after this size can hold.
            rest = before[min(end + left, len(frees))] - before[end]
            if left <= len(frees) - end and number * value + rest >= wanted:
                break
        if number:
            chosen[value] = number
        count -= number
        wanted -= number * value
        start = end
    return chosen


def pack_places(parts: Sequence[Part], wanted: int) -> Filled:
    """Distribute *wanted* members over *parts* so that few and small parts are used at every level.

    The sizes of the parts are chosen first. If places remain, each different part is tried as
    the one that is not used up, and the rules apply again inside it.

    :param parts: of one level, in the order of their names; they hold at least *wanted*.
    """
    classes = _by_free(parts)
    frees = [value for value, members in classes.items() for _ in members]
    chosen = choose_smallest_parts(frees, wanted)
    left = sum(value * number for value, number in chosen.items()) - wanted
    base = {value: classes[value][:number] for value, number in chosen.items()}
    if not left:
        best = _PackChoice([part for taken in base.values() for part in taken])
    else:
        best = min(_iterate_pack_choices(classes, base, left), key=lambda choice: choice.cost)
    used = [*best.whole, *([best.partly] if best.partly else [])]
    level_cost = (len(used), tally_sizes(part.free for part in used), int(left > 0))
    hosts = {name: free for part in best.whole for name, free in hosts_of_part(part)}
    hosts |= best.hosts
    return Filled((level_cost, *best.cost), hosts)


@attrs.frozen(eq=False)
class _PackChoice:
    whole: Sequence[Part]
    partly: Part | None = None
    #: For the part that is not used up: the places taken from it, and their cost.
    below: Cost = ()
    hosts: Mapping[str, int] = attrs.Factory(dict)
    cost: Cost = attrs.field(init=False)

    @cost.default
    def _cost(self) -> Cost:
        costs = [part.full for part in self.whole]
        return add_level_costs([*costs, self.below] if self.partly else costs)


def _iterate_pack_choices(
    classes: Mapping[int, Sequence[Part]], base: Mapping[int, Sequence[Part]], left: int
) -> Iterator[_PackChoice]:
    """Yield choices of parts, each with another part that is not filled completely.

    Of parts with equal shape only one is tried.
    """
    for value, members in base.items():
        seen = set()
        for part in classes[value]:
            if part.shape in seen:
                continue
            seen.add(part.shape)
            others = [
                candidate for candidate in classes[value][: len(members)] if candidate is not part
            ]
            whole = others[: len(members) - 1]
            whole += [
                member
                for other_value, some in base.items()
                if other_value != value
                for member in some
            ]
            if part.parts:
                some = pack_places(part.parts, value - left)
                yield _PackChoice(whole, part, some.cost, some.hosts)
            else:
                yield _PackChoice(whole, part, (), {part.name: value - left})


def _by_free(parts: Sequence[Part]) -> dict[int, list[Part]]:
    """Group the parts by free places, the largest number first; the fullest part last in each.

    Parts without a free place are left out.
    """
    classes: dict[int, list[Part]] = {}
    for part in sorted(parts, key=lambda part: -part.free):
        if part.free:
            classes.setdefault(part.free, []).append(part)
    for members in classes.values():
        members.sort(key=lambda part: part.full)
    return classes


def hosts_of_part(part: Part) -> Iterator[tuple[str, int]]:
    """Yield each host below a part as a pair of its name and its free places."""
    if not part.parts:
        yield part.name, part.free
    for inner in part.parts:
        yield from hosts_of_part(inner)


def spread_places(parts: Sequence[Part], wanted: int) -> Filled:
    """Distribute *wanted* members over the fewest and smallest leaves, few on each host.

    :param parts: leaves; they hold at least *wanted*.
    """
    classes = _by_free(parts)
    frees = [value for value, members in classes.items() for _ in members]
    chosen = choose_smallest_parts(frees, wanted)
    sets = _iterate_part_sets([(classes[value], number) for value, number in chosen.items()])
    fillings: list[Filled] = []
    proven = True
    for number, leaves in enumerate(sets):
        if number == MOST_TIES:
            proven = False
            break
        level_cost = (len(leaves), tally_sizes(leaf.free for leaf in leaves), 0)
        cost, hosts = _deal_places(
            [host for leaf in leaves for host in hosts_of_part(leaf)], wanted
        )
        fillings.append(Filled((level_cost, *cost), hosts))
    best = min(fillings, key=lambda filling: filling.cost)
    return attrs.evolve(best, proven=proven)


def _iterate_part_sets(wanted: Sequence[tuple[Sequence[Part], int]]) -> Iterator[list[Part]]:
    """Yield the different choices of parts: from each class as many parts as its number.

    :param wanted: pairs of equally large parts and the number to choose from them.
    """
    if not wanted:
        yield []
        return
    members, number = wanted[0]
    shapes: dict[int, list[Part]] = {}
    for part in members:
        shapes.setdefault(part.shape, []).append(part)
    for some in iterate_unlike_choices(list(shapes.values()), number):
        for others in _iterate_part_sets(wanted[1:]):
            yield [*some, *others]


def iterate_unlike_choices(groups: Sequence[Sequence[Part]], number: int) -> Iterator[list[Part]]:
    """Yield the different ways to take *number* parts; the parts of a group are interchangeable."""
    if not groups:
        if not number:
            yield []
        return
    first, rest = groups[0], groups[1:]
    room = sum(len(group) for group in rest)
    for some in range(min(number, len(first)), max(number - room, 0) - 1, -1):
        for others in iterate_unlike_choices(rest, number - some):
            yield [*first[:some], *others]


def _deal_places(hosts: Sequence[tuple[str, int]], wanted: int) -> tuple[Cost, dict[str, int]]:
    """Deal places evenly: the number on the fullest host, and how many such hosts there are.

    The remainder of an even dealing goes to the hosts with most room. Among hosts that get
    one or none, the smallest get one. For example, five places on hosts with 4, 2 and 1 free ones
    are dealt as 2, 2 and 1.
    """
    # The least number on the fullest host with which all have a place.
    high = 1 + bisect.bisect_left(
        range(1, wanted), wanted, key=lambda most: sum(min(free, most) for _, free in hosts)
    )
    given = {name: min(free, high - 1) for name, free in hosts}
    missing = wanted - sum(given.values())
    able = [(name, free) for name, free in hosts if free >= high]
    if high > 1:
        able.sort(key=lambda host: -host[1])
    else:
        able.sort(key=lambda host: host[1])
    for name, _ in able[:missing]:
        given[name] += 1
    given = {name: number for name, number in given.items() if number}
    loads = tally_sizes(given.values())
    touched = tally_sizes(free for name, free in hosts if name in given)
    return ((0, loads, 0), (len(given), touched, 0)), given
