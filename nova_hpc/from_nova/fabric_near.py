# SPDX-License-Identifier: Apache-2.0
"""How near the hosts of a request are to the members of its server group.

The filter puts it down on the request, and the weigher takes it from there.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nova import objects

from nova_hpc.cluster.group_domain.model import Domain
from nova_hpc.cluster.group_domain.near import part_order, scores
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.from_nova import fabric

_MARK: Final = "_hpc_fabric_near"


def rank(spec: objects.RequestSpec, spots: Sequence[fabric.Spot], domain: str, left: int) -> None:
    """Put down on *spec* how good each host is for its next server.

    :param domain: UUID of the group's domain; hosts outside of it come by what they share
        with it.
    :param left: members that are still to come, the next one included.
    """
    group = spec.instance_group if "instance_group" in spec else None
    used: collections.Counter[str] = collections.Counter()
    for name in (group.hosts if group is not None and "hosts" in group else None) or ():
        used[_leaf(fabric.domains_of(str(name)), str(name))] += 1
    free: collections.Counter[str] = collections.Counter()
    for spot in spots:
        free[_leaf(spot.domains, str(spot.host.host))] += spot.fit
    found = scores(part_order(free, used, left))
    inside = any(spot.is_in(domain) for spot in spots)
    around = {} if inside else fabric.around(domain)
    setattr(
        spec,
        _MARK,
        {
            _key(spot.host): found[_leaf(spot.domains, str(spot.host.host))]
            + (0 if inside else _shared(spot.domains, around))
            for spot in spots
        },
    )


def forget(spec: objects.RequestSpec) -> None:
    """Take away what an earlier server of the request had."""
    setattr(spec, _MARK, None)


def scores_of(spec: objects.RequestSpec, hosts: Sequence[Any]) -> list[float]:
    """The higher, the nearer; 0.0 for all where nothing was put down."""
    found: Mapping[object, float] = getattr(spec, _MARK, None) or {}
    return [found.get(_key(host), 0.0) for host in hosts]


def _key(host: Any) -> tuple[str, str]:
    return str(host.host), str(host.nodename)


def _leaf(domains: Mapping[FabricLevel, Domain], host: str) -> str:
    """The part of a domain that a host is in: its leaf, or, where nobody knows, itself."""
    leaf = domains.get(FabricLevel.LEAF)
    return f"leaf {leaf.name}" if leaf else f"host {host}"


def _shared(domains: Mapping[FabricLevel, Domain], around: Mapping[FabricLevel, Domain]) -> float:
    """More for each level that is nearer; whole numbers, above all scores of leaves."""
    levels = list(FabricLevel)
    shared = [level for level in levels if level in around and around[level] == domains.get(level)]
    return float(len(levels) - levels.index(shared[0])) if shared else 0.0
