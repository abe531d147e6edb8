# SPDX-License-Identifier: Apache-2.0
"""A guest's cells go to the nodes of its devices.

``numa_fit_instance_to_host`` orders the host's NUMA nodes by all their free devices, also those
that the request does not need, and takes the first order that fits. With
``hw:pci_numa_affinity_policy=preferred`` that may be any. This wrap calls it for one
choice of nodes after the other, the best first
(:func:`nova_hpc.placement.numa_choice.order_node_tiers`). Nova still decides whether CPUs, pages,
devices and networks fit; for several cells it is called as in
:mod:`~nova_hpc.from_nova.patches.numa_cells`.

Reports: ``docs/source/contributor/upstream/index.rst`` (numa-fit-order, and numa-fit-cache for
cells that are mixed up). No bug is known to be filed for either. No plug-in can do it: the
function is called by name, in the scheduler and on the node.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects
from nova.virt import hardware
from oslo_log import log as logging

from nova_hpc.from_nova import hosts, server
from nova_hpc.from_nova.cache import Cache, Once
from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.patches.numa_cells import Fitter, Values
from nova_hpc.from_nova.patches.serving import Served, current_served_flavor
from nova_hpc.placement import numa_choice
from nova_hpc.placement import roles as hpc_roles
from nova_hpc.placement.model import DevicePool, HostNode
from nova_hpc.placement.server import ServerSpec
from nova_hpc.wire import tags as hpc_tags
from nova_hpc_common.level import Location

LOG = logging.getLogger(__name__)

FIT: Final = Patch(
    "nova.virt.hardware:numa_fit_instance_to_host",
    parameters=(
        "host_topology",
        "instance_topology",
        "provider_mapping",
        "limits",
        "pci_requests",
        "pci_stats",
    ),
    lines={32: (2495, 2684), 33: (2509, 2698), 34: (2705, 2894)},
    why="Nova orders the host's NUMA nodes by all free devices and takes the first that fits: "
    "under preferred the guest's cells may be far from the devices that were chosen for it. And "
    "it remembers of each cell where it fits under an id that it overwrites: a dedicated cell may "
    "have no pins, or those of another node.",
    until="Nova orders the nodes by the devices that the server gets, and treats cells as "
    "different",
)

_MARK: Final = "hpc_nodes"
_ONCE: Final = Once()

#: The properties of a device, without its provider and its free count.
_PoolItems = tuple[tuple[str, Any], ...]

_TIERS: Final[Cache[numa_choice.Tiers]] = Cache()


@attrs.frozen
class _TakenProvider:
    """One provider from which a server takes devices, with the amounts."""

    said: _PoolItems
    #: Want.key -> number of devices.
    taken: tuple[tuple[str, int], ...]


def install_numa_fit_patch() -> None:
    """Wrap Nova's NUMA fit, so that it tries the nodes near the server's devices first.

    The function is wrapped in Nova's module, through which all callers use it.
    """
    if not hasattr(hardware.numa_fit_instance_to_host, _MARK):
        wrap_method(hardware, FIT, _fit_beside_devices)
        setattr(hardware.numa_fit_instance_to_host, _MARK, True)


def _fit_beside_devices(call: Call) -> Any:
    """Wrap Nova's fit of a guest's cells: try one choice of host nodes after the other.

    Nova's own order is kept for flavors without ``hpc:`` keys, and if the places of the devices are
    unknown.
    """
    asked = current_served_flavor()
    host, guest = call.given["host_topology"], call.given["instance_topology"]
    if asked is None or not host or not guest or len(host) < len(guest):
        return call()
    if len(guest) > 1:
        return _fit_several_cells(call)
    choices = _list_node_choices(asked, call.given)
    if choices is None:
        return call()
    # Nova writes into the guest's cell, even if it does not fit.
    pristine = Values.of(guest)
    for choice in choices:
        part = restrict_to_nodes(host, choice, call.given["limits"])
        fitted = call(host_topology=part, instance_topology=pristine.guest())
        if fitted:
            return fitted
    return None


def _fit_several_cells(call: Call) -> Any:
    """Fit a guest of several cells; each needs a host node of its own. None if no choice fits."""
    given = dict(call.given)
    host, guest = given["host_topology"], Values.of(given["instance_topology"])
    choices = _list_node_choices(current_served_flavor(), given)
    fitter = Fitter(
        functools.partial(call, provider_mapping=given["provider_mapping"]),
        host,
        guest,
        given["limits"],
        given["pci_requests"],
        given["pci_stats"],
        given["provider_mapping"],
    )
    for choice in _list_node_sets(call, given, fitter) if choices is None else choices:
        fitted = fitter.on(choice)
        if fitted:
            return fitted
    return None


def _list_node_sets(
    call: Call, given: Mapping[str, Any], fitter: Fitter
) -> Iterator[frozenset[int]]:
    """Yield sets of host nodes for unknown devices: Nova's own choice, then all others."""
    ids = [cell.id for cell in fitter.host.cells]
    count = len(fitter.guest.cells)
    if len(ids) > count:
        fitted = call(**{**given, "instance_topology": fitter.guest.guest()})
        if fitted:
            yield frozenset(cell.id for cell in fitted.cells)
        elif fitter.guest.alike:
            return  # then Nova has overwritten no answer
    yield from map(
        frozenset, itertools.islice(itertools.combinations(ids, count), numa_choice.MOST)
    )


