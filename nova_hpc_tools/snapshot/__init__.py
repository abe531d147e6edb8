# SPDX-License-Identifier: Apache-2.0
"""A cloud at one moment, with the facts that placement needs. Data only.

A snapshot is the only form in which this package sees a cloud: ``explain`` and ``simulate`` use
one, either freshly read or from a file. Nova's own functions evaluate flavors and aliases when the
snapshot is taken, so nothing here depends on Nova.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

import attrs

from nova_hpc.placement import profile as profiles
from nova_hpc.placement import roles as hpc_roles
from nova_hpc.placement.model import (
    DevicePool,
    DeviceSet,
    FreeHost,
    HostNode,
    Request,
    Want,
    WantedCell,
)
from nova_hpc.placement.server import ServerSpec
from nova_hpc.wire.decision import Decision
from nova_hpc.wire.decision import read_decision as read_decision
from nova_hpc_common.level import Location
from nova_hpc_common.outside import text as text_of_others
from nova_hpc_tools.snapshot import direct_ports
from nova_hpc_tools.snapshot.direct_ports import DirectPorts, PortAdapter


class SnapshotError(Exception):
    """A snapshot cannot be read, made or used. The text is for operators."""


def make_printable_text(text: str) -> str:
    """Make a text of users or nodes safe for a terminal; return ``?`` instead of nothing."""
    return text_of_others.printable_text(text) or "?"


def _sort_counts(value: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(value.items()))


def _sort_by_key(values: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(values.items()))


def _sort_by_name(values: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    return {name: values[name] for name in sorted(values)}


@attrs.frozen
class SnapshotAlias:
    """A PCI alias in a snapshot, as Nova understands it."""

    name: str
    #: Resource class of its devices in Placement; None if Nova refuses the alias.
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    #: The reason why Nova refuses it; None if it does not.
    problem: str | None = None


@attrs.frozen
class FlavorWant:
    """The devices of one alias that a flavor requests."""

    alias: str
    count: int


@attrs.frozen
class Flavor:
    """A flavor in a snapshot, with or without an image, and the values that Nova derives from
    it.
    """

    name: str
    id: str
    #: The image whose properties were taken into account; None if there was none.
    image: str | None = None
    vcpus: int = 0
    memory_mb: int = 0
    extra_specs: Mapping[str, str] = attrs.field(factory=dict, converter=_sort_by_key, hash=False)
    wants: tuple[FlavorWant, ...] = ()
    cells: tuple[WantedCell, ...] = ()
    #: The PCI NUMA policy that Nova follows.
    numa_policy: str | None = None
    #: The reason why Nova refuses to create servers of it; None if it does not.
    problem: str | None = None
    #: The direct ports of one server; not written to files. See :func:`flavor_with_ports`.
    ports: tuple[DirectPorts, ...] = ()
    #: The entries of ``[hpc]port_roles``; not written to files.
    port_roles: tuple[str, ...] = ()

    @property
    def server(self) -> ServerSpec:
        """The requirements of a server of this flavor, for the placement engine."""
        return ServerSpec(
            extra_specs=self.extra_specs,
            wants=tuple(
                Want(key=str(number), name=want.alias, count=want.count)
                for number, want in enumerate(self.wants)
            ),
            cells=self.cells,
            numa_policy=self.numa_policy,
            ports=direct_ports.ports_for_engine(self.ports, self.port_roles),
            port_roles=hpc_roles.list_network_roles(self.port_roles),
        )


@attrs.frozen
class FunctionUse:
    """A function of a device, and the server that has it."""

    address: str
    server: str  # UUID


@attrs.frozen
class SnapshotDevice:
    """The devices in a snapshot that are one provider in Placement and one pool in Nova.

    A physical device, or all virtual functions of one physical function.
    """

    provider: str
    #: PCI address; for virtual functions, the address of their physical function.
    address: str
    #: The number of devices that are free in both Nova and Placement.
    free: int
    location: Location = attrs.field(factory=Location)
    #: Aliases whose requests Nova and Placement would serve with it.
    aliases: frozenset[str] = frozenset()
    role: str | None = None
    #: Id of its IOMMU unit, which is given whole or not at all.
    unit: str | None = None
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    used: tuple[FunctionUse, ...] = ()
    #: Its functions are kept for these ports; None if they are for flavors.
    ports: PortAdapter | None = None


@attrs.frozen
class SnapshotNode:
    """A compute node in a snapshot: its free resources, its devices and their users."""

    host: str
    node: str
    zone: str | None = None
    #: Name of an aggregate -> its metadata.
    aggregates: Mapping[str, Mapping[str, str]] = attrs.field(
        factory=dict, converter=_sort_by_name, hash=False
    )
    #: The reason why the scheduler gives it no server with an ``hpc:`` flavor; None if it does.
    out: str | None = None
    numa: tuple[HostNode, ...] = ()
    devices: tuple[SnapshotDevice, ...] = ()
    #: All NVLink sets, free or not, as sets of providers.
    nvlink: tuple[frozenset[str], ...] = ()
    #: Devices that are reported but cannot be used, each with the reason.
    unusable: tuple[str, ...] = ()
    #: PCI address -> the reason why the node withholds the device from every server.
    withheld: Mapping[str, str] = attrs.field(factory=dict, converter=_sort_by_key, hash=False)
    #: Alias -> the number of *withheld* devices that would serve it. A missing alias has none, or
    #: the node's release does not report them.
    withheld_of: Mapping[str, int] = attrs.field(factory=dict, converter=_sort_counts, hash=False)
    #: PCI address -> the fault of a device that a server has; the node will withhold the device
    #: when that server leaves.
    ailing: Mapping[str, str] = attrs.field(factory=dict, converter=_sort_by_key, hash=False)

    @property
    def name(self) -> str:
        """The name for people: the host, and the node if it differs."""
        return self.host if self.host == self.node else f"{self.host}, {self.node}"


@attrs.frozen
class ServerCell:
    """The share that a server has of one host NUMA node."""

    numa: int
    dedicated_cpus: int = 0
    memory_kib: int = 0
    page_kib: int | None = None


@attrs.frozen
class Server:
    """A server in a snapshot that has PCI devices or a placement decision."""

    uuid: str
    name: str
    host: str
    node: str
    flavor: str
    extra_specs: Mapping[str, str] = attrs.field(factory=dict, converter=_sort_by_key, hash=False)
    #: The text of ``system_metadata['hpc_decision']``.
    decision: str | None = None
    cells: tuple[ServerCell, ...] = ()
    #: Id of the project that owns it; None if unknown.
    project: str | None = None
    #: Its owner's metadata ``hpc:until`` and ``hpc:movable``, as they are; None without them. See
    #: :mod:`nova_hpc_tools.snapshot.owner_words`.
    until: str | None = None
    movable: str | None = None
    #: The reason why Nova does not move it now, as "it is paused"; None if it does, or is unknown.
    immobile: str | None = None
    #: Whether Nova can move it while it runs, with all its devices; None if unknown.
    live: bool | None = None

    @property
    def decided(self) -> Decision | None:
        """The stored placement decision; None if there is none, or if this release cannot read
        it.
        """
        return read_decision(self.decision)


@attrs.frozen
class SnapshotGroup:
    """A server group with a hard policy: ``affinity`` or ``anti-affinity``."""

    uuid: str
    policy: str
    #: How many of its servers a host may have, by anti-affinity.
    most: int = 1
    #: UUID of a server that has a host -> the host, also of servers without devices.
    members: Mapping[str, str] = attrs.field(factory=dict, converter=_sort_by_key, hash=False)


@attrs.frozen
class SnapshotLease:
    """A lease of Blazar that ends servers at a known time."""

    name: str
    #: ISO 8601 with a time zone.
    until: str
    #: UUIDs of the servers that Blazar deletes at its end.
    servers: tuple[str, ...] = ()


@attrs.frozen
class Snapshot:
    """The state of a cloud at one moment, with everything that the scheduler reads."""

    #: When it was taken: ISO 8601, UTC.
    taken: str
    #: Version of Nova with which it was taken.
    nova: str
    #: Parts that could not be read or will not work, as sentences for operators.
    problems: tuple[str, ...] = ()
    aliases: tuple[SnapshotAlias, ...] = ()
    flavors: tuple[Flavor, ...] = ()
    #: The mix of flavors against which the scheduler measures the damage of a placement.
    profile: profiles.Profile = profiles.DEFAULT
    hosts: tuple[SnapshotNode, ...] = ()
    servers: tuple[Server, ...] = ()
    #: The entries of ``[hpc]port_roles``.
    port_roles: tuple[str, ...] = ()
    groups: tuple[SnapshotGroup, ...] = ()
    #: Empty unless another program has added them: no reader of Blazar exists yet.
    leases: tuple[SnapshotLease, ...] = ()
    #: All cells and Placement answered when it was taken. So it contains all hosts, and both Nova
    #: and Placement count its free devices as free. Not written to files.
    complete: bool = True


def flavor_with_ports(cloud: Snapshot, flavor: Flavor, ports: Iterable[DirectPorts]) -> Flavor:
    """Return a copy of *flavor* for a server with these direct ports."""
    return attrs.evolve(
        flavor, ports=direct_ports.merge_equal_ports(ports), port_roles=cloud.port_roles
    )


def request_of_flavor(flavor: Flavor, hosts: Iterable[SnapshotNode]) -> Request:
    """Build the request to the placement engine for a flavor, as the scheduler does.

    :param hosts: hosts whose devices show the role of each alias.
    :raises nova_hpc.placement.grouping.FlavorError: the scheduler would refuse it.
    """
    server = flavor.server
    return server.request(roles_of_wants(hosts, server.wants))


def roles_of_wants(hosts: Iterable[SnapshotNode], wants: Sequence[Want]) -> dict[str, str]:
    """Return ``Want.key`` -> role, as the scheduler finds it on these hosts.

    :raises nova_hpc.placement.roles.RoleConflictError: an alias has devices of several roles, and
        its name is none of them.
    """
    everywhere = tuple(hosts)
    played = hpc_roles.roles_played_by_hosts(
        hpc_roles.roles_played_on_host(
            (device.aliases, device.role) for device in host.devices if device.free
        )
        for host in everywhere
    )
    # The scheduler remembers the roles of devices that servers have.
    known_roles = {
        device.role for host in everywhere for device in host.devices if device.role is not None
    }
    return hpc_roles.bind_alias_roles(wants, played, known_roles, by_name=True)


def mixed_aliases(hosts: Iterable[SnapshotNode]) -> tuple[str, ...]:
    """Return a warning for each alias that matches devices of several roles."""
    roles_by_alias: dict[str, set[str]] = {}
    for device in (device for host in hosts for device in host.devices):
        for alias in device.aliases if device.role is not None else ():
            roles_by_alias.setdefault(alias, set()).add(str(device.role))
    return tuple(
        f"Nova serves the alias {alias} with devices of the roles {' and '.join(sorted(roles))}; "
        "flavors without hpc: keys get any of them: give each role an identity with nova-hpc "
        "configure"
        for alias, roles in sorted(roles_by_alias.items())
        if len(roles) > 1
    )


def engine_host(
    node: SnapshotNode,
    wants: Sequence[Want],
    roles: Mapping[str, str] | None = None,
    ports: Sequence[DirectPorts] = (),
) -> FreeHost:
    """Build the placement engine's model of the free resources of a node.

    :param roles: ``Want.key`` -> the role that its devices must have.
    :param ports: direct ports of the server.
    """
    free = {device.provider for device in node.devices if device.free}
    pools = [
        DevicePool(
            id=device.provider,
            name=device.address,
            location=device.location,
            free=device.free,
            serves=frozenset(want.key for want in wants if want.name in device.aliases)
            if device.ports is None
            else direct_ports.served_port_keys(ports, device.ports),
            unit=device.unit,
            # Later servers request devices by role, but these devices only serve ports.
            role=device.role if device.ports is None else None,
            aliases=len(device.aliases) if device.ports is None else 0,
        )
        for device in node.devices
        if device.free
    ]
    host = FreeHost(
        name=node.host,
        pools=tuple(sorted(pools, key=lambda pool: (pool.name, pool.id))),
        nodes=node.numa,
        nvlink=tuple(nvlink_set for nvlink_set in node.nvlink if nvlink_set <= free),
    )
    return hpc_roles.restrict_to_roles(host, roles or {})[0]


def take_from_node(
    node: SnapshotNode, devices: DeviceSet, cells: Iterable[WantedCell], server: str
) -> SnapshotNode:
    """Return a copy of the node after *server* got these devices, CPUs and pages."""
    taken = collections.Counter(pick.pool for pick in devices.picks)
    return attrs.evolve(
        node,
        devices=tuple(
            attrs.evolve(
                device,
                free=device.free - taken[device.provider],
                used=device.used + (FunctionUse(device.address, server),) * taken[device.provider],
            )
            if device.provider in taken
            else device
            for device in node.devices
        ),
        numa=_change_numa_amounts(node.numa, cells_on_node(devices, cells), -1),
    )


def cells_on_node(devices: DeviceSet, cells: Iterable[WantedCell]) -> tuple[ServerCell, ...]:
    """Return the shares of host NUMA nodes that a server with these devices gets."""
    return tuple(
        ServerCell(devices.cells[cell.id], cell.dedicated_cpus, cell.memory_kib, cell.page_kib)
        for cell in cells
        if cell.id in devices.cells
    )


def release_from_node(node: SnapshotNode, *servers: Server) -> SnapshotNode:
    """Return a copy of the node after *servers* left; faulty devices do not become free."""
    leaving = {server.uuid for server in servers}
    free, numa = count_free_without(node, servers)
    devices = []
    for device, number in zip(node.devices, free, strict=True):
        left = tuple([use for use in device.used if use.server not in leaving])
        changed = len(left) < len(device.used)
        devices.append(attrs.evolve(device, free=number, used=left) if changed else device)
    return attrs.evolve(node, devices=tuple(devices), numa=numa)


def count_free_without(
    node: SnapshotNode, servers: Iterable[Server]
) -> tuple[tuple[int, ...], tuple[HostNode, ...]]:
    """Count the free functions of each device, and CPUs and pages, after *servers* left a node."""
    leaving: set[str] = set()
    cells: list[ServerCell] = []
    for server in servers:
        leaving.add(server.uuid)
        # During a move, a server may hold devices here, while its CPUs are on its own host.
        if (server.host, server.node) == (node.host, node.node):
            cells += server.cells
    if not leaving:
        return tuple([device.free for device in node.devices]), node.numa
    free = []
    for device in node.devices:
        back = [use for use in device.used if use.server in leaving]
        ailing = sum(_is_ailing(node, device, use) for use in back) if node.ailing else 0
        free.append(device.free + len(back) - ailing)
    return tuple(free), _change_numa_amounts(node.numa, cells, +1)


def _is_ailing(node: SnapshotNode, device: SnapshotDevice, use: FunctionUse) -> bool:
    return use.address in node.ailing or device.address in node.ailing


def _change_numa_amounts(
    numa: Iterable[HostNode], cells: Iterable[ServerCell], sign: int
) -> tuple[HostNode, ...]:
    """Add (+1) or subtract (-1) the CPUs and pages that the cells hold."""
    nodes = {node.id: node for node in numa}
    for cell in cells:
        node = nodes.get(cell.numa)
        if node is None:
            continue
        cpus = node.dedicated_cpus
        if cpus is not None:
            cpus = max(0, cpus + sign * cell.dedicated_cpus)
        pages = node.pages
        if pages is not None and cell.page_kib is not None and cell.page_kib in pages:
            count = -(-cell.memory_kib // cell.page_kib)
            pages = {**pages, cell.page_kib: max(0, pages[cell.page_kib] + sign * count)}
        nodes[cell.numa] = attrs.evolve(node, dedicated_cpus=cpus, pages=pages)
    return tuple(nodes.values())
