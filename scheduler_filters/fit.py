"""Asks Nova's own functions whether an allocation candidate fits a host.

The same functions that NUMATopologyFilter and PciPassthroughFilter call, and
that the compute node calls again when it claims: so a candidate that is
offered is not rejected behind our back, and the NUMA nodes that Nova will take
for the guest's cells are known before anything is claimed.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import attrs
from nova import objects
from nova.virt import hardware


@attrs.frozen
class Fit:
    """What Nova would do with a candidate."""

    #: guest cell (by position) -> host NUMA node; {} without guest cells
    cells: Mapping[int, int] = attrs.field(factory=dict)
    #: Why Nova would refuse it; None: it fits.
    refusal: str | None = None


def check(host_state: Any, spec: objects.RequestSpec, candidate: Mapping[str, Any]) -> Fit:
    """Check one candidate on one host; neither of them is changed."""
    requests = spec.pci_requests.requests
    mapping = candidate["mappings"]
    topology = spec.numa_topology if "numa_topology" in spec else None
    numa_cells = None
    if topology:
        if not host_state.numa_topology:
            return Fit(refusal="the node has no NUMA topology, which the server asks for")
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=host_state.cpu_allocation_ratio,
            ram_allocation_ratio=host_state.ram_allocation_ratio,
        )
        if "network_metadata" in spec and spec.network_metadata:
            limits.network_metadata = spec.network_metadata
        # Nova writes its result into the topology that it is given.
        fitted = hardware.numa_fit_instance_to_host(
            host_state.numa_topology,
            topology.obj_clone(),
            provider_mapping=mapping,
            limits=limits,
            pci_requests=requests,
            pci_stats=host_state.pci_stats,
        )
        if not fitted:
            return Fit(refusal="too few free CPUs or memory pages on the NUMA nodes beside them")
        numa_cells = fitted.cells
    elif not host_state.pci_stats.support_requests(requests, mapping):
        return Fit(refusal="they are no longer free together")
    refusal = _incomplete(host_state, requests, mapping, numa_cells)
    if refusal:
        return Fit(refusal=refusal)
    cells = {} if numa_cells is None else {i: cell.id for i, cell in enumerate(numa_cells)}
    return Fit(cells=cells)


def _incomplete(
    host_state: Any,
    requests: list[objects.InstancePCIRequest],
    mapping: Mapping[str, list[str]],
    numa_cells: list[objects.InstanceNUMACell] | None,
) -> str | None:
    """Whether the compute node would leave devices of the candidate out.

    Where the devices of one request sit on several NUMA nodes, Nova first
    drops the pools that are off the guest's cells, counts what *could* be
    taken from the rest, and then silently gives the server fewer devices than
    it asked for.
    """
    stats = host_state.pci_stats
    for request in requests:
        providers = stats._get_rp_uuids_for_request(mapping, request)
        if not providers:
            continue
        pools = stats._filter_pools(stats.pools, request, numa_cells, providers) or ()
        kept = {pool.get("rp_uuid") for pool in pools}
        lost = sum(
            count
            for provider, count in collections.Counter(providers).items()
            if provider not in kept
        )
        if lost or len(providers) != request.count:
            return (
                f"Nova would drop {lost} {request.alias_name} that sit off the guest's NUMA "
                "nodes; hw:pci_numa_affinity_policy decides that"
            )
    return None
