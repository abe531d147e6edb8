# SPDX-License-Identifier: Apache-2.0
"""From what a cloud sells to the profile that damage is measured against. Pure.

The scheduler makes its profile of the flavors here, and the simulation that of a
workload, so that what is simulated is what a scheduler runs.

The time of a choice grows with the number of shapes. Where there are more than
:data:`MOST`, the two that differ least become one, again and again: nothing that is sold
is left out, and a cloud of fifty flavors that differ in memory keeps the large ones that
it sells seldom.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

import attrs

from nova_hpc.placement.profile import DEFAULT, FlavorShape, Profile

_Name = TypeVar("_Name", bound=Hashable)

#: Shapes of a profile, at most.
MOST: Final = 32

#: A flavor counts like so many servers beside those that run: new ones are wanted, too.
PRIOR: Final = 4

#: The share of a flavor is counted in these parts.
_SHARES: Final = 1024

#: Differences are counted in these parts.
_PARTS: Final = 1_000_000


def build_mixed_profile(shapes: Iterable[FlavorShape], most: int = MOST) -> Profile:
    """The profile of these shapes; the engine's default where there are none.

    Whatever the order of *shapes*, the profile is the same, so all schedulers of a cloud
    have the same one.

    :param shapes: each with its weight; those without any are left out.
    :param most: so many shapes are kept, at most.
    """
    kept = merge_shapes(shapes, most)
    return Profile(kept) if kept else DEFAULT


def learn_weights(running: Mapping[_Name, int]) -> dict[_Name, int]:
    """Weights of flavors by the servers that run: their share, as a power of two up to 1024.

    Powers of two, so that schedulers which count at different moments mostly have the same
    profile, and one and the same scheduler keeps what it knows of hosts while servers come and
    go. A flavor whose servers are gone is forgotten as they are.

    :param running: flavor -> servers of it; what nobody has counts, too.
    """
    if not any(running.values()):
        return dict.fromkeys(running, 1)
    total = sum(running.values()) + PRIOR * len(running)
    return {
        name: 1 << max(0, round(math.log2((count + PRIOR) * _SHARES / total)))
        for name, count in running.items()
    }


def merge_shapes(shapes: Iterable[FlavorShape], most: int = MOST) -> tuple[FlavorShape, ...]:
    """The shapes as :func:`build_mixed_profile` has them, the heaviest first."""
    shapes_by_kind: dict[tuple[object, ...], FlavorShape] = {}
    for shape in shapes:
        if shape.weight <= 0:
            continue
        key = (*_kind_of_shape(shape), shape.cpus, shape.memory_kib)
        earlier = shapes_by_kind.get(key)
        weight = shape.weight + (earlier.weight if earlier else 0)
        shapes_by_kind[key] = attrs.evolve(shape, weight=weight)
    # Alike shapes are neighbours in this order, and only neighbours become one.
    ordered = sorted(shapes_by_kind.values(), key=_sort_key_of_shape)
    gaps = [_gap_between(*pair) for pair in itertools.pairwise(ordered)]
    while len(ordered) > max(most, 1):
        at = min(range(len(gaps)), key=lambda number: (gaps[number], number))
        ordered[at : at + 2] = [_merge_two_shapes(ordered[at], ordered[at + 1])]
        del gaps[at]
        for near in (at - 1, at):
            if 0 <= near < len(gaps):
                gaps[near] = _gap_between(ordered[near], ordered[near + 1])
    return tuple(sorted(ordered, key=lambda shape: (-shape.weight, *_sort_key_of_shape(shape))))


def _kind_of_shape(shape: FlavorShape) -> tuple[object, ...]:
    """The common key of shapes that differ in amounts of CPUs and memory alone."""
    return (tuple(shape.counts.items()), shape.groups, shape.level, shape.page_kib)


def _sort_key_of_shape(shape: FlavorShape) -> tuple[object, ...]:
    return (
        tuple(shape.counts),
        shape.level,
        sum(shape.counts.values()) * shape.groups,
        shape.groups,
        tuple(shape.counts.values()),
        shape.page_kib or 0,
        shape.cpus,
        shape.memory_kib,
    )


def _gap_between(first: FlavorShape, second: FlavorShape) -> tuple[int, int]:
    """The loss if the lighter of two shapes counts as the heavier one.

    First what differs: amounts of CPUs and memory; how many devices, and in which groups;
    the level; the roles. Then by how much, times the weight of the lighter one.
    """
    if _kind_of_shape(first) == _kind_of_shape(second):
        tier = 0
    elif tuple(first.counts) != tuple(second.counts):
        tier = 3
    else:
        tier = 1 if first.level is second.level else 2
    apart = (
        _relative_difference(first.cpus, second.cpus)
        + _relative_difference(first.memory_kib, second.memory_kib)
        + _relative_difference(_count_devices_of_shape(first), _count_devices_of_shape(second))
        + _relative_difference(first.groups, second.groups)
    )
    return tier, min(first.weight, second.weight) * apart


def _count_devices_of_shape(shape: FlavorShape) -> int:
    return sum(shape.counts.values()) * shape.groups


def _relative_difference(first: int, second: int) -> int:
    return abs(first - second) * _PARTS // max(first, second, 1)


def _merge_two_shapes(first: FlavorShape, second: FlavorShape) -> FlavorShape:
    """Two shapes as one: the heavier of them, of equals the larger, with both weights.

    Amounts are not averaged: what a cloud sells in eights would come in elevenths, and
    no two hosts would be alike any more (see between_hosts.reduced).
    """
    kept = max(first, second, key=lambda shape: (shape.weight, _sort_key_of_shape(shape)))
    return attrs.evolve(kept, weight=first.weight + second.weight)
