# SPDX-License-Identifier: Apache-2.0
"""Nova looks for a server's devices among those that Placement has allocated to it.

``PciDeviceStats._filter_pools`` drops the pools that are off the guest's NUMA nodes,
if the rest has *enough free devices*, and only then those that Placement has not
allocated. Where one adapter beside the guest has enough free functions, an allocated
function of another adapter is dropped without a word, and the server starts with less
than it asked for. Here only the allocated pools are asked, with as many devices as are
allocated of them.
"""

from __future__ import annotations

import collections
from typing import Any, Final

from nova.pci import stats

from nova_hpc.from_nova.gate import Call, Patch, wrap
from nova_hpc.from_nova.patches.serving import served

POOLS: Final = Patch(
    "nova.pci.stats:PciDeviceStats._filter_pools",
    parameters=("pools", "request", "numa_cells", "rp_uuids"),
    lines={32: (654, 788), 33: (656, 790), 34: (656, 790)},
    why="Nova counts free devices beside the guest before it looks which of them Placement has "
    "allocated: it drops allocated ones, and the server gets fewer than it asked for.",
    until="Nova looks at the allocation first",
)

_MARK: Final = "hpc_pools"


def install() -> None:
    """Wrap the method of Nova's class, which makes statistics anew for each host."""
    if not hasattr(stats.PciDeviceStats._filter_pools, _MARK):
        wrap(stats.PciDeviceStats, POOLS, _allocated)
        setattr(stats.PciDeviceStats._filter_pools, _MARK, True)


def _allocated(call: Call) -> Any:
    server, providers = served(), call.given["rp_uuids"]
    if server is None or not providers:
        return call()
    amounts = collections.Counter(providers)
    mine = [
        (pool, {**pool, "count": amounts[pool["rp_uuid"]]})
        for pool in call.given["pools"]
        if pool.get("rp_uuid") in amounts and pool["count"] >= amounts[pool["rp_uuid"]]
    ]
    found = call(
        pools=[counted for _, counted in mine], request=server.asked(call.given["request"])
    )
    if found is None:
        return None
    # Nova takes devices out of the pools that it is given here: its own.
    real = {id(counted): pool for pool, counted in mine}
    return [real[id(counted)] for counted in found]
