# SPDX-License-Identifier: Apache-2.0
"""A server's request, from any of Nova's objects for it.

The scheduler has a request specification, a node has an instance with its claim,
``explain`` and the profile have a flavor. Each of them goes through
:func:`read_server_spec`, so that all build the same request to the engine.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

import attrs
from nova import objects
from nova.objects import fields
from nova.pci import request as pci_request
from nova.virt import hardware
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import bandwidth, cache
from nova_hpc.from_nova.bandwidth import Bandwidth
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.candidates import RequestedDevice
from nova_hpc.from_nova.providers import DeviceKind
from nova_hpc.guest_tree import guest_document
from nova_hpc.placement import roles
from nova_hpc.placement.grouping import PORT, check_wants
from nova_hpc.placement.model import Ports, Want, WantedCell
from nova_hpc.placement.server import ServerSpec

CONF = cfg.CONF
hpc_conf.register_all_options(CONF)

#: Nova's policies for devices of a host whose NUMA nodes are known, the strictest
#: first: nova/pci/stats.py of release 34, lines 393-476.
_STRICTEST: Final = (
    fields.PCINUMAAffinityPolicy.REQUIRED,
    fields.PCINUMAAffinityPolicy.LEGACY,
    fields.PCINUMAAffinityPolicy.SOCKET,
    fields.PCINUMAAffinityPolicy.PREFERRED,
)

#: Short names for the long keys that describe a request.
_SHAPES: Final[Cache[int]] = Cache()


_IN_PLACEMENT: Final = (
    "set [filter_scheduler]pci_in_placement = True for the scheduler, the conductor and the API"
)


class RequestError(ValueError):
    """A request specification of Nova that this release cannot read. The text is for operators.

    :ivar cure: the operator's remedy; users read it, too.
    """

    def __init__(self, text: str, cure: str = "look into the log of nova-scheduler") -> None:
        super().__init__(text)
        self.cure = cure


@attrs.frozen
class WantedDevice:
    """One PCI alias of the flavor, with its request in Nova and its groups in Placement."""

    want: Want
    request: objects.InstancePCIRequest = attrs.field(eq=False, hash=False, repr=False)
    kind: DeviceKind
    units: tuple[RequestedDevice, ...]
    #: The request for zero devices, for finding suitable pools. With a positive count Nova
    #: returns None if there are fewer devices than requested.
    probe: objects.InstancePCIRequest = attrs.field(init=False, eq=False, hash=False, repr=False)

    @probe.default
    def _probe(self) -> objects.InstancePCIRequest:
        probe = self.request.obj_clone()
        probe.count = 0
        return probe

    @property
    def matching(self) -> Hashable:
        """The inputs that decide which pools the alias matches; a part of cache keys."""
        spec = tuple(tuple(sorted(part.items())) for part in self.request.spec)
        return (self.want.key, self.kind, spec)


@attrs.frozen
class PortKind:
    """Direct ports of Neutron with equal requirements for an adapter.

    Nova has one request for each port. It does not request the device from Placement
    (``_get_rp_uuids_for_request`` of nova/pci/stats.py, 32 to 34).
    """

    ports: Ports
    requests: tuple[objects.InstancePCIRequest, ...] = attrs.field(eq=False, hash=False, repr=False)
    #: Each port's request to Placement for its adapter; None if it has none.
    bandwidth: Bandwidth | None = None
    #: As :attr:`WantedDevice.probe`.
    probe: objects.InstancePCIRequest = attrs.field(init=False, eq=False, hash=False, repr=False)

    @probe.default
    def _probe(self) -> objects.InstancePCIRequest:
        probe = self.requests[0].obj_clone()
        probe.count = 0
        return probe

    @property
    def matching(self) -> Hashable:
        """The inputs that decide which pools the ports match; a part of cache keys."""
        return (self.ports.key, _matching_of_request(self.requests[0]))


@attrs.frozen
class ServerTask:
    """The requirements of one request specification, parsed once for all hosts."""

    server: ServerSpec
    devices: tuple[WantedDevice, ...]
    ports: tuple[PortKind, ...] = ()
    #: Equal for requests for the same kinds of devices.
    matching: int = attrs.field(init=False)
    #: Equal for requests with the same requirements.
    shape: int = attrs.field(init=False)

    @matching.default
    def _matching(self) -> int:
        devices = tuple(device.matching for device in self.devices)
        # The result of a pool also contains the number of aliases that it serves.
        aliases = tuple(CONF.pci.alias)
        return _number_of_shape(
            ("matching", devices, tuple(kind.matching for kind in self.ports), aliases)
        )

    @shape.default
    def _shape(self) -> int:
        server = self.server
        specs = tuple(sorted(server.extra_specs.items()))
        return _number_of_shape(
            (
                *("shape", self.matching, server.wants, specs, server.cells),
                *(server.numa_policy, server.ports, server.port_roles),
            )
        )

    @property
    def kinds(self) -> Mapping[DeviceKind, int]:
        """Map each kind of device in Placement to the number of devices that the server wants."""
        counts: collections.Counter[DeviceKind] = collections.Counter()
        for device in self.devices:
            counts[device.kind] += device.want.count
        return counts

    @property
    def units(self) -> tuple[RequestedDevice, ...]:
        """The single devices that the server requests from Placement."""
        return tuple(unit for device in self.devices for unit in device.units)

    @property
    def bandwidth(self) -> Mapping[str, Bandwidth]:
        """Map the UUID of the request group of each port with bandwidth to its bandwidth."""
        return {
            str(request.requester_id): kind.bandwidth
            for kind in self.ports
            if kind.bandwidth is not None
            for request in kind.requests
        }

    @property
    def key(self) -> tuple[str, ...]:
        """A key that differs between requests which share a host state."""
        return tuple(str(device.request.request_id) for device in self.devices)


def _number_of_shape(key: Hashable) -> int:
    try:
        return _SHAPES.get(key, cache.next_unique_number)
    except TypeError:
        # It is not hashable, so not Nova's, and gets a number of its own.
        return cache.next_unique_number()


def read_server_spec(
    flavor: objects.Flavor,
    image: objects.ImageMeta,
    requests: objects.InstancePCIRequests | None,
    topology: objects.InstanceNUMATopology | None,
    claimed: bool = False,
    groups: Sequence[objects.RequestGroup] = (),
) -> ServerSpec:
    """Read the device requirements of a server with this flavor and image.

    :param requests: of the flavor's aliases, and of Neutron's direct ports.
    :param claimed: *topology* is from a claim, and contains the hosts' nodes.
    :param groups: its request groups in Placement, ports included.
    :raises nova.exception.NovaException: flavor and image contradict each other.
    """
    flavor_requests = alias_requests(requests)
    return ServerSpec(
        extra_specs=dict(flavor.extra_specs or {}),
        wants=tuple(
            # Nova's own ids are new in every request; the position serves as well.
            Want(str(index), request.alias_name or str(request.request_id), request.count)
            for index, request in enumerate(flavor_requests)
        ),
        cells=read_numa_cells(topology, claimed),
        numa_policy=numa_policy_of_request(flavor, image, flavor_requests),
        ports=tuple(kind.ports for kind in port_kinds(requests, groups)),
        port_roles=read_port_roles(),
    )


def read_port_roles() -> tuple[str, ...]:
    """Return the roles that ``[hpc]port_roles`` gives to physical networks."""
    return roles.list_network_roles(CONF.hpc.port_roles)


def port_requests(requests: objects.InstancePCIRequests | None) -> list[objects.InstancePCIRequest]:
    """Return Nova's PCI requests for direct ports of Neutron, in their order."""
    return _requests_from(requests, objects.InstancePCIRequest.NEUTRON_PORT)


