# SPDX-License-Identifier: Apache-2.0
"""``group_policy=isolate``: every device from a provider of its own.

Nova requests each device from Placement in a request group, and passes on the flavor's
``group_policy`` (scheduler/utils.py:238 and 561 of release 34). With ``isolate`` one
provider serves at most one group: two virtual functions come from two adapters.
"""

from __future__ import annotations

import attrs

from nova_hpc.placement.model import DeviceMiss, DevicePool, FreeHost, Request

GROUP_POLICY = "group_policy"
ISOLATE = "isolate"


def limit_to_one_per_pool(request: Request, host: FreeHost) -> FreeHost:
    """Limit each pool to one usable device if the flavor has ``group_policy=isolate``.

    Damage then counts such a pool as one device, for all sets alike.

    :returns: a changed copy of *host*; the same object if nothing changes.
    """
    if not request.apart:
        return host
    keys = {want.key for want in request.wants}
    pools = tuple(_limit_pool_to_one(pool) if pool.serves & keys else pool for pool in host.pools)
    limited = {pool.id for pool in host.pools if pool.free > 1 and pool.serves & keys}
    # One device of several is no whole member of an NVLink set: the set lacks the others.
    nvlink = tuple(
        members | {f"other devices of {pool_id}" for pool_id in members & limited}
        for members in host.nvlink
    )
    return attrs.evolve(host, pools=pools, nvlink=nvlink)


def _limit_pool_to_one(pool: DevicePool) -> DevicePool:
    if pool.free <= 1:
        return pool
    if pool.unit is not None:
        # A unit can only be taken whole, so one device of it is impossible.
        return attrs.evolve(pool, serves=frozenset())
    return attrs.evolve(pool, free=1)


def explain_isolation(request: Request, miss: DeviceMiss | None) -> DeviceMiss | None:
    """Add to *miss* the note that ``group_policy=isolate`` takes one device of each adapter.

    *miss* itself if the request does not have that policy.
    """
    if miss is None or not request.apart:
        return miss
    reason = f"{GROUP_POLICY}={ISOLATE} takes one device of each adapter"
    return attrs.evolve(miss, operator=f"{miss.operator}; {reason}", user=f"{miss.user}; {reason}")
