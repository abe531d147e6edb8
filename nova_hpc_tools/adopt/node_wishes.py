# SPDX-License-Identifier: Apache-2.0
"""From the declaration of a kind of node to the wishes for this one. Pure.

The file (:mod:`nova_hpc_tools.wire.node_declaration`) names hardware, and the offer needs
addresses. A run adds keys to the node's own part of the file if there is one, else to the
part for all nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology.model import ADDRESS, Node
from nova_hpc.topology.roles import Roles
from nova_hpc.wire import capture
from nova_hpc_tools.site import nvlink_sets
from nova_hpc_tools.site.declaration import Declaration, DeclarationError
from nova_hpc_tools.site.identity import Form
from nova_hpc_tools.site.overlooked import NOBODY
from nova_hpc_tools.site.service_settings import ServiceSettings
from nova_hpc_tools.wire.node_declaration import (
    EVERY,
    DeclaredDevice,
    NodeDeclaration,
    NodeWishes,
    RoleWish,
)

#: Lists of devices: the devices of a node are added to the devices for all nodes.
_DEVICES: Final = ("left_out", "offer_in_use", "whole_pf")


def wishes_for_node(declared: NodeDeclaration, hostname: str | None, source: str) -> NodeWishes:
    """Return the declared wishes for the node with that host name.

    :param source: name of the file, for messages.
    :raises DeclarationError: the file is for other nodes.
    """
    if not declared.is_for(hostname):
        raise DeclarationError(
            f"{source} is for {', '.join(declared.hosts)}, and this node is {hostname}: name the "
            "node's own file with --declaration, or add the node to its list for"
        )
    return add_wishes(declared.wishes, declared.nodes.get(hostname or "", NodeWishes()))


def add_wishes(general: NodeWishes, own: NodeWishes) -> NodeWishes:
    """Merge the wishes *own* into *general*: devices are added, other values are replaced."""
    more: dict[str, Any] = {
        field.name: value
        for field in attrs.fields(NodeWishes)
        if (value := getattr(own, field.name)) is not None
    }
    for key in _DEVICES:
        if key in more:
            more[key] = _unite_devices(getattr(general, key) or (), more[key])
    if own.role_options is not None:
        options = dict(general.role_options or {})
        for role, wish in own.role_options.items():
            options[role] = _override_role_wish(options.get(role, RoleWish()), wish)
        more["role_options"] = options
    if own.kept is not None:
        more["kept"] = {**(general.kept or {}), **own.kept}
    return attrs.evolve(general, **more)


def _override_role_wish(first: RoleWish, second: RoleWish) -> RoleWish:
    changes = attrs.asdict(second, filter=lambda _, value: value is not None)
    if first.traits and second.traits:
        changes["traits"] = tuple(sorted({*first.traits, *second.traits}))
    return attrs.evolve(first, **changes)


def _unite_devices(
    first: Iterable[DeclaredDevice], second: Iterable[DeclaredDevice]
) -> tuple[DeclaredDevice, ...]:
    """Return all declared devices, each once; the first declaration of a device stays."""
    united: list[DeclaredDevice] = []
    for device in (*first, *second):
        place = next(
            (at for at, earlier in enumerate(united) if _is_same_device(device, earlier)), None
        )
        if place is None:
            united.append(device)
        elif united[place].hardware is None:
            # Named by its address before, and now also by its hardware.
            united[place] = attrs.evolve(united[place], hardware=device.hardware)
    return tuple(united)


def _is_same_device(first: DeclaredDevice, second: DeclaredDevice) -> bool:
    if first.hardware and second.hardware:
        return first.hardware == second.hardware
    return first.address is not None and first.address == second.address


def add_to_declaration(
    declared: NodeDeclaration, hostname: str | None, more: NodeWishes
) -> NodeDeclaration:
    """Return the declaration with *more*, the wishes from the options of this run, added."""
    if hostname is not None and hostname in declared.nodes:
        own = add_wishes(declared.nodes[hostname], more)
        return attrs.evolve(declared, nodes={**declared.nodes, hostname: own})
    return attrs.evolve(declared, wishes=add_wishes(declared.wishes, more))


# --- hardware ---------------------------------------------------------------------------


def without_stand_ins(declared: NodeDeclaration, source: str) -> tuple[NodeDeclaration, list[str]]:
    """Remove stand-in serial numbers of a saved inventory from the declaration.

    :param source: of the file, for the message.
    :returns: the file with only the addresses of such devices, and these addresses.
    :raises DeclarationError: a device has such a number and no address.
    """
    addresses: list[str] = []

    def one(device: DeclaredDevice) -> DeclaredDevice:
        if not capture.stands_in(device.hardware):
            return device
        if device.address is None:
            raise DeclarationError(
                f"{source}: {device.hardware} stands for a serial number in a saved inventory "
                "and names no device: write the device's address, or its own serial number "
                "(nova-hpc inventory --save FILE --keep-serials)"
            )
        addresses.append(device.address)
        return attrs.evolve(device, hardware=None)

    def all_of(wishes: NodeWishes) -> NodeWishes:
        lists: dict[str, Any] = {
            key: tuple(map(one, devices))
            for key in _DEVICES
            if (devices := getattr(wishes, key)) is not None
        }
        return attrs.evolve(wishes, **lists)

    nodes = {name: all_of(wishes) for name, wishes in declared.nodes.items()}
    clean = attrs.evolve(declared, wishes=all_of(declared.wishes), nodes=nodes)
    return clean, sorted(set(addresses))


def check_replaced(declared: NodeDeclaration, replaced: Collection[str], source: str) -> None:
    """Check that the file does not depend on facts that a saved node has replaced.

    :param replaced: kinds of facts that the node's files have in a replaced form, see
        :mod:`nova_hpc.wire.capture`.
    :param source: of the file, for the message.
    :raises DeclarationError: the file depends on such a fact.
    """
    if capture.HOST in replaced and (declared.hosts or declared.nodes):
        raise DeclarationError(
            f"{source} names nodes, and the saved inventory does not contain the name of its "
            "node: save the node again with nova-hpc inventory --save FILE --keep-names"
        )
    named = sorted(
        device.hardware
        for wishes in (declared.wishes, *declared.nodes.values())
        for key in _DEVICES
        for device in getattr(wishes, key) or ()
        if device.hardware is not None
    )
    if capture.SERIALS in replaced and named:
        raise DeclarationError(
            f"{source} names {named[0]}, and the reading of the node has no real serial "
            "numbers, so the place of that device is unknown: save the node again with "
            "nova-hpc inventory --save FILE --keep-names --keep-serials"
        )


def devices_named_by_place(
    wishes: NodeWishes,
    node: Node,
    stand_ins: Iterable[str],
    replaced: Collection[str],
    hardware: Mapping[str, str],
) -> list[str]:
    """Return sentences about declared devices that are named by address rather than serial number.

    :param stand_ins: addresses of :func:`without_stand_ins`.
    :param replaced: see :func:`check_replaced`.
    :param hardware: address -> the identity that a device of the node reports.
    """
    lines = [
        f"{address}: the declaration had a number for its serial number that stands for one in "
        "a saved inventory; the device that is there now is used."
        for address in stand_ins
    ]
    devices = (device for key in _DEVICES for device in getattr(wishes, key) or ())
    addresses = {device.address for device in devices if device.hardware is None}
    where = sorted(
        function.address
        for function in node.functions
        if function.address in addresses and function.physical_function is None
    )
    if where and capture.SERIALS in replaced:
        lines.append(
            f"{', '.join(where)}: declared by address, because the reading of the node has no "
            "real serial numbers; another device that is put there is taken for it. nova-hpc "
            "inventory --save FILE --keep-names --keep-serials has them."
        )
    lines += [
        f"{address} is declared by its address; to mean this card in whatever slot it is, write "
        f"{{address: '{address}', hardware: '{hardware[address]}'}}."
        for address in where
        if not hardware.get(address, "slot:").startswith("slot:")
    ]
    return lines


@attrs.frozen
class LocatedDevices:
    """The addresses of declared devices on this node, and notes about doubtful ones."""

    addresses: frozenset[str]
    #: One sentence for each device that is not at its declared address, or cannot be identified.
    notes: tuple[str, ...] = ()


def locate_declared_devices(
    devices: Iterable[DeclaredDevice] | None, hardware: Mapping[str, str], node: Node
) -> LocatedDevices:
    """Find declared devices on this node.

    The hardware wins over the address: a card in another slot is the same card. A device that
    does not report its identity, or that is missing, keeps its address.

    :param hardware: address -> the identity that a device of the node reports.
    """
    places: dict[str, list[str]] = {}
    for address, hardware_id in hardware.items():
        places.setdefault(hardware_id, []).append(address)
    addresses, notes = set(), []
    for device in devices or ():
        where = places.get(device.hardware or "", [])
        if len(where) == 1:
            addresses.add(where[0])
            if device.address not in (None, where[0]):
                notes.append(
                    f"{device.hardware} is declared at {device.address} and now {where[0]}."
                )
        elif device.address is not None:
            present_id = hardware.get(device.address)
            if device.hardware and present_id and not present_id.startswith("slot:"):
                notes.append(
                    f"{device.hardware}, declared at {device.address}, is not in this node; "
                    f"{present_id} is there and is used instead."
                )
            elif device.hardware and present_id:
                notes.append(
                    f"{device.address} does not show whether it is {device.hardware}, which was "
                    "declared there, and is taken for it; only root can read serial numbers."
                )
            elif node.function(device.address) is None and device.address != EVERY:
                notes.append(
                    f"{device.address}, which is declared, is no function of this node now."
                )
            addresses.add(device.address)
        else:
            notes.append(f"{device.hardware}, which is declared, is not in this node.")
    return LocatedDevices(frozenset(addresses), tuple(notes))


# --- the offer --------------------------------------------------------------------------


def role_wishes_of(wishes: NodeWishes) -> Iterator[tuple[str, RoleWish]]:
    """Yield each declared role with its options, as pairs."""
    yield from (wishes.role_options or {}).items()


def check_named_roles(wishes: NodeWishes, roles: Roles) -> None:
    """Check that the declaration names only roles of the node.

    :raises DeclarationError: it names another one.
    """
    for key, names in (("role_options", wishes.role_options), ("vfs", wishes.vfs)):
        for name in names or ():
            if name not in roles.names and not ADDRESS.fullmatch(name):
                raise DeclarationError(
                    f"{key}: there is no role {name!r}; the roles are {', '.join(roles.names)}"
                )


def to_declaration(
    wishes: NodeWishes,
    *,
    left_out: frozenset[str],
    whole: frozenset[str],
    sets: tuple[nvlink_sets.NvlinkSet, ...],
    withheld: Mapping[str, str],
    told: ServiceSettings,
) -> Declaration:
    """Convert the declared wishes into addresses of this node.

    :param withheld: address -> why it is not offered without an explicit declaration.
    :param told: settings of the services. A backend that runs the NVSwitches keeps them from
        servers.
    """
    classes, forms, networks, traits, once = {}, {}, {}, {}, set()
    for role, wish in role_wishes_of(wishes):
        if wish.resource_class is not None:
            classes[role] = wish.resource_class
        if wish.identity is not None:
            forms[role] = Form(wish.identity)
        if wish.physical_network is not None:
            networks[role] = wish.physical_network
        if wish.traits:
            traits[role] = frozenset(wish.traits)
        if wish.one_time_use:
            once.add(role)
    switches = wishes.offer_switches
    if switches is None and told.nvlink_backend != NOBODY:
        switches = False
    return Declaration(
        whole=whole,
        resource_classes=classes,
        identity=forms,
        networks=networks,
        traits=traits,
        one_time_use=frozenset(once),
        switches=switches,
        left_out=left_out,
        withheld=withheld,
        nvlink=sets or None,
        erasers=told.erasers,
    )
