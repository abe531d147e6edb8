# SPDX-License-Identifier: Apache-2.0
"""The largest device set of one role that a host can still give, at each level. Pure.

Fragmentation reduces these sizes. For example, eight free GPUs below eight switches are a set of
eight at the level ``host``, but only a set of one at ``switch``. The scheduler's engine itself
decides: it is called with decreasing sizes, from an upper bound on. CPUs and pages do not count,
because they depend on a flavor and not on a role.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.placement import profile as profiles
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import MAX_COUNT, DeviceGroup, FreeHost, Request, Want
from nova_hpc_common.level import AffinityPolicy, Level

#: Kinds of hosts whose results are cached; a large cloud has few kinds at any moment.
_MOST_KINDS: Final = 4096


def measure_largest_sets(host: FreeHost, role: str) -> Mapping[Level, int]:
    """Measure the greatest number of devices of *role* that one server can get at each level.

    :param host: the roles of its pools are used; the requests that they serve do not matter.
    :returns: level -> number of devices.
    :raises ValueError: the host contradicts itself (see ``choose_device_sets``).
    """
    pools = sorted(host.pools, key=lambda pool: (pool.name, pool.id))
    plain = FreeHost(
        name="",
        # UUIDs differ between hosts with the same result, so they are replaced for the cache.
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
    # A set at a tighter level is also one at a wider level, so the sizes never decrease.
    for level in Level:
        size = min(_bound_set_size(host, level), MAX_COUNT)
        while size > least and not _gives_set_of(host, role, level, size):
            size -= 1
        largest[level] = least = max(size, least)
    return largest


def _bound_set_size(host: FreeHost, level: Level) -> int:
    """Return an upper bound of the largest set: the free devices in the level's fullest domain."""
    amounts: dict[tuple[str, ...], int] = {}
    alone = 0
    for pool in host.pools:
        if not pool.serves or pool.free < 1:
            continue
        domain = pool.location.domain(level)
        if domain is None:
            alone = 1  # a device with an unknown place can only be given without others
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