def _list_node_choices(
    asked: Served | None, given: Mapping[str, Any]
) -> Iterator[frozenset[int]] | None:
    """Return sets of host nodes, the best first; None if Nova chooses."""
    host, guest = given["host_topology"], given["instance_topology"]
    if asked is None:
        return None
    try:
        tiers = order_node_choices(
            asked,
            host,
            guest,
            given["pci_requests"],
            given["pci_stats"],
            given["provider_mapping"],
        )
    except Exception as error:
        # The check before the guest starts decides.
        if _ONCE.first(str(error)):
            LOG.exception("The NUMA nodes of a server with devices are Nova's choice")
        return None
    if tiers is None:
        return None
    if len(guest) == 1:
        # Among equally good nodes Nova chooses.
        return (frozenset(itertools.chain(*tier)) for tier in tiers)
    return (frozenset(choice) for tier in tiers for choice in tier)


def order_node_choices(
    asked: Served,
    host: objects.NUMATopology,
    guest: objects.InstanceNUMATopology,
    requests: Iterable[objects.InstancePCIRequest] | None,
    stats: Any,
    mapping: Mapping[str, Sequence[str]] | None,
) -> numa_choice.Tiers | None:
    """Order the choices of host NUMA nodes for a guest's cells by the devices there, best first.

    :param mapping: as Nova's functions take it; None if the requests name their providers.
    :returns: None if the places of the guest's devices are unknown.
    :raises nova_hpc.placement.grouping.FlavorError: the flavor contradicts itself.
    """
    wanted = objects.InstancePCIRequests(requests=list(requests or ()))
    # The adapters of ports are chosen by the nodes, and not the nodes by the adapters.
    spec = attrs.evolve(server.read_server_spec(asked.flavor, asked.image, wanted, guest), ports=())
    taken = _count_taken_devices(server.alias_requests(wanted), stats, mapping)
    if not spec.wants or taken is None:
        return None
    devices = _list_taken_providers(stats.pools, taken)
    if devices is None:
        return None
    sockets = tuple((cell.id, _socket_of_cell(cell)) for cell in host.cells)
    key = (
        tuple(sorted(spec.extra_specs.items())),
        spec.wants,
        spec.cells,
        spec.numa_policy,
        devices,
        sockets,
    )
    return _recall_tiers(key, spec, devices, dict(sockets))


def _recall_tiers(
    key: Hashable,
    spec: ServerSpec,
    devices: Sequence[_TakenProvider],
    sockets: Mapping[int, int | None],
) -> numa_choice.Tiers:
    try:
        return _TIERS.get(key, lambda: _build_tiers(spec, devices, sockets))
    except TypeError:
        # A value in a pool is not a string or number, so it is not Nova's.
        return _build_tiers(spec, devices, sockets)