def _requests_from(
    requests: objects.InstancePCIRequests | None, source: int
) -> list[objects.InstancePCIRequest]:
    return [
        request for request in (requests.requests if requests else ()) if request.source == source
    ]


def port_kinds(
    requests: objects.InstancePCIRequests | None, groups: Sequence[objects.RequestGroup] = ()
) -> tuple[PortKind, ...]:
    """Group the direct ports of a server by their requirements for an adapter.

    :param groups: the server's request groups in Placement, which contain the bandwidth of
        ports. A node does not need them: Nova has bound such a port to its adapter by then.
    """
    kinds: dict[Hashable, list[objects.InstancePCIRequest]] = {}
    wanted: dict[Hashable, Bandwidth | None] = {}
    for request in port_requests(requests):
        asked = bandwidth.bandwidth_of_request(request, groups)
        key = (_matching_of_request(request), asked)
        kinds.setdefault(key, []).append(request)
        wanted[key] = asked
    return tuple(
        PortKind(
            Ports(
                key=f"{PORT} {number}",
                name=roles.role_of_network(
                    CONF.hpc.port_roles, _device_spec_of_port(kind_requests[0]).get(_NETWORK)
                )
                or PORT,
                count=len(kind_requests),
                network=_describe_port_network(_device_spec_of_port(kind_requests[0]), wanted[key]),
            ),
            tuple(kind_requests),
            wanted[key],
        )
        for number, (key, kind_requests) in enumerate(kinds.items())
    )


