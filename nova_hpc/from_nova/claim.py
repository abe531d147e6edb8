# SPDX-License-Identifier: Apache-2.0
"""Nova's records in the engine's words: the offered devices, and the devices of a claim."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from nova import exception, objects
from nova.pci import whitelist
from oslo_log import log as logging

from nova_hpc.from_nova import hosts, server
from nova_hpc.placement import flavor as flavors
from nova_hpc.placement.grouping import PORT
from nova_hpc.placement.model import DevicePool, FreeHost, HostNode, Ports
from nova_hpc.placement.server import ServerSpec
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.topology.model import AddressError, Node, PciFunction, normalise_address
from nova_hpc.wire import tags
from nova_hpc.wire.tags import Tags
from nova_hpc_common.level import Location

LOG = logging.getLogger(__name__)


@attrs.frozen
class Specs:
    """The parsed entries of ``[pci]device_spec`` of this compute node."""

    matcher: whitelist.Whitelist

    @classmethod
    def parse(cls, device_spec: Sequence[str]) -> Specs:
        """Parse the values of ``[pci]device_spec``.

        :raises nova.exception.PciConfigInvalidSpec: like Nova itself.
        """
        return cls(whitelist.Whitelist(device_spec))

    @property
    def tagged(self) -> bool:
        """Whether any entry has ``hpc_*`` tags, so that nova-hpc is in use on this node."""
        return any(hpc_tags(spec.tags) for spec in self.matcher.specs)

    def entry_of(self, device: Mapping[str, Any]) -> Mapping[str, str] | None:
        """Return the tags of the ``device_spec`` entry that matches a device from libvirt's list.

        None if no entry does, or if Nova cannot match the device.
        """
        try:
            spec = self.matcher.device_assignable(dict(device))
        except exception.NovaException:
            # An address that Nova cannot read (32-bit domain): Nova skips it, too.
            return None
        return None if spec is None else spec.tags

    def offers(
        self, node: Node, devices: Iterable[Mapping[str, Any]] = ()
    ) -> dict[str, tuple[OfferedFunction, Mapping[str, str]]]:
        """Find every PCI function that an entry matches, with the entry's tags.

        :param node: a fresh reading of the node.
        :param devices: more devices, as libvirt reports them.
        :returns: PCI address -> the function and the tags.
        """
        offers_by_address = {}
        for device in [*map(_describe_as_libvirt, node.functions), *devices]:
            entry = self.entry_of(device)
            if entry is None:
                continue
            try:
                address = normalise_address(device["address"])
            except AddressError:
                continue
            # libvirt always rebinds Nova's network devices.
            managed = entry.get("managed") != "false" or "physical_network" in entry
            offer = OfferedFunction(
                address, managed, entry.get(tags.GROUP), tagged=bool(hpc_tags(entry))
            )
            offers_by_address[address] = (offer, entry)
        return offers_by_address


def hpc_tags(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``hpc_*`` tags of an entry of ``[pci]device_spec``."""
    return {key: value for key, value in entry.items() if key.startswith("hpc_")}


def _describe_as_libvirt(function: PciFunction) -> dict[str, Any]:
    return {
        "address": function.address,
        "vendor_id": function.vendor_id or "",
        "product_id": function.product_id or "",
        "parent_addr": function.physical_function,
        "dev_type": function.dev_type,
    }


def tags_of_function(function: PciFunction | None, entry: Mapping[str, str] | None) -> Tags:
    """Build a PCI function's tags: role and IOMMU unit from its entry, its place from the node.

    A broken tag is logged, and all tags of the entry are ignored.

    :param function: from the last reading of the node; None if it is not there.
    """
    entry_tags = None
    try:
        entry_tags = tags.parse_tags(entry or {})
    except tags.TagError as error:
        LOG.warning("A device_spec entry is not used: %s", error)
    entry_tags = entry_tags or Tags(location=Location())
    if function is None:
        return entry_tags
    place, written = function.location, entry_tags.location
    if place.socket is None and place.numa is not None and place.numa == written.numa:
        # All CPUs of the NUMA node are switched off, so the kernel does not report its socket.
        place = attrs.evolve(place, socket=written.socket)
    return attrs.evolve(entry_tags, location=place)


