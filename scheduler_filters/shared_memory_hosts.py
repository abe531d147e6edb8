# SPDX-License-Identifier: Apache-2.0
"""The hosts for servers that have to share memory: the ones that offer any.

Only the node has the remaining amount, because it is not a resource in Placement. Its refusal
comes after this filter, and sends the server to the next host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nova import objects

from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc.wire import stats
from nova_hpc_common.level import AffinityPolicy

NONE_GIVES: Final = (
    "No host that can serve the server gives the memory of hpc:shared_memory; use a flavor "
    "without the key, or with hpc:shared_memory_policy=preferred"
)


def list_giving_hosts(hosts: Sequence[Any], spec: objects.RequestSpec) -> Sequence[Any]:
    """Return the hosts that can give the shared memory of ``hpc:shared_memory``.

    All hosts pass if the flavor does not require it.

    :raises nova_hpc.placement.grouping.FlavorError: the request is invalid.
    """
    flavor = spec.flavor
    wish = hpc_flavor.read_shared_memory(flavor.extra_specs or {}, flavor.memory_mb)
    if wish is None or wish.policy is not AffinityPolicy.REQUIRED:
        return hosts
    # ``stats`` is unset until the compute node has reported for the first time.
    return [
        host for host in hosts if stats.SHARED_MEMORY_KEY in (getattr(host, "stats", None) or {})
    ]