#: The tag of a pool, and the key of a port's request, that names the physical network.
_NETWORK: Final = pci_request.PCI_NET_TAG


def _matching_of_request(request: objects.InstancePCIRequest) -> Hashable:
    spec = tuple(
        tuple(sorted((key, str(value)) for key, value in part.items())) for part in request.spec
    )
    policy = request.numa_policy if "numa_policy" in request else None
    return (spec, policy)


def _device_spec_of_port(request: objects.InstancePCIRequest) -> Mapping[str, str | None]:
    """Return the first device spec of a port's PCI request; empty if Nova gives it none."""
    return next(iter(request.spec), {})


def _describe_port_network(spec: Mapping[str, str | None], asked: Bandwidth | None) -> str:
    network = spec.get(_NETWORK)
    text = f"physical network {network}" if network else "no physical network"
    more = [
        word
        for word, key in (("trusted", "trusted"), ("remotely managed", "remote_managed"))
        if str(spec.get(key)).lower() == "true"
    ]
    if spec.get("dev_type") == fields.PciDeviceType.SRIOV_PF:
        more.append("whole adapters")
    if spec.get("parent_ifname"):
        more.append("the interface that its bandwidth is of")
    if asked is not None:
        more.append(f"with {asked}")
    return ", ".join([text, *more])


def alias_requests(
    requests: objects.InstancePCIRequests | None,
) -> list[objects.InstancePCIRequest]:
    """Return Nova's PCI requests for the flavor's aliases, without the requests for ports."""
    return _requests_from(requests, objects.InstancePCIRequest.FLAVOR_ALIAS)


def numa_policy_of_request(
    flavor: objects.Flavor, image: objects.ImageMeta, requests: Sequence[objects.InstancePCIRequest]
) -> str | None:
    """Return the NUMA policy that binds all devices of a flavor; None if it has no devices.

    Nova combines them in this way when it creates a server (release 34, compute/api.py:1173 and
    pci/request.py:250; 33 and 32 alike). The policy of the flavor or the image replaces the policy
    of every alias. Without one, each request keeps the policy of its own alias, ``legacy`` by
    default. On a resize (compute/api.py:4436, compute/resource_tracker.py:343) Nova loses flavor
    and image, and the requests carry the aliases' policies. The flavor and the image still count
    here, and each candidate is checked for whether Nova takes its devices.

    If aliases differ, the strictest policy binds the server: every group has devices of every
    alias, so a condition for one of them holds for its whole group.

    :param requests: of the flavor's aliases.
    :raises nova.exception.NovaException: flavor and image contradict each other.
    """
    if not requests:
        return None
    policy: str | None = hardware.get_pci_numa_policy_constraint(flavor, image)
    own = {
        (request.numa_policy if "numa_policy" in request else None)
        or fields.PCINUMAAffinityPolicy.LEGACY
        for request in requests
    }
    return policy or min(own, key=_STRICTEST.index)


