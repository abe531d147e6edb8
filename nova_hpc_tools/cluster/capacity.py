# SPDX-License-Identifier: Apache-2.0
"""The number of whole clusters that still fit, at each level of the fabric. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_hpc.cluster.plan.model import ANYWHERE
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace


@attrs.frozen
class AtLevel:
    """The clusters that fit if each has to lie in one domain of a level."""

    #: A word of ``hpc:fabric``, or ``anywhere``.
    level: str
    #: How many domains of the level have free places.
    domains: int
    #: The largest cluster that fits.
    largest: int
    #: How many clusters of the size that was asked for fit beside each other.
    clusters: int


def count_clusters_by_level(
    fabric: FabricMap, fit: Mapping[str, int], members: int
) -> tuple[AtLevel, ...]:
    """For each level that the map has, and at last without one: how many clusters fit.

    In one domain that holds c members there is room for c // members clusters, whatever
    their hosts: a member goes to any host with a free place. So there is nothing to search,
    and the planner, asked for one cluster after the other, gets as many.

    :param fit: host -> how many members fit on it.
    :param members: of one cluster; at least 1.
    """
    level_rows = []
    for level in FabricLevel:
        free: dict[tuple[FabricLevel, str], int] = {}
        for host, number in fit.items():
            enclosing = (fabric.place(host) or FabricPlace(host=host)).enclosing(level)
            if enclosing is not None and number > 0:
                free[enclosing] = free.get(enclosing, 0) + number
        if fabric.domains(level):
            level_rows.append(_count_level_clusters(level.word, list(free.values()), members))
    total = sum(number for number in fit.values() if number > 0)
    return (*level_rows, _count_level_clusters(ANYWHERE, [total] if total else [], members))


def _count_level_clusters(level: str, rooms: list[int], members: int) -> AtLevel:
    clusters = sum(room // members for room in rooms)
    return AtLevel(level, len(rooms), max(rooms, default=0), clusters)
