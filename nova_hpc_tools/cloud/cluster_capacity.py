# SPDX-License-Identifier: Apache-2.0
"""Counts the whole clusters that still fit, at each level of the fabric. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_hpc.cluster.plan.model import ANYWHERE
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace


@attrs.frozen
class AtLevel:
    """The number of clusters that fit if each has to be in one domain of a level."""

    #: A value of ``hpc:fabric``, or ``anywhere``.
    level: str
    #: The number of domains of the level that have free places.
    domains: int
    #: Members of the largest cluster that fits.
    largest: int
    #: The number of clusters of the requested size that fit at the same time.
    clusters: int


def count_clusters_by_level(
    fabric: FabricMap, fit: Mapping[str, int], members: int
) -> tuple[AtLevel, ...]:
    """Count the clusters that fit, for each level of the map and then without a level.

    A domain with room for c members has room for c // members clusters, because a member may
    use any host with a free place. For example, domains with room for 7 and 9 members hold
    1 + 2 clusters of 4 members. So no search is needed, and the planner finds the same number
    if it plans the clusters one after the other.

    :param fit: host -> the number of members that fit on it.
    :param members: the size of one cluster; at least 1.
    :returns: one row for each level, the tightest first, ``anywhere`` last.
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
