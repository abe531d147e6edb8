# SPDX-License-Identifier: Apache-2.0
"""The hosts for servers that have to share memory: those that give any.

How much is left there only the node knows: it is no resource of Placement's. Its refusal comes
after this one, and sends the server to the next host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nova import objects

from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc.placement.model import AffinityPolicy
from nova_hpc.wire import stats

NONE_GIVES: Final = (
    "No host that can serve the server gives the memory of hpc:shared_memory; use a flavor "
    "without the key, or with hpc:shared_memory_policy=preferred"
)


def list_giving_hosts(hosts: Sequence[Any], spec: objects.RequestSpec) -> Sequence[Any]:
    """The hosts where the flavor's wish for shared memory may be met.

    :raises nova_hpc.placement.grouping.FlavorError: the wish makes no sense.
    """
    flavor = spec.flavor
    wish = hpc_flavor.read_shared_memory(flavor.extra_specs or {}, flavor.memory_mb)
    if wish is None or wish.policy is not AffinityPolicy.REQUIRED:
        return hosts
    # ``stats`` is unset until the compute node has reported for the first time.
    return [
        host for host in hosts if stats.SHARED_MEMORY_KEY in (getattr(host, "stats", None) or {})
    ]
