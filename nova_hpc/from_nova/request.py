"""Reads what a request specification asks for, the same for every host."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

import attrs
from nova import objects
from nova.objects import fields
from nova.pci import request as pci_request
from nova.virt import hardware

from nova_hpc.from_nova import cache
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.candidates import Unit
from nova_hpc.from_nova.providers import Kind
from nova_hpc.placement.model import Cell, Want

#: What Nova makes of each policy for the devices of a host whose NUMA nodes are
#: known, the strictest first: nova/pci/stats.py of release 34, lines 393-476.
_STRICTEST: Final = (
    fields.PCINUMAAffinityPolicy.REQUIRED,
    fields.PCINUMAAffinityPolicy.LEGACY,
    fields.PCINUMAAffinityPolicy.SOCKET,
    fields.PCINUMAAffinityPolicy.PREFERRED,
)

#: Short names of the long keys that say what a request asks for.
_SHAPES: Final[Cache[int]] = Cache()


class RequestError(ValueError):
    """A request that this release cannot read; the text is for operators."""


@attrs.frozen
class Device:
    """One alias of the flavor, as Nova and Placement know it."""

    want: Want
    request: objects.InstancePCIRequest = attrs.field(eq=False, hash=False, repr=False)
    kind: Kind
    units: tuple[Unit, ...]
    #: The request for none of them: Nova answers None where there are fewer
    #: devices than requested, and the question is which would do.
    probe: objects.InstancePCIRequest = attrs.field(init=False, eq=False, hash=False, repr=False)

    @probe.default
    def _probe(self) -> objects.InstancePCIRequest:
        probe = self.request.obj_clone()
        probe.count = 0
        return probe

    @property
    def matching(self) -> Hashable:
        """What decides which pools it matches, and nothing else."""
        spec = tuple(tuple(sorted(each.items())) for each in self.request.spec)
        return (self.want.key, self.kind, spec)


@attrs.frozen
class Task:
    """What a request specification asks for, the same for every host."""

    extra_specs: Mapping[str, str]
    devices: tuple[Device, ...]
    cells: tuple[Cell, ...]
    #: What Nova will follow: the flavor's, the image's or the alias's policy.
    numa_policy: str | None = None
    #: Equal for requests that want the same kinds of devices.
    matching: int = attrs.field(init=False)
    #: Equal for requests that want the same altogether.
    shape: int = attrs.field(init=False)

    @matching.default
    def _matching(self) -> int:
        return _number(("matching", *(device.matching for device in self.devices)))

    @shape.default
    def _shape(self) -> int:
        specs = tuple(sorted(self.extra_specs.items()))
        return _number(("shape", self.matching, self.wants, specs, self.cells, self.numa_policy))

    @property
    def wants(self) -> tuple[Want, ...]:
        """The devices in the engine's words."""
        return tuple(device.want for device in self.devices)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Every single device."""
        return tuple(unit for device in self.devices for unit in device.units)

    @property
    def key(self) -> tuple[str, ...]:
        """Tells one request from another on a host state."""
        return tuple(str(device.request.request_id) for device in self.devices)


def _number(key: Hashable) -> int:
    try:
        return _SHAPES.get(key, cache.number)
    except TypeError:
        # Not hashable, so not Nova's: like no other.
        return cache.number()


def read_task(spec: objects.RequestSpec) -> Task:
    """Read a request specification.

    Requests of Neutron ports are left out: they stay Nova's business.

    :raises RequestError: PCI in Placement was off when the request was made.
    """
    extra_specs = dict(spec.flavor.extra_specs or {})
    requests = []
    if "pci_requests" in spec and spec.pci_requests:
        requests = [
            request
            for request in spec.pci_requests.requests
            if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS
        ]
    groups = []
    if "requested_resources" in spec and spec.requested_resources:
        groups = [group for group in spec.requested_resources if group.requester_id]
    devices = tuple(
        _read_device(str(index), request, groups) for index, request in enumerate(requests)
    )
    image = spec.image if "image" in spec and spec.image else objects.ImageMeta.from_dict({})
    return Task(
        extra_specs=extra_specs,
        devices=devices,
        cells=_read_cells(spec),
        numa_policy=numa_policy(spec.flavor, image, requests),
    )


def numa_policy(
    flavor: objects.Flavor,
    image: objects.ImageMeta,
    requests: Iterable[objects.InstancePCIRequest],
) -> str | None:
    """The NUMA policy that binds all devices of a flavor; None: it asks for none.

    As Nova combines them when it makes a server (release 34, compute/api.py:1173
    and pci/request.py:250; 33 and 32 alike): the policy of the flavor or the image
    replaces that of every alias, and without one each request keeps the policy of
    its own alias, ``legacy`` by default. On a resize (compute/api.py:4436,
    compute/resource_tracker.py:343) Nova forgets flavor and image, and the
    requests carry the aliases' policies; the user's word counts here all the
    same, and that Nova takes the devices is checked for each candidate.

    Where aliases differ the strictest binds the server: every group has devices
    of every alias, so what one of them must have, all of its group have.

    :param requests: of a server; those of Neutron's ports do not count.
    :raises nova.exception.NovaException: flavor and image contradict each other.
    """
    mine = [each for each in requests if each.source == objects.InstancePCIRequest.FLAVOR_ALIAS]
    if not mine:
        return None
    policy: str | None = hardware.get_pci_numa_policy_constraint(flavor, image)
    own = {
        (each.numa_policy if "numa_policy" in each else None) or fields.PCINUMAAffinityPolicy.LEGACY
        for each in mine
    }
    return policy or min(own, key=_STRICTEST.index)


def read_flavor(flavor: objects.Flavor) -> Task:
    """What a server of *flavor* asks for, with an image that asks for nothing.

    :raises nova.exception.NovaException: Nova refuses the flavor.
    :raises ValueError: likewise.
    """
    image = objects.ImageMeta.from_dict({})
    policy = hardware.get_pci_numa_policy_constraint(flavor, image)
    spec = objects.RequestSpec(
        flavor=flavor,
        image=image,
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=pci_request.get_pci_requests_from_flavor(flavor, affinity_policy=policy),
        requested_resources=[],
    )
    spec.generate_request_groups_from_pci_requests()
    return read_task(spec)


def _read_device(
    key: str, request: objects.InstancePCIRequest, groups: Sequence[objects.RequestGroup]
) -> Device:
    # Nova names the groups of a request <request_id>-<index>.
    mine = [group for group in groups if group.requester_id.startswith(request.request_id)]
    if len(mine) != request.count:
        raise RequestError(
            f"the request for {request.count} {request.alias_name} has {len(mine)} groups in "
            "Placement; set [filter_scheduler]pci_in_placement = True for the scheduler, "
            "the conductor and the API"
        )
    classes = {name for group in mine for name in group.resources}
    if len(classes) != 1:
        raise RequestError(
            f"the request for {request.alias_name} names {len(classes)} resource classes"
        )
    resource_class = classes.pop()
    traits = {trait for group in mine for trait in group.required_traits}
    return Device(
        # Nova's own ids are new in every request; the position is as good.
        want=Want(key=key, name=request.alias_name, count=request.count),
        request=request,
        kind=Kind(resource_class, frozenset(traits)),
        units=tuple(Unit(group.requester_id, resource_class) for group in mine),
    )


def _read_cells(spec: objects.RequestSpec) -> tuple[Cell, ...]:
    topology = spec.numa_topology if "numa_topology" in spec else None
    if not topology:
        return ()
    cells = []
    # Nova overwrites the ids of guest cells with those of host cells when it
    # fits them, so the position is the cell's name.
    for index, cell in enumerate(topology.cells):
        cpus = len(cell.pcpuset)
        if index == 0 and cpus and topology.emulator_threads_isolated:
            cpus += 1
        page = cell.pagesize if "pagesize" in cell else None
        cells.append(
            Cell(
                id=index,
                dedicated_cpus=cpus,
                memory_kib=cell.memory * 1024,
                # Negative values stand for "large", "small" and "any".
                page_kib=page if page and page > 0 else None,
            )
        )
    return tuple(cells)
