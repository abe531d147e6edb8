# SPDX-License-Identifier: Apache-2.0
"""From ``rails`` of the declaration to the physical network of each function. Pure.

A rail's adapters keep their roles and their tags; the physical network marks them for Neutron's
ports. The default roles do not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology.model import ADDRESS, Node, PciFunction
from nova_hpc.topology.roles import Roles, link_layer
from nova_hpc_tools.site import spec_entries
from nova_hpc_tools.site.configured import Configured, networks_of_roles
from nova_hpc_tools.site.declaration import DeclarationError
from nova_hpc_tools.wire.rail_wish import RailWish

#: Segmentation ids that can be P_Keys of networks; the ones below 256 are for operators.
_LEAST, _MOST = 256, 4094
_INFINIBAND: Final = "InfiniBand"


@attrs.frozen
class LocatedRails:
    """The physical network of each rail adapter on one node, and notes."""

    #: Address of an adapter or of a virtual function of it -> physical network.
    networks: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: One sentence for each missing adapter.
    notes: tuple[str, ...] = ()


def locate_rails(
    rails: RailWish | None, node: Node, roles: Roles, before: Collection[str]
) -> LocatedRails:
    """Find the adapters of the declared rails on this node.

    :param before: physical networks in the entries that the node has already.
    :raises DeclarationError: a name matches no adapter, and no entry has its network; or an
        adapter is on two rails, is a virtual function, or has no role.
    """
    networks: dict[str, str] = {}
    notes = []
    for number, (network, names) in enumerate(
        zip(rails.networks, rails.adapters, strict=True) if rails else ()
    ):
        for name in names:
            adapter = _find_adapter(node, name)
            if adapter is None:
                notes.append(_note_missing(name, number, network, before))
                continue
            _check_adapter(adapter, name, node, roles)
            if adapter.address in networks:
                raise DeclarationError(
                    f"rails: {adapter.address} ({name}) is on {networks[adapter.address]} and "
                    f"{network}: an adapter is on one rail"
                )
            for address in (adapter.address, *adapter.virtual_functions):
                networks[address] = network
    return LocatedRails(networks, tuple(notes))


def _find_adapter(node: Node, name: str) -> PciFunction | None:
    if ADDRESS.fullmatch(name):
        return node.function(name)
    named = [
        function
        for function in node.functions
        if function.physical_function is None and name in _names_of(function)
    ]
    return named[0] if len(named) == 1 else None


def _names_of(function: PciFunction) -> Iterator[str]:
    for os_device in function.os_devices:
        yield os_device.partition(" ")[2]
    for device in function.rdma:
        yield device.name
        for port in device.ports:
            if port.guid is not None:
                yield port.guid
                yield f"0x{port.guid.replace(':', '')}"


def _note_missing(name: str, number: int, network: str, before: Collection[str]) -> str:
    """Return a sentence about an adapter that may only be hidden now, because a server has it.

    :raises DeclarationError: *name* is not an address, and no entry has the network yet.
    """
    if ADDRESS.fullmatch(name):
        return f"rails: {name} of rail {number} ({network}) is no function of this node now."
    if network in before:
        return (
            f"rails: no adapter is called {name} now; rail {number} keeps those that entries of "
            f"device_spec have on {network}. The PCI address names an adapter at any time."
        )
    raise DeclarationError(
        f"rails: no adapter of this node is called {name}: write its PCI address "
        "(nova-hpc inventory shows it)"
    )


def _check_adapter(adapter: PciFunction, name: str, node: Node, roles: Roles) -> None:
    if adapter.physical_function is not None:
        raise DeclarationError(
            f"rails: {name} is a virtual function: name its adapter, {adapter.physical_function}"
        )
    if roles.role_of(adapter, node) is None:
        raise DeclarationError(
            f"rails: {name} ({adapter.vendor_id}:{adapter.product_id}) has no role: add an entry "
            "to roles that matches it"
        )


def networks_of_functions(
    rails: RailWish | None,
    configured: Configured,
    node: Node,
    roles: Roles,
    chosen: Mapping[str, str],
    remembered: Mapping[str, Mapping[str, str | None]],
) -> dict[str, str]:
    """Return role, or address of a function -> physical network, from the rails or present entries.

    :param chosen: role -> network, from the operator.
    :param remembered: address -> keys of a removed entry, from the declaration.
    :raises DeclarationError: see :func:`locate_rails`.
    """
    located = locate_rails(rails, node, roles, _networks_before(configured))
    networks = networks_of_roles(configured, node, roles, chosen, remembered)
    return {**networks, **located.networks}


def describe_rails(
    rails: RailWish | None, configured: Configured, node: Node, roles: Roles
) -> list[str]:
    """List sentences about the rails for the operator: missing adapters, and options of Neutron."""
    if rails is None:
        return []
    located = locate_rails(rails, node, roles, _networks_before(configured))
    return [*located.notes, *_format_neutron_options(rails, node, located)]


def _networks_before(configured: Configured) -> set[str]:
    entries = map(spec_entries.read_spec_entry, configured.device_spec)
    return {str(entry.get(spec_entries.NETWORK)) for entry in entries}


def _format_neutron_options(rails: RailWish, node: Node, located: LocatedRails) -> list[str]:
    """Return sentences with the options that Neutron's servers need for the rails.

    Each network has its own range, because a P_Key is unique on a fabric.
    """
    names = rails.networks
    share = (_MOST + 1 - _LEAST) // len(names)
    ranges = ",".join(
        f"{name}:{_LEAST + share * number}:{_LEAST + share * (number + 1) - 1}"
        for number, name in enumerate(names)
    )
    lines = [f"Neutron's servers need [ml2_type_vlan]network_vlan_ranges = {ranges}"]
    if _INFINIBAND in _layers_of(node, located.networks):
        fabrics = ",".join(f"{name}:main" for name in names)
        lines.append(f"Neutron's servers need [hpc_partitions]physical_networks = {fabrics}")
    return lines


def _layers_of(node: Node, addresses: Iterable[str]) -> set[str | None]:
    functions = (node.function(address) for address in addresses)
    return {link_layer(function, node) for function in functions if function is not None}
