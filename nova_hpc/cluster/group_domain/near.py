# SPDX-License-Identifier: Apache-2.0
"""In which order the parts of a domain are filled, one member after the other.

Pure. Members come one by one, and of each request only the next one is known, so the order is
made anew for each: where members are already, then where all that are still to come have room
together. From an empty domain this takes the fewest parts that there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def part_order(free: Mapping[str, int], used: Mapping[str, int], left: int) -> Sequence[str]:
    """The parts in which there is room, the best for the next member at the front.

    :param free: how many servers fit into each part.
    :param used: how many members each part has.
    :param left: members that are still to come, the next one included.
    """

    def rank(part: str) -> tuple[int, bool, int, str]:
        all_fit = free[part] >= left
        # The smallest that holds all of them leaves the larger ones whole.
        return -used.get(part, 0), not all_fit, free[part] if all_fit else -free[part], part

    return sorted((part for part in free if free[part] > 0), key=rank)


def scores(order: Sequence[str]) -> dict[str, float]:
    """From 1.0 for the first, and 0.5 for the second, down to more than 0."""
    rest = len(order)
    return {
        part: 1.0 if number == 0 else 0.5 * (rest - number) / rest
        for number, part in enumerate(order)
    }
