"""Reads what a request specification asks for, the same for every host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
from nova import objects
from nova.objects import fields

from nova_hpc.placement.model import Cell, Want
from scheduler_filters.candidates import Unit
from scheduler_filters.providers import Kind

#: Where the aliases of a flavor differ, the server is bound by the strictest.
_STRICTEST: Final = (
    fields.PCINUMAAffinityPolicy.REQUIRED,
    fields.PCINUMAAffinityPolicy.SOCKET,
    fields.PCINUMAAffinityPolicy.LEGACY,
    fields.PCINUMAAffinityPolicy.PREFERRED,
)


class RequestError(ValueError):
    """A request that this release cannot read; the text is for operators."""


@attrs.frozen
class Device:
    """One alias of the flavor, as Nova and Placement know it."""

    want: Want
    request: objects.InstancePCIRequest = attrs.field(eq=False, hash=False, repr=False)
    kind: Kind
    units: tuple[Unit, ...]


@attrs.frozen
class Task:
    """What a request specification asks for, the same for every host."""

    extra_specs: Mapping[str, str]
    devices: tuple[Device, ...]
    cells: tuple[Cell, ...]
    #: What Nova will follow: the flavor's, the image's or the alias's policy.
    numa_policy: str | None = None

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
        return tuple(device.want.key for device in self.devices)


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
    devices = tuple(_read_device(request, groups) for request in requests)
    policies = {request.numa_policy for request in requests if "numa_policy" in request}
    policies.discard(None)
    return Task(
        extra_specs=extra_specs,
        devices=devices,
        cells=_read_cells(spec),
        numa_policy=next((each for each in _STRICTEST if each in policies), None),
    )


def _read_device(
    request: objects.InstancePCIRequest, groups: Sequence[objects.RequestGroup]
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
        want=Want(key=request.request_id, name=request.alias_name, count=request.count),
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