def _build_tiers(
    spec: ServerSpec, devices: Sequence[_TakenProvider], sockets: Mapping[int, int | None]
) -> numa_choice.Tiers:
    """Order the choices of nodes on a host that contains only the server's devices.

    Nova's NUMA node of a pool wins over the one in its tags. Broken tags raise, and Nova then
    chooses.
    """
    host_devices = []
    claimed: dict[str, list[str]] = {}
    for number, device in enumerate(devices):
        pool = dict(device.said)
        pool_tags = hpc_tags.parse_tags(pool)
        node = pool.get("numa_node")
        location = Location() if pool_tags is None else pool_tags.location
        if node is not None:
            socket = sockets.get(node)
            location = attrs.evolve(
                location, numa=node, socket=location.socket if socket is None else socket
            )
        for want, count in device.taken:
            claimed.setdefault(want, []).extend([str(number)] * count)
        made = DevicePool(
            id=str(number),
            name=str(pool.get("address", "?")),
            location=location,
            free=sum(count for _, count in device.taken),
            serves=frozenset(want for want, _ in device.taken),
            role=None if pool_tags is None else pool_tags.role,
        )
        shared = pool.get("dev_type") in ("type-VF", "vdpa")
        host_devices.append(
            hosts.HostDevice(made, None if pool_tags is None else pool_tags.nvlink, shared)
        )
    host, _ = hosts.build_engine_host(
        "claimed",
        host_devices,
        tuple(HostNode(id=node_id, socket=sockets[node_id]) for node_id in sockets),
    )
    played = hpc_roles.roles_played_on_host((pool.serves, pool.role) for pool in host.pools)
    request = spec.request(hpc_roles.bind_alias_roles(spec.wants, played))
    return numa_choice.order_node_tiers(request, host, claimed)


def _count_taken_devices(
    requests: Sequence[objects.InstancePCIRequest],
    stats: Any,
    mapping: Mapping[str, Sequence[str]] | None,
) -> dict[str, dict[str, int]] | None:
    """Return provider -> want -> number of its devices there; None if Placement lacks some.

    A want is the index of the PCI request, as text.
    """
    taken: dict[str, dict[str, int]] = {}
    for index, request in enumerate(requests):
        providers = stats._get_rp_uuids_for_request(mapping, request) if stats else ()
        if len(providers) != request.count:
            return None
        for provider in providers:
            wants = taken.setdefault(provider, {})
            wants[str(index)] = wants.get(str(index), 0) + 1
    return taken


def _list_taken_providers(
    pools: Iterable[Mapping[str, Any]], taken: Mapping[str, Mapping[str, int]]
) -> tuple[_TakenProvider, ...] | None:
    """Return the pools of these providers, in a fixed order; None if some are missing."""
    providers = [
        _TakenProvider(
            tuple(sorted((k, v) for k, v in pool.items() if k not in _OWN)),
            tuple(sorted(taken[pool["rp_uuid"]].items())),
        )
        for pool in pools
        if pool.get("rp_uuid") in taken
    ]
    if len(providers) != len(taken):
        return None
    # By address, which comes first in the items.
    return tuple(sorted(providers, key=lambda device: (str(device.said[:1]), device.taken)))


#: Keys of a pool that do not describe its devices: the node has more of them than the scheduler.
_OWN: Final = frozenset({"count", "devices", "rp_uuid"})


def _socket_of_cell(cell: objects.NUMACell) -> int | None:
    socket: int | None = cell.socket if "socket" in cell else None
    return socket


def restrict_to_nodes(
    host: objects.NUMATopology, choice: frozenset[int], limits: Any
) -> objects.NUMATopology:
    """Return a copy of *host* with only the NUMA nodes of *choice*.

    Nova checks whether a network is bound to a node that the guest is *not* on. The other nodes
    then stay, without any CPUs and memory.
    """
    networks = limits and "network_metadata" in limits and limits.network_metadata
    cells = []
    for cell in host.cells:
        if cell.id in choice:
            cells.append(cell)
        elif networks:
            cells.append(_close_cell(cell))
    return objects.NUMATopology(cells=cells)


def _close_cell(cell: objects.NUMACell) -> objects.NUMACell:
    """Return a NUMA node without CPUs and memory, whose networks Nova still sees."""
    more = {"network_metadata": cell.network_metadata} if "network_metadata" in cell else {}
    return objects.NUMACell(
        id=cell.id,
        socket=_socket_of_cell(cell),
        cpuset=set(),
        pcpuset=set(),
        pinned_cpus=set(),
        siblings=[],
        memory=0,
        memory_usage=0,
        cpu_usage=0,
        mempages=[],
        **more,
    )
