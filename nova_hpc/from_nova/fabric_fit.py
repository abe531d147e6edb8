# SPDX-License-Identifier: Apache-2.0
"""How many servers of a request fit on a host, by Placement's answer.

Nova's scheduler queries Placement for candidates and for the amounts of their providers;
filters see only the former. The ratios of a host state are no substitute: Placement's ratios
count, and an operator may have set them there.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nova import objects
from oslo_log import log as logging

from nova_hpc.cluster.group_domain.model import Size
from nova_hpc.from_nova import placement_answer
from nova_hpc.from_nova.log_throttle import LOG_THROTTLE, format_held_back

LOG = logging.getLogger(__name__)

#: The largest number in the name of a provider.
_MOST: Final = 999_999


def count_fitting_servers(host: Any, spec: objects.RequestSpec) -> int:
    """Count the servers of the request that fit on *host* now.

    At least 1, because the host has passed all filters.
    """
    try:
        most = _count_fits_on_host(host, spec, used=True)
        limit = _most_of_group(spec)
        if limit is not None:
            members_on_host = set(spec.instance_group.members or ()) & set(host.instances or ())
            most = min(most, limit - len(members_on_host))
    except Exception as error:
        held = LOG_THROTTLE.due(("fabric fit", type(error).__name__))
        if held is not None:
            LOG.exception(
                "The number of servers that fit on a host is unknown, so one is assumed%s",
                format_held_back(held),
            )
        return 1
    return max(1, most)


def size_of_request(spec: objects.RequestSpec, hosts: Iterable[Any]) -> Size:
    """Return resources of one server of the request, and how many a largest empty host takes."""
    needs, most = "", 1
    for host in hosts:
        try:
            # Hosts may have their CPUs in different resource classes.
            needs = max(needs, repr(sorted(_resources_per_server(host).items())))
            most = max(most, _count_fits_on_host(host, spec, used=False))
        except Exception:
            LOG.debug("The size of the server on %s is unknown", host, exc_info=True)
    limit = _most_of_group(spec)
    if limit is not None:
        most = min(most, limit)
    key = hashlib.sha256(f"{needs}:{limit}".encode()).hexdigest()[:8]
    return Size(key, max(1, min(most, _MOST)))


def _resources_per_server(host: Any) -> Mapping[str, int]:
    """Return resource class -> the amount of one server, from the host's first candidate."""
    amounts: collections.Counter[str] = collections.Counter()
    candidates: Sequence[Any] = host.allocation_candidates
    for allocation in candidates[0]["allocations"].values():
        amounts.update(allocation["resources"])
    return amounts


def _count_fits_on_host(host: Any, spec: objects.RequestSpec, used: bool) -> int:
    needs = _resources_per_server(host)
    rooms: collections.Counter[str] = collections.Counter()
    answer = placement_answer.answer_of(spec)
    if answer is None:
        return 1
    amount = answer.free if used else answer.capacity
    for provider in answer.tree(host.uuid):
        for name in answer.resources(provider):
            rooms[name] += amount(provider, name)
    return min((rooms[name] // amount for name, amount in needs.items() if amount), default=1)


def _most_of_group(spec: objects.RequestSpec) -> int | None:
    """Return the maximum of members of the server group on one host; None for any number."""
    group = spec.instance_group if "instance_group" in spec else None
    if group is None or group.policy != "anti-affinity":
        return None
    return int((group.rules or {}).get("max_server_per_host", 1))
