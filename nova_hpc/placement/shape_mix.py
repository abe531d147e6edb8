# SPDX-License-Identifier: Apache-2.0
"""The profile for measuring damage, from the flavors of a cloud. Pure.

The scheduler makes its profile from the flavors here, and the simulation makes its profile
from a workload, so that a simulation runs the scheduler's own code.

The time of a choice grows with the number of shapes. If there are more than :data:`MOST`, the
two that differ least become one, until enough are merged. So no flavor is left out, and a
cloud of fifty flavors that differ in memory keeps the large ones that are rarely used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

import attrs

from nova_hpc.placement.profile import DEFAULT, FlavorShape, Profile

_Name = TypeVar("_Name", bound=Hashable)

#: Maximum of shapes in a profile.
MOST: Final = 32

#: Servers that each flavor counts in addition to its running ones, so that new flavors count.
PRIOR: Final = 4

#: The share of a flavor is counted in these parts.
_SHARES: Final = 1024

#: Differences are counted in these parts.
_PARTS: Final = 1_000_000


def build_mixed_profile(shapes: Iterable[FlavorShape], most: int = MOST) -> Profile:
    """Build the profile of a cloud's flavors; the engine's default profile if there are none.

    The profile does not depend on the order of *shapes*, so all schedulers of a cloud have the same
    one.

    :param shapes: each with its weight; shapes without weight are left out.
    :param most: maximum of shapes that are kept.
    """
    kept = merge_shapes(shapes, most)
    return Profile(kept) if kept else DEFAULT


def learn_weights(running: Mapping[_Name, int]) -> dict[_Name, int]:
    """Compute the weight of each flavor from the number of its running servers.

    A weight is the flavor's share as a power of two up to 1024.

    Powers of two keep profiles stable. Schedulers that count at different moments mostly have the
    same profile, and one scheduler keeps its cached hosts while servers come and go. The weight of
    a flavor falls as its servers are deleted.

    :param running: flavor -> its servers; a flavor without servers counts, too.
    :returns: flavor -> weight.
    """
    if not any(running.values()):
        return dict.fromkeys(running, 1)
    total = sum(running.values()) + PRIOR * len(running)
    return {
        name: 1 << max(0, round(math.log2((count + PRIOR) * _SHARES / total)))
        for name, count in running.items()
    }


def merge_shapes(shapes: Iterable[FlavorShape], most: int = MOST) -> tuple[FlavorShape, ...]:
    """Reduce the shapes for :func:`build_mixed_profile` to at most *most*, the heaviest first.

    Equal shapes are added up. Then the two neighbours with the smallest gap are merged until *most*
    shapes are left.
    """
    shapes_by_kind: dict[tuple[object, ...], FlavorShape] = {}
    for shape in shapes:
        if shape.weight <= 0:
            continue
        key = (*_kind_of_shape(shape), shape.cpus, shape.memory_kib)
        earlier = shapes_by_kind.get(key)
        weight = shape.weight + (earlier.weight if earlier else 0)
        shapes_by_kind[key] = attrs.evolve(shape, weight=weight)
    # Similar shapes are neighbours in this order, and only neighbours are merged.
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
    """Return the common key of shapes that differ only in amounts of CPUs and memory."""
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
    """Measure the loss if the lighter of two shapes counts as the heavier one.

    :returns: first the kind of the difference: 0 for amounts of CPUs and memory, 1 for the number
        of devices and groups, 2 for the level, 3 for the roles. Then its size, times the weight of
        the lighter one.
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
    """Merge two shapes: the heavier of them, among equals the larger, gets both weights.

    Amounts are not averaged. Averages would turn flavors of eight into elevenths, and no two hosts
    would be equal any more (see between_hosts.reduce_host).
    """
    kept = max(first, second, key=lambda shape: (shape.weight, _sort_key_of_shape(shape)))
    return attrs.evolve(kept, weight=first.weight + second.weight)
