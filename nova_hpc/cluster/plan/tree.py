# SPDX-License-Identifier: Apache-2.0
"""The part of a fabric for one plan: hosts with free places, and their domains."""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.cluster.plan.model import Gang, GangPolicy
from nova_hpc.fabric.model import OF_NVLINK, FabricLevel, FabricMap, FabricPlace

_DIGITS: Final = re.compile(r"(\d+)")

#: The domains of a place, by level.
_ALL: Final = operator.attrgetter(*(level.word for level in FabricLevel))

#: Each number of free places and how often it occurs, the largest number first. The
#: smaller of two tuples leaves larger domains whole.
Sizes = tuple[tuple[int, int], ...]

#: Cost of a choice at one level: the number of parts, their free places, and how
#: many of them are not used up.
LevelCost = tuple[int, Sizes, int]
Cost = tuple[LevelCost, ...]


@functools.lru_cache(maxsize=1 << 16)
def natural_sort_key(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key for names in the natural order: ``node9`` before ``node10``."""
    words = _DIGITS.split(name)
    return tuple((int(word), word) if word.isdecimal() else (-1, word) for word in words)


def tally_sizes(values: Iterable[int]) -> Sizes:
    """Count how often each number occurs; pairs of number and count, the largest number first."""
    return tuple(sorted(Counter(values).items(), reverse=True))


@attrs.frozen
class FreeSpot:
    """A host with its number of free places for members of a gang, and its place in the fabric."""

    name: str
    free: int
    place: FabricPlace
    #: The domain of each level; None if unknown. Stored, because it is read very often.
    domains: tuple[str | None, ...]
    #: The domain that encloses it at the gang's level; see ``FabricPlace.enclosing``.
    enclosing: tuple[FabricLevel, str] | None

    def domain(self, level: FabricLevel) -> str | None:
        """Return the name of the host's domain of *level*; None if unknown."""
        return self.domains[level]


@attrs.frozen(eq=False)
class Part:
    """A domain or a host with free places, and the domains or hosts inside it."""

    name: str
    free: int
    #: () for a host.
    parts: tuple[Part, ...] = ()
    #: Parts of equal shape are interchangeable, apart from their names.
    shape: int = 0
    #: The cost below itself of using all of it.
    full: Cost = ()


@attrs.frozen(eq=False)
class GangDomain:
    """A domain that may hold a gang, with its hosts that have free places."""

    name: str
    spots: tuple[FreeSpot, ...]
    free: int


def find_free_spots(fabric: FabricMap, capacity: Mapping[str, int], gang: Gang) -> list[FreeSpot]:
    """List the hosts that can take members of *gang*, sorted by name.

    With the policy ``required`` these are the hosts with a known domain of the gang's level, or of
    a narrower one.

    :param capacity: host -> number of members that fit on it.
    """
    free_spots = []
    for host in sorted(capacity, key=natural_sort_key):
        free = capacity[host]
        if gang.max_per_host is not None:
            free = min(free, gang.max_per_host - gang.placed.get(host, 0))
        if free <= 0:
            continue
        place = fabric.place(host) or FabricPlace(host=host)
        if may_belong_to_gang(place, gang) and len(place.rails) >= gang.rails:
            free_spots.append(FreeSpot(host, free, place, _ALL(place), place.enclosing(gang.level)))
    return free_spots


def may_belong_to_gang(place: FabricPlace, gang: Gang) -> bool:
    """Whether a host at *place* may belong to the gang."""
    if gang.within is not None and place.domain(gang.within[0]) != gang.within[1]:
        return False
    return gang.policy is not GangPolicy.REQUIRED or place.enclosing(gang.level) is not None


def leaf_of(place: FabricPlace) -> tuple[bool, str]:
    """Return whether the host's leaf is known, and the leaf's name; else the host's own name."""
    return (True, place.leaf) if place.leaf is not None else (False, place.host)


def build_part_tree(
    free_spots: Sequence[FreeSpot], levels: Sequence[FabricLevel], shapes: dict[Hashable, int]
) -> tuple[Part, ...]:
    """Build the tree of domains above the hosts *free_spots*.

    :param levels: of the domains that are parts of each other, the widest first. A host with an
        unknown domain at a level is a domain of its own there.
    :param shapes: content -> shape; one for all trees that are compared.
    """
    if not levels:
        return tuple(
            Part(spot.name, spot.free, shape=shapes.setdefault(spot.free, len(shapes)))
            for spot in free_spots
        )
    groups: dict[tuple[int, str], list[FreeSpot]] = {}
    for spot in free_spots:
        groups.setdefault(_tree_key_of(spot, levels), []).append(spot)
    made = []
    for (_, name), members in groups.items():
        parts = build_part_tree(members, levels[1:], shapes)
        shape = (len(levels), *sorted(part.shape for part in parts))
        made.append(
            Part(
                name=name,
                free=sum(part.free for part in parts),
                parts=parts,
                shape=shapes.setdefault(shape, len(shapes)),
                full=full_cost_of(parts),
            )
        )
    return tuple(sorted(made, key=lambda part: natural_sort_key(part.name)))


def _tree_key_of(spot: FreeSpot, levels: Sequence[FabricLevel]) -> tuple[int, str]:
    """Return the index of the first of *levels* at which the host's domain is known, and its name.

    NVLink levels count only as the first. If no level is known: the number of levels, and the host.
    """
    for number, level in enumerate(levels):
        name = spot.domain(level)
        # An NVLink domain is not a part of the tree: it stands only for itself.
        if name is not None and (number == 0 or level not in OF_NVLINK):
            return number, name
    return len(levels), spot.name


def full_cost_of(parts: Sequence[Part]) -> Cost:
    """Return the cost of a plan that uses all of *parts* completely."""
    level_cost = (len(parts), tally_sizes(part.free for part in parts), 0)
    return (level_cost, *add_level_costs(part.full for part in parts))


def add_level_costs(costs: Iterable[Cost]) -> Cost:
    """Add the costs of parts side by side, level by level; () if there are none."""
    all_costs: list[Cost] = list(costs)
    if not all_costs or not all_costs[0]:
        return ()
    total = []
    for level in zip(*all_costs, strict=True):
        tally: Counter[int] = Counter()
        for _, some, _ in level:
            for value, number in some:
                tally[value] += number
        count, partly = (
            sum(part_cost[0] for part_cost in level),
            sum(part_cost[2] for part_cost in level),
        )
        total.append((count, tuple(sorted(tally.items(), reverse=True)), partly))
    return tuple(total)