@attrs.frozen
class ServerClaim:
    """The devices that one server has claimed on a node, or is about to claim."""

    server: ServerSpec
    #: Want.key -> addresses of the devices that Nova claimed for it.
    claimed: Mapping[str, tuple[str, ...]]
    #: Ports.key -> addresses of the devices of Neutron's direct ports.
    of_ports: Mapping[str, tuple[str, ...]]
    #: Addresses that Nova lets libvirt bind to vfio-pci, from Nova's records.
    managed: frozenset[str]

    @property
    def ports(self) -> tuple[str, ...]:
        """Addresses of the devices of Neutron's direct ports."""
        return tuple(sorted(itertools.chain(*self.of_ports.values())))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of all claimed devices, sorted."""
        return tuple(sorted([*self.ports, *itertools.chain(*self.claimed.values())]))

    def host(self, places: Mapping[str, Tags], node: Node) -> tuple[FreeHost, tuple[str, ...]]:
        """Build a host model with only the claimed devices, and list incomplete NVLink sets.

        An NVLink set does not count if the server got only a part of it.

        :param places: role and place of every claimed device.
        :param node: the node of the devices.
        """
        given = {**self.claimed, **self.of_ports}
        serves = {address: key for key, addresses in given.items() for address in addresses}
        devices = []
        for address in self.addresses:
            tags, function = places[address], node.function(address)
            pool = DevicePool(
                id=address,
                name=address,
                location=tags.location,
                free=1,
                serves=frozenset({serves[address]} if address in serves else ()),
                role=tags.role,
            )
            shared = function is not None and function.physical_function is not None
            devices.append(hosts.HostDevice(pool, tags.nvlink, shared))
        # The kernel reports no socket for a NUMA node whose CPUs are all switched off.
        sockets = {place.location.numa: place.location.socket for place in places.values()}
        sockets |= {each.id: each.socket for each in node.numa_nodes if each.socket is not None}
        numbers = {cell.host_node for cell in self.server.cells if cell.host_node is not None}
        nodes = tuple(HostNode(id=number, socket=sockets.get(number)) for number in sorted(numbers))
        return hosts.build_engine_host("claimed", devices, nodes)

    def with_port(self, address: str) -> ServerClaim:
        """Return a copy with the device of one more direct port, at the PCI address *address*."""
        address = normalise_address(address)
        if address in self.ports:
            return self
        more = Ports(f"port {address}", PORT, 1)
        return attrs.evolve(
            self,
            server=attrs.evolve(self.server, ports=(*self.server.ports, more)),
            of_ports={**self.of_ports, more.key: (address,)},
        )

    @classmethod
    def of(cls, instance: objects.Instance) -> ServerClaim:
        """Read the claim of *instance* on this node: its requests, PCI devices and NUMA cells."""
        return _read_claim(
            instance.flavor,
            instance.image_meta,
            instance.pci_requests,
            instance.pci_devices,
            instance.numa_topology,
        )

    @classmethod
    def of_arrival(
        cls, instance: objects.Instance, devices: Iterable[objects.PciDevice]
    ) -> ServerClaim:
        """Read the claim of *instance* on the destination of its live migration.

        :param devices: those that it has claimed there.
        """
        move = instance.migration_context  # Nova makes one for a guest with NUMA cells
        topology = instance.numa_topology if move is None else move.new_numa_topology
        claim = _read_claim(
            instance.flavor, instance.image_meta, instance.pci_requests, devices, topology
        )
        # libvirt binds network devices itself.
        return attrs.evolve(claim, managed=claim.managed | frozenset(claim.ports))

    @classmethod
    def of_move(cls, instance: objects.Instance, flavor: objects.Flavor) -> ServerClaim | None:
        """Read the claim of *instance* on its destination; None if it does not move."""
        move = instance.migration_context
        if move is None:
            return None
        return _read_claim(
            flavor,
            instance.image_meta,
            move.new_pci_requests,
            move.new_pci_devices,
            move.new_numa_topology,
        )


def _read_claim(
    flavor: objects.Flavor,
    image: objects.ImageMeta,
    requests: objects.InstancePCIRequests | None,
    devices: Iterable[objects.PciDevice] | None,
    topology: objects.InstanceNUMATopology | None,
) -> ServerClaim:
    """Read a claim from Nova's objects.

    Devices belong to the alias or port whose request they name. A device without a known request
    counts as the device of a further port.
    """
    by_request: dict[str | None, list[str]] = {}
    managed: set[str] = set()
    for device in sorted(devices or (), key=lambda device: device.address):
        address = normalise_address(device.address)
        by_request.setdefault(device.request_id, []).append(address)
        if device.extra_info.get("managed", "true") == "true":
            managed.add(address)
    claimed = {
        str(index): tuple(by_request.pop(request.request_id, ()))
        for index, request in enumerate(server.alias_requests(requests))
    }
    read = server.read_server_spec(flavor, image, requests, topology, claimed=True)
    of_ports: dict[str, tuple[str, ...]] = {}
    ports = []
    for kind in server.port_kinds(requests):
        addresses = [
            address
            for request in kind.requests
            for address in by_request.pop(request.request_id, ())
        ]
        # A port without a device is not a direct port: Nova binds it in another way.
        if addresses:
            ports.append(attrs.evolve(kind.ports, count=len(addresses)))
            of_ports[kind.ports.key] = tuple(addresses)
    claim = ServerClaim(
        server=attrs.evolve(read, ports=tuple(ports)),
        claimed=claimed,
        of_ports=of_ports,
        managed=frozenset(managed),
    )
    for rest in by_request.values():
        for address in rest:  # of no known request
            claim = claim.with_port(address)
    return claim


def instance_has_hpc_keys(instance: objects.Instance) -> bool:
    """Whether the server's flavor has keys of this project."""
    return flavors.has_hpc_keys(instance.flavor.extra_specs or {})
