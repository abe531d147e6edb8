# SPDX-License-Identifier: Apache-2.0
"""``group_policy=isolate``: every device from a provider of its own.

Nova asks Placement for each device in a request group, and passes on the flavor's
``group_policy`` (scheduler/utils.py:238 and 561 of release 34); with ``isolate`` no two
groups are served by one provider: two virtual functions are of two adapters.
"""

from __future__ import annotations

import attrs

from nova_hpc.placement.model import DeviceMiss, DevicePool, FreeHost, Request

GROUP_POLICY = "group_policy"
ISOLATE = "isolate"


def limit_to_one_per_pool(request: Request, host: FreeHost) -> FreeHost:
    """*host* as it is to a request that takes one device of each pool at most.

    The same one where nothing changes. What damage counts of such a pool is then one
    device, for all sets alike.
    """
    if not request.apart:
        return host
    keys = {want.key for want in request.wants}
    pools = tuple(_limit_pool_to_one(pool) if pool.serves & keys else pool for pool in host.pools)
    return attrs.evolve(host, pools=pools)


def _limit_pool_to_one(pool: DevicePool) -> DevicePool:
    if pool.free <= 1:
        return pool
    if pool.unit is not None:
        # Given whole or not at all, so not one of it.
        return attrs.evolve(pool, serves=frozenset())
    return attrs.evolve(pool, free=1)


def explain_isolation(request: Request, miss: DeviceMiss | None) -> DeviceMiss | None:
    """*miss* with the reason why adapters count as one device each."""
    if miss is None or not request.apart:
        return miss
    reason = f"{GROUP_POLICY}={ISOLATE} takes one device of each adapter"
    return attrs.evolve(miss, operator=f"{miss.operator}; {reason}", user=f"{miss.user}; {reason}")
