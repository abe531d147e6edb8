# SPDX-License-Identifier: Apache-2.0
"""Checks with Nova's own functions whether an allocation candidate fits a host.

NUMATopologyFilter and PciPassthroughFilter call the same functions, and the compute node
calls them again at the claim. So an offered candidate is not rejected later, and
the NUMA nodes that Nova will take for the guest's cells are known before the claim.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

import attrs
from nova import objects
from nova.pci import stats as pci_stats
from nova.virt import hardware
from oslo_serialization import jsonutils

from nova_hpc.from_nova import port_pools
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.patches import numa_cells, numa_fit
from nova_hpc.from_nova.patches.serving import serve_flavor


@attrs.frozen
class Fit:
    """The result of Nova's own checks of an allocation candidate on a host."""

    #: guest cell (by position) -> host NUMA node; {} without guest cells
    cells: Mapping[int, int] = attrs.field(factory=dict)
    #: Why Nova would refuse it; None if it fits.
    refusal: str | None = None


class _LightPciStats(pci_stats.PciDeviceStats):
    """Nova's PCI statistics of one host, with an almost free copy.

    Nova copies them for every check, the topology of the host included,
    and changes in the copy only the list of pools and their counts.
    """

    @classmethod
    def of(cls, original: pci_stats.PciDeviceStats) -> _LightPciStats:
        """Return a light copy of Nova's PCI statistics; checks with it do not change *original*."""
        light: _LightPciStats = copy.copy(original)
        light.__class__ = cls
        return light

    def __deepcopy__(self, memo: dict[int, Any]) -> _LightPciStats:
        new = copy.copy(self)
        new.pools = [dict(pool) for pool in self.pools]
        return new


@attrs.frozen
class FitQuestion:
    """The part of a fit check by Nova's functions that is the same for all hosts."""

    spec: objects.RequestSpec
    #: Whether Nova reads only the pools that the candidate names.
    named: bool
    #: Whether the guest has NUMA cells.
    celled: bool
    #: Equal for servers that Nova treats alike; None if it equals no other.
    key: Hashable

    @classmethod
    def of(cls, spec: objects.RequestSpec) -> FitQuestion:
        """Prepare the data of one server for checks with Nova's own functions on many hosts."""
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
        """Whether Nova's check would certainly accept free devices that match the aliases.

        Without guest cells Nova checks only the pools that the candidate
        names: whether each matches its alias and has as many devices. Devices
        of ports are not named, so they may compete with the chosen devices.

        :param ambiguous: several pools of the host have one provider.
        """
        return self.named and not self.celled and not ambiguous


_FITS: Final[Cache[Fit]] = Cache()


def recall_nova_fit(
    question: FitQuestion,
    host_state: Any,
    candidate: Mapping[str, Any],
    chosen: Hashable,
) -> Fit:
    """Check one candidate without ports on one host, or return Nova's earlier answer.

    :param chosen: equal for candidates that Nova treats alike on hosts with
        equal pools; it must include the pools.
    """
    if question.key is None or not host_state.numa_topology:
        return check_nova_fit(host_state, question.spec, candidate)
    key = (
        question.key,
        chosen,
        host_state.cpu_allocation_ratio,
        host_state.ram_allocation_ratio,
        tuple([_key_of_host_cell(cell) for cell in host_state.numa_topology.cells]),
    )
    return _FITS.get(key, lambda: check_nova_fit(host_state, question.spec, candidate))


def lighten_host_state(host_state: Any) -> None:
    """Make copies of a host state cheap, because Nova's own filters copy it for each check."""
    stats = host_state.pci_stats
    # A class outside Nova may have copies of its own.
    if type(stats) is pci_stats.PciDeviceStats:
        host_state.pci_stats = _LightPciStats.of(stats)


