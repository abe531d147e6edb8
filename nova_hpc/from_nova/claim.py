"""Nova's records in the engine's words: what is offered, what a server claims."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from nova import exception, objects
from nova.pci import whitelist
from oslo_log import log as logging

from nova_hpc.from_nova import request as request_reader
from nova_hpc.placement import flavor as flavors
from nova_hpc.placement.model import Cell, Want
from nova_hpc.tenancy.health import Offer
from nova_hpc.topology.model import AddressError, Function, Node, normalise_address
from nova_hpc.wire import tags
from nova_hpc.wire.tags import Tags

LOG = logging.getLogger(__name__)


@attrs.frozen
class Specs:
    """The entries of ``[pci]device_spec``."""

    matcher: whitelist.Whitelist

    @classmethod
    def parse(cls, device_spec: Sequence[str]) -> Specs:
        """Read the option.

        :raises nova.exception.PciConfigInvalidSpec: as Nova itself would.
        """
        return cls(whitelist.Whitelist(device_spec))

    @property
    def tagged(self) -> bool:
        """Whether any entry has ``hpc_*`` tags: the project is in use here."""
        return any(hpc_tags(spec.tags) for spec in self.matcher.specs)

    def entry_of(self, device: Mapping[str, Any]) -> Mapping[str, str] | None:
        """The tags of the entry that matches a device as libvirt reports it."""
        try:
            spec = self.matcher.device_assignable(dict(device))
        except exception.NovaException:
            # An address that Nova cannot read (32-bit domain): it skips it too.
            return None
        return None if spec is None else spec.tags

    def offers(
        self, node: Node, devices: Iterable[Mapping[str, Any]] = ()
    ) -> dict[str, tuple[Offer, Mapping[str, str]]]:
        """Every function that an entry matches, with the entry's tags.

        :param node: a fresh reading of the node.
        :param devices: more devices, as libvirt reports them.
        """
        found = {}
        for device in [*map(_describe, node.functions), *devices]:
            entry = self.entry_of(device)
            if entry is None:
                continue
            try:
                address = normalise_address(device["address"])
            except AddressError:
                continue
            # Nova's network devices are always rebound by libvirt.
            managed = entry.get("managed") != "false" or "physical_network" in entry
            found[address] = (Offer(address, managed, entry.get(tags.GROUP)), entry)
        return found


def hpc_tags(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The ``hpc_*`` tags alone."""
    return {key: value for key, value in entry.items() if key.startswith("hpc_")}


def _describe(function: Function) -> dict[str, Any]:
    return {
        "address": function.address,
        "vendor_id": function.vendor_id or "",
        "product_id": function.product_id or "",
        "parent_addr": function.physical_function,
        "dev_type": function.dev_type,
    }


def place_of(function: Function | None, entry: Mapping[str, str] | None) -> Tags:
    """Role and unit as the entry says, the place as the node was just read."""
    known = None
    try:
        known = tags.parse(entry or {})
    except tags.TagError as error:
        LOG.warning("A device_spec entry is not used: %s", error)
    known = known or Tags(location=tags.Location())
    return known if function is None else attrs.evolve(known, location=function.location)


@attrs.frozen
class Claim:
    """What one server has, or is about to have, on a node."""

    extra_specs: Mapping[str, str]
    wants: tuple[Want, ...]
    #: Want.key -> addresses of the devices that Nova claimed for it.
    claimed: Mapping[str, tuple[str, ...]]
    #: Addresses of the devices of Neutron's direct ports.
    ports: tuple[str, ...]
    cells: tuple[Cell, ...]
    #: Nova's NUMA policy, as the scheduler reads it.
    numa_policy: str | None
    #: Addresses that Nova lets libvirt bind to vfio-pci, as it records them.
    managed: frozenset[str]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every claimed device."""
        return tuple(sorted([*self.ports, *itertools.chain(*self.claimed.values())]))

    def with_port(self, address: str) -> Claim:
        """The same with the device of one more direct port."""
        address = normalise_address(address)
        return attrs.evolve(self, ports=tuple(sorted({*self.ports, address})))

    @classmethod
    def of(cls, instance: objects.Instance) -> Claim:
        """What *instance* has here."""
        return _claim(
            instance.flavor,
            instance.image_meta,
            instance.pci_requests,
            instance.pci_devices,
            instance.numa_topology,
        )

    @classmethod
    def of_move(cls, instance: objects.Instance, flavor: objects.Flavor) -> Claim | None:
        """What *instance* has claimed where it moves to; None: it does not move."""
        move = instance.migration_context
        if move is None:
            return None
        return _claim(
            flavor,
            instance.image_meta,
            move.new_pci_requests,
            move.new_pci_devices,
            move.new_numa_topology,
        )


def _claim(
    flavor: objects.Flavor,
    image: objects.ImageMeta,
    requests: objects.InstancePCIRequests | None,
    devices: objects.PciDeviceList | None,
    topology: objects.InstanceNUMATopology | None,
) -> Claim:
    by_request: dict[str | None, list[str]] = {}
    managed: set[str] = set()
    for device in sorted(devices or (), key=lambda device: device.address):
        address = normalise_address(device.address)
        by_request.setdefault(device.request_id, []).append(address)
        if device.extra_info.get("managed", "true") == "true":
            managed.add(address)
    wants, claimed = [], {}
    listed = list(requests.requests) if requests else []
    for request in listed:
        if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS:
            key = str(request.request_id)
            name = request.alias_name or key
            wants.append(Want(key=key, name=name, count=request.count))
            claimed[key] = tuple(by_request.pop(request.request_id, ()))
    return Claim(
        extra_specs=dict(flavor.extra_specs or {}),
        wants=tuple(wants),
        claimed=claimed,
        ports=tuple(address for rest in by_request.values() for address in rest),
        cells=_cells(topology),
        numa_policy=request_reader.numa_policy(flavor, image, listed),
        managed=frozenset(managed),
    )


def _cells(topology: objects.InstanceNUMATopology | None) -> tuple[Cell, ...]:
    """The guest's cells; a claimed cell's id is the host's NUMA node."""
    cells = topology.cells if topology else ()
    return tuple(
        Cell(
            id=index,
            dedicated_cpus=len(cell.pcpuset or ()),
            memory_kib=cell.memory * 1024,
            page_kib=cell.pagesize if cell.pagesize and cell.pagesize > 0 else None,
            host_node=cell.id,
        )
        for index, cell in enumerate(cells)
    )


def has_hpc_keys(instance: objects.Instance) -> bool:
    """Whether the server's flavor asks for anything of this project's."""
    return flavors.has_hpc_keys(instance.flavor.extra_specs or {})
