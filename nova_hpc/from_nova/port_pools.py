# SPDX-License-Identifier: Apache-2.0
"""The adapter of a direct port: passed to Nova, and chosen again at the claim.

Nova 32 to 34 have no allocation in Placement for the device of a port, so the
scheduler's choice cannot travel. ``consume_requests`` of nova/pci/stats.py takes any
pool that matches, in the order of its list. A request that names an address is served
only by that adapter, because the address is a key of the pools like any tag
(``_create_pool_keys_from_dev`` and ``_filter_pools_for_spec`` of nova/pci/stats.py).
Nova itself binds a port with guaranteed bandwidth in this way, by ``parent_ifname``
(``update_pci_request_with_placement_allocations`` of nova/compute/utils.py).

The scheduler checks with Nova whether its choice fits, by requests that name it. The node
has the allocated devices of the flavor, and chooses for the ports with the same
pure function, among the pools of that moment.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects
from nova.objects import fields
from nova.pci import request as pci_request

from nova_hpc.from_nova import pools, server
from nova_hpc.placement import roles
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.flavor import FlavorError
from nova_hpc.placement.model import (
    DeviceMiss,
    DevicePool,
    DeviceSet,
    FreeHost,
    HostNode,
    Nvlink,
    Want,
    WantedCell,
)
from nova_hpc.placement.server import ServerSpec
from nova_hpc.wire import tags as hpc_tags
from nova_hpc_common.level import AffinityPolicy, Location

_NETWORK: Final = pci_request.PCI_NET_TAG


class NoAdapterError(Exception):
    """No network adapter is close enough for the server's direct ports."""

    def __init__(self, miss: DeviceMiss) -> None:
        super().__init__(miss.operator)
        self.miss = miss


def pin_port_requests(
    requests: Sequence[objects.InstancePCIRequest], adapters: Mapping[str, str]
) -> list[objects.InstancePCIRequest]:
    """Copy Nova's PCI requests; bind each request of a port to its chosen adapter.

    :param adapters: request id -> PCI address of the adapter.
    :returns: all requests in their order, copies only of the bound ones.
    """
    pinned_requests = []
    for request in requests:
        address = adapters.get(str(request.request_id))
        if address is not None:
            request = request.obj_clone()
            request.spec = [{**spec, "address": address} for spec in request.spec]
        pinned_requests.append(request)
    return pinned_requests


def chosen_adapters_of(
    kinds: Iterable[server.PortKind], devices: DeviceSet, host: FreeHost
) -> dict[str, str]:
    """Request of a port -> PCI address of the adapter that was chosen for it."""
    names = {pool.id: pool.name for pool in host.pools}
    addresses = {}
    for kind in kinds:
        picked = [names[pick.pool] for pick in devices.picks if pick.want == kind.ports.key]
        for request, name in zip(kind.requests, picked, strict=False):
            addresses[str(request.request_id)] = name
    return addresses


