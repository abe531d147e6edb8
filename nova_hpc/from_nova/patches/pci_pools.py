# SPDX-License-Identifier: Apache-2.0
"""Nova looks for a server's devices among those that Placement has allocated to it.

``PciDeviceStats._filter_pools`` drops the pools that are off the guest's NUMA nodes,
if the rest has *enough free devices*, and only then those that Placement has not
allocated. If one adapter beside the guest has enough free functions, an allocated
function of another adapter is silently dropped, and the server starts with fewer
devices than requested. This wrap passes only the allocated pools, each with its number of
allocated devices.

Report: ``docs/source/contributor/upstream/index.rst`` (filter-pools). No bug is known to be filed.
"""

from __future__ import annotations

import collections
from typing import Any, Final

from nova.pci import stats

from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.patches.serving import current_served_flavor

POOLS: Final = Patch(
    "nova.pci.stats:PciDeviceStats._filter_pools",
    parameters=("pools", "request", "numa_cells", "rp_uuids"),
    lines={32: (654, 788), 33: (656, 790), 34: (656, 790)},
    why="Nova counts free devices beside the guest before it checks which of them Placement has "
    "allocated: it drops allocated ones, and the server gets fewer than it requested.",
    until="Nova looks at the allocation first",
)

_MARK: Final = "hpc_pools"


def install_pci_pools_patch() -> None:
    """Wrap Nova's filter of PCI pools, so that it starts with the allocated devices.

    The method is wrapped in its class, because Nova makes new statistics for each host.
    """
    if not hasattr(stats.PciDeviceStats._filter_pools, _MARK):
        wrap_method(stats.PciDeviceStats, POOLS, _filter_allocated_pools)
        setattr(stats.PciDeviceStats._filter_pools, _MARK, True)


def _filter_allocated_pools(call: Call) -> Any:
    """Wrap Nova's filtering of PCI pools: pass only the allocated numbers of devices.

    For example, two functions of adapter *a* and one of *b* are allocated. Nova then gets *a* with
    two free functions and *b* with one, and must keep both for three devices.
    """
    server, providers = current_served_flavor(), call.given["rp_uuids"]
    if server is None or not providers:
        return call()
    amounts = collections.Counter(providers)
    own_pools = [
        (pool, {**pool, "count": amounts[pool["rp_uuid"]]})
        for pool in call.given["pools"]
        if pool.get("rp_uuid") in amounts and pool["count"] >= amounts[pool["rp_uuid"]]
    ]
    filtered = call(
        pools=[counted for _, counted in own_pools], request=server.asked(call.given["request"])
    )
    if filtered is None:
        return None
    # Nova removes devices from the pools that it gets here, so they must be its own.
    real = {id(counted): pool for pool, counted in own_pools}
    return [real[id(counted)] for counted in filtered]