def read_numa_cells(
    topology: objects.InstanceNUMATopology | None, claimed: bool = False
) -> tuple[WantedCell, ...]:
    """Convert the guest's NUMA cells for the placement engine; () if it has none.

    :param claimed: Nova has fitted them to a host. It writes the number of the
        host's node over the number of each cell (virt/hardware.py:1150, 1340 and
        2848 of release 34), and keeps their order. So the position is the
        name of a cell, before and after.
    """
    if not topology:
        return ()
    cells = []
    for index, cell in enumerate(topology.cells):
        cpus = len(cell.pcpuset or ())
        if index == 0 and cpus and topology.emulator_threads_isolated:
            cpus += 1  # one more, in addition to the first cell's
        page = cell.pagesize if "pagesize" in cell else None
        cells.append(
            WantedCell(
                id=index,
                dedicated_cpus=cpus,
                memory_kib=cell.memory * 1024,
                # Negative values stand for "large", "small" and "any".
                page_kib=page if page and page > 0 else None,
                host_node=cell.id if claimed else None,
            )
        )
    return tuple(cells)


def read_guest_cells(
    topology: objects.InstanceNUMATopology | None,
) -> tuple[guest_document.DocumentCell, ...]:
    """Convert the guest's NUMA cells for the document that the guest gets; () if it has none."""
    return tuple(
        guest_document.DocumentCell(
            cpus=len((cell.cpuset or set()) | (cell.pcpuset or set())),
            memory_kib=spec_cell.memory_kib,
            page_kib=spec_cell.page_kib,
            host_node=cell.id,
        )
        for cell, spec_cell in zip(
            topology.cells if topology else (), read_numa_cells(topology, claimed=True), strict=True
        )
    )


def read_server_task(spec: objects.RequestSpec) -> ServerTask:
    """Read the requirements of a request specification.

    :raises nova_hpc.placement.grouping.FlavorError: it requests no devices, or more
        than any host has. Nova accepts any count (pci/request.py:244 of release 34).
    :raises RequestError: PCI in Placement was off when the request was made.
    :raises nova.exception.NovaException: flavor and image contradict each other.
    """
    requests = spec.pci_requests if "pci_requests" in spec else None
    image = spec.image if "image" in spec and spec.image else no_image()
    topology = spec.numa_topology if "numa_topology" in spec else None
    requested_groups = spec.requested_resources if "requested_resources" in spec else None
    groups = [group for group in requested_groups or () if group.requester_id]
    server = read_server_spec(spec.flavor, image, requests, topology, groups=groups)
    check_wants(server.wants)
    return ServerTask(
        server=server,
        devices=tuple(
            _read_wanted_device(want, request, groups)
            for want, request in zip(server.wants, alias_requests(requests), strict=True)
        ),
        ports=port_kinds(requests, groups),
    )


def read_flavor_task(flavor: objects.Flavor, image: objects.ImageMeta | None = None) -> ServerTask:
    """Parse the requirements of a server with this flavor and image, before the server exists.

    :param image: an image without requirements if None.
    :raises nova.exception.NovaException: Nova refuses the two.
    :raises ValueError: Nova refuses the two.
    """
    image = image or no_image()
    policy = hardware.get_pci_numa_policy_constraint(flavor, image)
    spec = objects.RequestSpec(
        flavor=flavor,
        image=image,
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=pci_request.get_pci_requests_from_flavor(flavor, affinity_policy=policy),
        requested_resources=[],
    )
    spec.generate_request_groups_from_pci_requests()
    return read_server_task(spec)


def no_image() -> objects.ImageMeta:
    """Return image metadata without any requirement."""
    return objects.ImageMeta.from_dict({})


def _read_wanted_device(
    want: Want, request: objects.InstancePCIRequest, groups: Iterable[objects.RequestGroup]
) -> WantedDevice:
    # Nova names the groups of a request <request_id>-<index>.
    own_groups = [group for group in groups if group.requester_id.startswith(request.request_id)]
    if len(own_groups) != request.count:
        raise RequestError(
            f"the request for {request.count} {want.name} has {len(own_groups)} groups in "
            f"Placement; {_IN_PLACEMENT}",
            _IN_PLACEMENT,
        )
    classes = {name for group in own_groups for name in group.resources}
    if len(classes) != 1:
        raise RequestError(f"the request for {want.name} names {len(classes)} resource classes")
    resource_class = classes.pop()
    traits = {trait for group in own_groups for trait in group.required_traits}
    return WantedDevice(
        want=want,
        request=request,
        kind=DeviceKind(resource_class, frozenset(traits)),
        units=tuple(RequestedDevice(group.requester_id, resource_class) for group in own_groups),
    )
