# SPDX-License-Identifier: Apache-2.0
"""The largest device set of one role that a host still gives, at each level. Pure.

This is what fragmentation takes away: eight free GPUs of which no two are below one switch
are a set of eight at the level ``host`` and of one at ``switch``. There is no second way to
count: the engine is asked for a set of so many devices, the most that could be there first.
CPUs and pages do not count, for they belong to a flavor and not to a role.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.placement import profile as profiles
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import (
    MAX_COUNT,
    AffinityPolicy,
    DeviceGroup,
    FreeHost,
    Request,
    Want,
)
from nova_hpc.topology.level import Level

#: Kinds of hosts whose answers are kept: a large cloud has few, at any moment.
_MOST_KINDS: Final = 4096


def measure_largest_sets(host: FreeHost, role: str) -> Mapping[Level, int]:
    """Level -> the most devices of *role* that one server can get at that level.

    :param host: its pools say their roles; what they serve does not matter.
    :raises ValueError: the host contradicts itself (see choose_device_sets).
    """
    pools = sorted(host.pools, key=lambda pool: (pool.name, pool.id))
    plain = FreeHost(
        name="",
        # UUIDs tell hosts apart that are alike to this question.
        pools=tuple(
            attrs.evolve(
                pool,
                id=str(number),
                serves=frozenset({role} if pool.role == role else ()),
                aliases=0,
            )
            for number, pool in enumerate(pools)
        ),
    )
    return _measure_plain_host(plain, role)


@functools.lru_cache(maxsize=_MOST_KINDS)
def _measure_plain_host(host: FreeHost, role: str) -> Mapping[Level, int]:
    largest: dict[Level, int] = {}
    least = 0
    # Wider levels hold at least what tighter ones do.
    for level in Level:
        size = min(_bound_set_size(host, level), MAX_COUNT)
        while size > least and not _gives_set_of(host, role, level, size):
            size -= 1
        largest[level] = least = max(size, least)
    return largest


def _bound_set_size(host: FreeHost, level: Level) -> int:
    """At least the size of the largest set: all that is free in one domain of the level."""
    amounts: dict[tuple[str, ...], int] = {}
    alone = 0
    for pool in host.pools:
        if not pool.serves or pool.free < 1:
            continue
        domain = pool.location.domain(level)
        if domain is None:
            alone = 1  # of an unknown place one device can be given, and nothing beside it
        else:
            amounts[domain] = amounts.get(domain, 0) + pool.free
    return max(alone, *amounts.values()) if amounts else alone


def _gives_set_of(host: FreeHost, role: str, level: Level, size: int) -> bool:
    request = Request(
        wants=(Want(key=role, name=role, count=size),),
        groups=(DeviceGroup({role: size}),),
        level=level,
        policy=AffinityPolicy.REQUIRED,
    )
    return bool(choose_device_sets(request, host, profile=profiles.UNMEASURED).sets)
