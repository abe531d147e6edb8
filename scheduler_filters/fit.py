# SPDX-License-Identifier: Apache-2.0
"""Asks Nova's own functions whether an allocation candidate fits a host.

The same functions that NUMATopologyFilter and PciPassthroughFilter call, and
that the compute node calls again when it claims: so a candidate that is
offered is not rejected behind our back, and the NUMA nodes that Nova will take
for the guest's cells are known before anything is claimed.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Hashable, Mapping
from typing import Any, Final

import attrs
from nova import objects
from nova.pci import stats as pci_stats
from nova.virt import hardware
from oslo_serialization import jsonutils

from nova_hpc.from_nova.cache import Cache


@attrs.frozen
class Fit:
    """What Nova would do with a candidate."""

    #: guest cell (by position) -> host NUMA node; {} without guest cells
    cells: Mapping[int, int] = attrs.field(factory=dict)
    #: Why Nova would refuse it; None: it fits.
    refusal: str | None = None


class _Light(pci_stats.PciDeviceStats):
    """Nova's statistics of one host, of which a copy costs next to nothing.

    Nova copies them for every question, the topology of the host included,
    and changes in the copy only which pools there are and their counts.
    """

    @classmethod
    def of(cls, original: pci_stats.PciDeviceStats) -> _Light:
        """The same statistics; *original* is not changed by what is asked here."""
        light: _Light = copy.copy(original)
        light.__class__ = cls
        return light

    def __deepcopy__(self, memo: dict[int, Any]) -> _Light:
        new = copy.copy(self)
        new.pools = [dict(pool) for pool in self.pools]
        return new


@attrs.frozen
class Question:
    """What Nova's functions are asked about one server, whatever the host."""

    spec: objects.RequestSpec
    #: Nova looks only at the pools that the candidate names.
    named: bool
    #: The guest has NUMA cells.
    celled: bool
    #: Equal for servers that are alike to Nova; None: like no other.
    key: Hashable

    @classmethod
    def of(cls, spec: objects.RequestSpec) -> Question:
        """Read what does not depend on the host."""
        topology = spec.numa_topology if "numa_topology" in spec else None
        requests = spec.pci_requests.requests
        named = all(
            request.source == objects.InstancePCIRequest.FLAVOR_ALIAS for request in requests
        )
        networks = "network_metadata" in spec and spec.network_metadata
        key = None
        if named and topology and not networks:
            policies = tuple(str(request.numa_policy) for request in requests)
            text = jsonutils.dumps(topology.obj_to_primitive(), sort_keys=True)
            key = (text, policies)
        return cls(spec, named, bool(topology), key)

    def is_certain(self, ambiguous: bool) -> bool:
        """Whether Nova cannot refuse free devices that match the aliases.

        Without guest cells Nova looks only at the pools that the candidate
        names: whether each matches its alias and has as many devices. Devices
        of ports are not named, so they may compete with those that were chosen.

        :param ambiguous: several pools of the host have one provider.
        """
        return self.named and not self.celled and not ambiguous


_FITS: Final[Cache[Fit]] = Cache()


def answer(
    question: Question,
    host_state: Any,
    candidate: Mapping[str, Any],
    chosen: Hashable,
) -> Fit:
    """Check one candidate on one host, or remember what Nova said before.

    :param chosen: equal for candidates that are alike to Nova on hosts with
        equal pools; it has to name the pools as well.
    """
    if question.key is None or not host_state.numa_topology:
        return check(host_state, question.spec, candidate)
    key = (
        question.key,
        chosen,
        host_state.cpu_allocation_ratio,
        host_state.ram_allocation_ratio,
        tuple([_cell(cell) for cell in host_state.numa_topology.cells]),
    )
    return _FITS.get(key, lambda: check(host_state, question.spec, candidate))


def lighten(host_state: Any) -> None:
    """Spare Nova's own filters, which ask the same, the copies that cost most of their time."""
    stats = host_state.pci_stats
    # A class of somebody else may have copies of its own.
    if type(stats) is pci_stats.PciDeviceStats:
        host_state.pci_stats = _Light.of(stats)


def _cell(cell: objects.NUMACell) -> Hashable:
    """All that Nova reads of a host's NUMA node.

    The sets of CPUs are hashed, because they would fill the memory. Should two
    of them collide, Nova's own filters have the last word.
    """
    return (
        cell.id,
        cell.socket if "socket" in cell else None,
        cell.memory,
        cell.memory_usage,
        cell.cpu_usage,
        hash(
            (
                frozenset(cell.cpuset),
                frozenset(cell.pcpuset),
                frozenset(cell.pinned_cpus),
                tuple([frozenset(each) for each in cell.siblings]),
            )
        ),
        tuple(
            [
                (page.size_kb, page.total, page.used, page.reserved if "reserved" in page else 0)
                for page in cell.mempages
            ]
        ),
    )


def check(host_state: Any, spec: objects.RequestSpec, candidate: Mapping[str, Any]) -> Fit:
    """Check one candidate on one host; neither of them is changed."""
    requests = spec.pci_requests.requests
    mapping = candidate["mappings"]
    topology = spec.numa_topology if "numa_topology" in spec else None
    stats = _Light.of(host_state.pci_stats)
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
            pci_stats=stats,
        )
        if not fitted:
            return Fit(refusal="too few free CPUs or memory pages on the NUMA nodes beside them")
        numa_cells = fitted.cells
    elif not stats.support_requests(requests, mapping):
        return Fit(refusal="they are no longer free together")
    refusal = _incomplete(stats, requests, mapping, numa_cells)
    if refusal:
        return Fit(refusal=refusal)
    cells = {} if numa_cells is None else {i: cell.id for i, cell in enumerate(numa_cells)}
    return Fit(cells=cells)


def _incomplete(
    stats: pci_stats.PciDeviceStats,
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
