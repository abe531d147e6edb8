# SPDX-License-Identifier: Apache-2.0
"""How near the hosts of a request are to the members of its server group.

The filter stores the result on the request, and the weigher reads it there.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nova import objects

from nova_hpc.cluster.group_domain.domain_choice import Ground
from nova_hpc.cluster.group_domain.model import GroupDomain
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.from_nova import fabric

_MARK: Final = "_hpc_fabric_near"


def rank_hosts_by_nearness(
    spec: objects.RequestSpec, spots: Sequence[fabric.FabricSpot], domain: str, left: int
) -> None:
    """Store on *spec* a score of each host: its nearness to the group's other members.

    :param domain: UUID of the group's domain; hosts outside of it are ordered by the levels
        that they share with it.
    :param left: remaining members, the next one included.
    """
    group = spec.instance_group if "instance_group" in spec else None
    hosts = (group.hosts if group is not None and "hosts" in group else None) or ()
    used = collections.Counter(map(str, hosts))
    inside = any(spot.seat.is_in(domain) for spot in spots)
    homes = [seat for host in used if (seat := fabric.seat_of(host)) is not None]
    if inside:
        # Members outside of the domain do not count for the nearness.
        homes = [seat for seat in homes if seat.is_in(domain)]
    ground = Ground((*homes, *(spot.seat for spot in spots)))
    home_hosts = {seat.place.host for seat in homes}
    # The same name as in the choice of the domain.
    whose = str(group.uuid if group is not None else spec.instance_uuid)
    scores = ground.scores({host: used[host] for host in used if host in home_hosts}, left, whose)
    around = {} if inside else fabric.enclosing_domains_of(domain)
    setattr(
        spec,
        _MARK,
        {
            _key_of_host_state(spot.host): scores[spot.seat.place.host]
            + (0 if inside else _score_shared_levels(spot.domains, around))
            for spot in spots
        },
    )


def forget_nearness(spec: objects.RequestSpec) -> None:
    """Remove the scores that an earlier server of the request stored on *spec*."""
    setattr(spec, _MARK, None)


def scores_of(spec: objects.RequestSpec, hosts: Sequence[Any]) -> list[float]:
    """Return the stored nearness score of each host, high is near; 0.0 for all without scores."""
    scores: Mapping[object, float] = getattr(spec, _MARK, None) or {}
    return [scores.get(_key_of_host_state(host), 0.0) for host in hosts]


def _key_of_host_state(host: Any) -> tuple[str, str]:
    return str(host.host), str(host.nodename)


def _score_shared_levels(
    domains: Mapping[FabricLevel, GroupDomain], around: Mapping[FabricLevel, GroupDomain]
) -> float:
    """Score the nearest level at which two places share a domain; 0.0 if they share none.

    Scores are whole numbers, and above all scores of leaves.
    """
    levels = list(FabricLevel)
    shared = [level for level in levels if level in around and around[level] == domains.get(level)]
    return float(len(levels) - levels.index(shared[0])) if shared else 0.0