def bandwidth_providers_of(
    kinds: Iterable[server.PortKind],
    adapters: Mapping[str, str],
    providers: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """Map the request group of each port with bandwidth to the provider of its chosen adapter.

    :param adapters: from :func:`chosen_adapters_of`.
    :param providers: as :attr:`nova_hpc.from_nova.hosts.HostView.bandwidth`.
    """
    chosen_providers = {}
    for kind in kinds:
        adapter_providers = providers.get(kind.ports.key, {}) if kind.bandwidth is not None else {}
        for request in kind.requests:
            provider = adapter_providers.get(adapters.get(str(request.request_id), ""))
            if provider is not None:
                chosen_providers[str(request.requester_id)] = provider
    return chosen_providers


@attrs.frozen
class ClaimingServer:
    """A server with an ``hpc:`` flavor whose devices are about to be claimed."""

    flavor: objects.Flavor
    image: objects.ImageMeta
    #: The guest's cells before they are fitted; only their number counts.
    topology: objects.InstanceNUMATopology | None
    #: Its present requests and devices here, if a port is added to a running server.
    requests: tuple[objects.InstancePCIRequest, ...] = ()
    devices: tuple[objects.PciDevice, ...] = ()

    def adapters(
        self,
        stats: Any,
        requests: Sequence[objects.InstancePCIRequest],
        mapping: Mapping[str, list[str]] | None,
        cells: Sequence[objects.InstanceNUMACell] | None,
    ) -> dict[str, str]:
        """Choose the network adapters for the direct ports among *requests*.

        :param stats: Nova's PciDeviceStats of the host.
        :param mapping: from Nova's ``apply_requests``; None after the scheduler.
        :param cells: the guest's cells with the numbers of the host's nodes.
        :returns: request -> PCI address; {} if Nova chooses.
        :raises NoAdapterError: no adapter meets the flavor's requirements.
        """
        kinds = server.port_kinds(objects.InstancePCIRequests(requests=list(requests)))
        if not kinds or (self.topology and not cells):
            # With cells Nova calls again, once the nodes are fixed.
            return {}
        problem = _ClaimProblem.of(self, stats, requests, mapping, cells, kinds)
        if problem is None:
            return {}
        try:
            played = roles.roles_played_on_host(
                (pool.serves, pool.role) for pool in problem.host.pools
            )
            request = problem.asked.request(roles.bind_alias_roles(problem.asked.wants, played))
        except FlavorError:
            return {}  # refused with the reason before the guest starts
        # The flavor's devices are already given, so NVLink sets no longer matter.
        answer = choose_device_sets(attrs.evolve(request, nvlink=Nvlink.NONE), problem.host)
        if answer.sets:
            return chosen_adapters_of(kinds, answer.sets[0], problem.host)
        if request.policy is AffinityPolicy.REQUIRED:
            raise NoAdapterError(answer.miss or DeviceMiss("no reason given", "no reason given"))
        return {}


@attrs.frozen
class _ClaimProblem:
    """The server's requirements, and a host model with its devices and the free adapters."""

    asked: ServerSpec
    host: FreeHost

    @classmethod
    def of(
        cls,
        wanted: ClaimingServer,
        stats: Any,
        requests: Sequence[objects.InstancePCIRequest],
        mapping: Mapping[str, list[str]] | None,
        cells: Sequence[objects.InstanceNUMACell] | None,
        kinds: Sequence[server.PortKind],
    ) -> _ClaimProblem | None:
        """Build the problem; None if the flavor's devices are not allocated yet.

        The host contains three kinds of devices: the devices allocated for this claim, the
        server's present devices, and the free adapters. So the choice for the new ports respects
        all groups of the server.
        """
        topology = stats.numa_topology
        nodes = tuple(
            HostNode(cell.id, getattr(cell, "socket", None))
            for cell in (topology.cells if topology else ())
        )
        sockets = {node.id: node.socket for node in nodes}
        every = objects.InstancePCIRequests(requests=[*wanted.requests, *requests])
        claimed = {str(request.request_id) for request in requests}
        wants, devices = [], []
        for index, request in enumerate(server.alias_requests(every)):
            want = Want(str(index), request.alias_name or str(index), request.count)
            wants.append(want)
            if str(request.request_id) in claimed:
                own_pools = _list_allocated_pools(stats, request, mapping, want.key, sockets)
            else:
                own_pools = [
                    _pool_of_device(stats, device, want.key, sockets)
                    for device in _devices_of_request(wanted, request)
                ]
            if sum(pool.free for pool in own_pools) != request.count:
                return None
            devices += own_pools
        ports = [kind.ports for kind in kinds]
        for index, kind in enumerate(
            server.port_kinds(objects.InstancePCIRequests(requests=list(wanted.requests)))
        ):
            key = f"had {index}"
            own_pools = [
                _pool_of_device(stats, device, key, sockets)
                for request in kind.requests
                for device in _devices_of_request(wanted, request)
            ]
            if own_pools:
                ports.append(attrs.evolve(kind.ports, key=key, count=len(own_pools)))
                devices += own_pools
        devices += _list_adapter_pools(stats, kinds, cells, sockets)
        return cls(
            asked=ServerSpec(
                extra_specs=dict(wanted.flavor.extra_specs or {}),
                wants=tuple(wants),
                cells=tuple(
                    WantedCell(index, host_node=cell.id) for index, cell in enumerate(cells or ())
                ),
                numa_policy=server.numa_policy_of_request(
                    wanted.flavor, wanted.image, server.alias_requests(every)
                ),
                ports=tuple(ports),
                port_roles=server.read_port_roles(),
            ),
            host=FreeHost("claim", tuple(devices), nodes),
        )


def _devices_of_request(
    wanted: ClaimingServer, request: objects.InstancePCIRequest
) -> list[objects.PciDevice]:
    return [device for device in wanted.devices if device.request_id == request.request_id]


def _build_pool(
    identifier: str,
    pool: Mapping[str, Any],
    serves: Iterable[str],
    count: int,
    sockets: Mapping[int, int | None],
) -> DevicePool:
    """Build a pool of the placement engine at the place in the tags; broken tags give no place."""
    location, role = Location(), None
    try:
        tags = hpc_tags.parse_tags(pool)
        location = pools.read_pool_location(pool, tags, sockets.get(pool["numa_node"]))
        role = None if tags is None else tags.role
    except hpc_tags.TagError:
        pass  # it has been in the log since the node was read
    return DevicePool(
        identifier, str(pool["address"]), location, count, frozenset(serves), role=role
    )


def _list_allocated_pools(
    stats: Any,
    request: objects.InstancePCIRequest,
    mapping: Mapping[str, list[str]] | None,
    key: str,
    sockets: Mapping[int, int | None],
) -> list[DevicePool]:
    providers = collections.Counter(stats._get_rp_uuids_for_request(mapping, request))
    return [
        _build_pool(f"{key} {number}", pool, {key}, providers[pool["rp_uuid"]], sockets)
        for number, pool in enumerate(stats.pools)
        if pool.get("rp_uuid") in providers
    ]


def _pool_of_device(
    stats: Any, device: objects.PciDevice, key: str, sockets: Mapping[int, int | None]
) -> DevicePool:
    # None if its entry has been removed from device_spec since.
    pool = stats._create_pool_keys_from_dev(device) or {
        "address": device.address,
        "numa_node": device.numa_node,
    }
    return _build_pool(f"{key} {device.address}", pool, {key}, 1, sockets)


def _list_adapter_pools(
    stats: Any,
    kinds: Sequence[server.PortKind],
    cells: Sequence[objects.InstanceNUMACell] | None,
    sockets: Mapping[int, int | None],
) -> list[DevicePool]:
    """List the PCI pools that Nova would take for the ports, with the guest on these NUMA cells."""
    adapters = {pool["address"] for pool in stats.pools if _is_whole_adapter(pool)}
    adapter_pools = []
    for number, pool in enumerate(stats.pools):
        if _NETWORK not in pool or pool["count"] < 1:
            continue
        keys = {
            kind.ports.key
            for kind in kinds
            if stats._filter_pools([pool], kind.requests[0], cells, [])
        }
        if keys:
            made = _build_pool(f"pool {number}", pool, keys, pool["count"], sockets)
            rival = made.name if pool["address"] in adapters else None
            adapter_pools.append(attrs.evolve(made, rival=rival, whole=_is_whole_adapter(pool)))
    return adapter_pools


def _is_whole_adapter(pool: Mapping[str, Any]) -> bool:
    """Return whether the PCI pool is of adapters that can be given whole, and not of functions."""
    return bool(pool.get("dev_type") == fields.PciDeviceType.SRIOV_PF)