def _key_of_host_cell(cell: objects.NUMACell) -> Hashable:
    """Return a key of all data that Nova reads of a host's NUMA node.

    The sets of CPUs are hashed, because they would fill the memory. If two of them collide, Nova's
    own filters still decide.
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
                tuple([frozenset(sibling_set) for sibling_set in cell.siblings]),
            )
        ),
        tuple(
            [
                (page.size_kb, page.total, page.used, page.reserved if "reserved" in page else 0)
                for page in cell.mempages
            ]
        ),
    )


def check_nova_fit(
    host_state: Any,
    spec: objects.RequestSpec,
    candidate: Mapping[str, Any],
    adapters: Mapping[str, str] | None = None,
) -> Fit:
    """Check one allocation candidate on one host with Nova's functions; neither is changed.

    :param adapters: request of a direct port -> address of the adapter chosen for it.
    """
    requests = port_pools.pin_port_requests(spec.pci_requests.requests, adapters or {})
    with serve_flavor(spec.flavor, spec.image if "image" in spec else None):
        return _ask_nova_fit(host_state, spec, candidate["mappings"], requests)


def _ask_nova_fit(
    host_state: Any,
    spec: objects.RequestSpec,
    mapping: Mapping[str, list[str]],
    requests: list[objects.InstancePCIRequest],
) -> Fit:
    """Check with Nova's functions whether a host takes a candidate; return why if it refuses.

    If the guest does not fit, it is fitted once more without its devices. The result shows whether
    the devices or the CPUs and pages are the reason.
    """
    topology = spec.numa_topology if "numa_topology" in spec else None
    stats = _LightPciStats.of(host_state.pci_stats)
    for request in requests:
        providers = stats._get_rp_uuids_for_request(mapping, request)
        if providers and len(providers) != request.count:
            return Fit(refusal=f"the candidate has {len(providers)} of {request.count} devices")
    if not topology:
        if stats.support_requests(requests, mapping):
            return Fit()
        return Fit(refusal="they are no longer free together")
    if not host_state.numa_topology:
        return Fit(refusal="the node has no NUMA topology, which the server requests")
    # Nova writes its result into the topology that it gets.
    fitted = hardware.numa_fit_instance_to_host(
        host_state.numa_topology,
        topology.obj_clone(),
        provider_mapping=mapping,
        limits=_limits_of_host(host_state, spec),
        pci_requests=requests,
        pci_stats=stats,
    )
    if fitted:
        return Fit(cells={i: cell.id for i, cell in enumerate(fitted.cells)})
    if _has_room(host_state.numa_topology, topology, _limits_of_host(host_state, spec)):
        return Fit(
            refusal="they are too far from the NUMA nodes with free CPUs and memory pages; "
            "hw:pci_numa_affinity_policy decides that"
        )
    return Fit(refusal="too few free CPUs or memory pages on the NUMA nodes beside them")


def _limits_of_host(host_state: Any, spec: objects.RequestSpec) -> objects.NUMATopologyLimits:
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=host_state.cpu_allocation_ratio,
        ram_allocation_ratio=host_state.ram_allocation_ratio,
    )
    if "network_metadata" in spec and spec.network_metadata:
        limits.network_metadata = spec.network_metadata
    return limits


def _has_room(
    host: objects.NUMATopology,
    guest: objects.InstanceNUMATopology,
    limits: objects.NUMATopologyLimits,
) -> bool:
    """Whether Nova finds CPUs, pages and networks for a guest, without its devices."""
    return bool(
        hardware.numa_fit_instance_to_host(
            host, guest.obj_clone(), provider_mapping=None, limits=limits
        )
    )


#: Guest cell (by position) -> the host's NUMA nodes that can take it.
Rooms = tuple[frozenset[int], ...]

_ROOMS: Final[Cache[tuple[bool, ...]]] = Cache()


def find_cell_rooms(question: FitQuestion, host_state: Any) -> Iterator[Rooms]:
    """Yield for each guest cell the host nodes with room for it, regardless of devices.

    :returns: one answer. If the networks of a server with several cells are bound to
        NUMA nodes, one for each choice of nodes that they allow.
    """
    spec, host = question.spec, host_state.numa_topology
    guest = spec.numa_topology
    limits = _limits_of_host(host_state, spec)
    networks = "network_metadata" in limits
    if networks and len(guest) > 1:
        # Nova checks networks for all nodes together.
        plain = functools.partial(hardware.numa_fit_instance_to_host, provider_mapping=None)
        placed = numa_cells.Fitter(plain, host, numa_cells.Values.of(guest), limits)
        choices = itertools.combinations([cell.id for cell in host.cells], len(guest))
        for choice in itertools.islice(choices, _CHOICES):
            nodes = frozenset(choice)
            if placed.on(nodes):
                yield tuple(nodes for _ in guest.cells)
        return
    nodes_by_cell: list[set[int]] = [set() for _ in guest.cells]
    for cell in host.cells:
        only = numa_fit.restrict_to_nodes(host, frozenset({cell.id}), limits)
        make = functools.partial(_cells_taken_by, only, guest, limits)
        if networks or question.key is None:
            fits = make()
        else:
            ratios = (host_state.cpu_allocation_ratio, host_state.ram_allocation_ratio)
            fits = _ROOMS.get((question.key, ratios, _key_of_host_cell(cell)), make)
        for nodes_, fits_there in zip(nodes_by_cell, fits, strict=True):
            if fits_there:
                nodes_.add(cell.id)
    yield tuple(frozenset(node_ids) for node_ids in nodes_by_cell)


#: Maximum of choices of nodes that are checked if networks decide.
_CHOICES: Final = 256


def _cells_taken_by(
    host: objects.NUMATopology,
    guest: objects.InstanceNUMATopology,
    limits: objects.NUMATopologyLimits,
) -> tuple[bool, ...]:
    """Return for each of the guest's cells whether a host of one NUMA node could take it."""
    takes = []
    for index, cell in enumerate(guest.cells):
        alone = objects.InstanceNUMATopology(cells=[cell])
        if index == 0 and "emulator_threads_policy" in guest:
            # Nova counts the CPU of the emulator threads with the first cell.
            alone.emulator_threads_policy = guest.emulator_threads_policy
        takes.append(_has_room(host, alone, limits))
    return tuple(takes)
