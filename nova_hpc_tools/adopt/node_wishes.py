# SPDX-License-Identifier: Apache-2.0
"""From the declaration of a kind of node to the wishes for this one. Pure.

The file (:mod:`nova_hpc.wire.node_declaration`) names hardware; what is offered goes by
addresses. What the operator says by options is added to the file: to the node's own part
where it has one, else to the part for all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc.tenancy.nvlink import nvlink_sets
from nova_hpc.topology.model import Node
from nova_hpc.wire import capture
from nova_hpc.wire.node_declaration import (
    EVERY,
    Device,
    NodeDeclaration,
    RoleWish,
    Wishes,
)
from nova_hpc_tools.adopt import declaration
from nova_hpc_tools.adopt.configured import HeldBack
from nova_hpc_tools.adopt.declaration import Declaration, DeclarationError
from nova_hpc_tools.adopt.identity import Form

#: Lists of devices: those of a node are added to those of all.
_DEVICES: Final = ("left_out", "offer_in_use", "whole_pf")


def for_node(found: NodeDeclaration, hostname: str | None, source: str) -> Wishes:
    """What the file says for the node of that name.

    :raises DeclarationError: it is for other nodes.
    """
    if not found.is_for(hostname):
        raise DeclarationError(
            f"{source} is for {', '.join(found.hosts)}, and this node is {hostname}: name the "
            "node's own file with --declaration, or add the node to its list for"
        )
    return added(found.wishes, found.nodes.get(hostname or "", Wishes()))


def added(general: Wishes, own: Wishes) -> Wishes:
    """*general* with what *own* says: devices are added, all else replaces."""
    more: dict[str, Any] = {
        each.name: value
        for each in attrs.fields(Wishes)
        if (value := getattr(own, each.name)) is not None
    }
    for key in _DEVICES:
        if key in more:
            more[key] = _united(getattr(general, key) or (), more[key])
    if own.role_options is not None:
        options = dict(general.role_options or {})
        for role, wish in own.role_options.items():
            options[role] = _over(options.get(role, RoleWish()), wish)
        more["role_options"] = options
    if own.kept is not None:
        more["kept"] = {**(general.kept or {}), **own.kept}
    return attrs.evolve(general, **more)


def _over(first: RoleWish, second: RoleWish) -> RoleWish:
    said = attrs.asdict(second, filter=lambda _, value: value is not None)
    if first.traits and second.traits:
        said["traits"] = tuple(sorted({*first.traits, *second.traits}))
    return attrs.evolve(first, **said)


def _united(first: Iterable[Device], second: Iterable[Device]) -> tuple[Device, ...]:
    """All devices, each once; what was said of one first stays."""
    found: list[Device] = []
    for each in (*first, *second):
        place = next((at for at, other in enumerate(found) if _same(each, other)), None)
        if place is None:
            found.append(each)
        elif found[place].hardware is None:
            # Named by its address before, and now also by what is there.
            found[place] = attrs.evolve(found[place], hardware=each.hardware)
    return tuple(found)


def _same(one: Device, other: Device) -> bool:
    if one.hardware and other.hardware:
        return one.hardware == other.hardware
    return one.address is not None and one.address == other.address


def told(
    found: NodeDeclaration, hostname: str | None, words: Wishes, replaced: Collection[str]
) -> NodeDeclaration:
    """The file with what the options of a run say.

    :param words: the options.
    :param replaced: names that the operator gives up; addresses leave the lists of devices.
    """
    if hostname is not None and hostname in found.nodes:
        nodes = {
            **found.nodes,
            hostname: added(_without(found.nodes[hostname], replaced, words), words),
        }
        general = _without(found.wishes, replaced, words)
        return attrs.evolve(found, wishes=general, nodes=nodes)
    return attrs.evolve(found, wishes=added(_without(found.wishes, replaced, words), words))


def _without(wishes: Wishes, replaced: Collection[str], words: Wishes) -> Wishes:
    """Without the devices that are given up, and without what the options contradict."""
    gone: dict[str, set[str | None]] = {
        "left_out": {*replaced, *_addresses(words.offer_in_use)},
        "offer_in_use": {*replaced, *_addresses(words.left_out)},
        "whole_pf": {*replaced},
    }
    lists: dict[str, Any] = {}
    for key in _DEVICES:
        devices = getattr(wishes, key)
        if devices is not None:
            kept = tuple(each for each in devices if not {each.address, each.hardware} & gone[key])
            lists[key] = kept or None
    if wishes.kept is not None:
        remain = {each: said for each, said in wishes.kept.items() if each not in replaced}
        lists["kept"] = remain or None
    return attrs.evolve(wishes, **lists)


def _addresses(devices: Iterable[Device] | None) -> set[str | None]:
    return {each.address for each in devices or ()}


def keep(
    found: NodeDeclaration, hostname: str | None, kept: Mapping[str, Mapping[str, str | None]]
) -> NodeDeclaration:
    """The file with what entries of others say of the devices of one node.

    A file for several nodes says it of that one alone: others have other entries.
    """
    if hostname is not None and (found.hosts or hostname in found.nodes):
        own = attrs.evolve(found.nodes.get(hostname, Wishes()), kept=kept or None)
        nodes = {**found.nodes, hostname: own} if kept or hostname in found.nodes else found.nodes
        return attrs.evolve(found, nodes=nodes)
    return attrs.evolve(found, wishes=attrs.evolve(found.wishes, kept=kept or None))


def from_before(held: HeldBack | None, device_role: Iterable[str]) -> Wishes:
    """What the files of a release without declarations say.

    :param device_role: of the node's own file.
    """
    roles = tuple(json.loads(text) for text in device_role) or None
    if held is None:
        return Wishes(roles=roles)
    return Wishes(
        roles=roles,
        left_out=tuple(Device(each) for each in sorted(held.left_out)) or None,
        whole_pf=tuple(Device(each) for each in sorted(held.whole)) or None,
    )


# --- hardware ---------------------------------------------------------------------------


def without_stand_ins(found: NodeDeclaration, source: str) -> tuple[NodeDeclaration, list[str]]:
    """The file without the numbers of a saved node, which an earlier release took for hardware.

    :param source: of the file, for the message.
    :returns: the file with the addresses alone, and those.
    :raises DeclarationError: such a number is all that is said of a device.
    """
    addresses: list[str] = []

    def one(device: Device) -> Device:
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

    def all_of(wishes: Wishes) -> Wishes:
        lists: dict[str, Any] = {
            key: tuple(map(one, devices))
            for key in _DEVICES
            if (devices := getattr(wishes, key)) is not None
        }
        return attrs.evolve(wishes, **lists)

    nodes = {name: all_of(wishes) for name, wishes in found.nodes.items()}
    clean = attrs.evolve(found, wishes=all_of(found.wishes), nodes=nodes)
    return clean, sorted(set(addresses))


def check_replaced(found: NodeDeclaration, replaced: Collection[str], source: str) -> None:
    """See whether the file can be followed where a saved node does not say what it needs.

    :param replaced: what is replaced in the node's files, see :mod:`nova_hpc.wire.capture`.
    :param source: of the file, for the message.
    :raises DeclarationError: it goes by what is replaced.
    """
    if capture.HOST in replaced and (found.hosts or found.nodes):
        raise DeclarationError(
            f"{source} names nodes, and the saved inventory does not say which one it is of: "
            "save the node again with nova-hpc inventory --save FILE --keep-names"
        )
    named = sorted(
        each.hardware
        for wishes in (found.wishes, *found.nodes.values())
        for key in _DEVICES
        for each in getattr(wishes, key) or ()
        if each.hardware is not None
    )
    if capture.SERIALS in replaced and named:
        raise DeclarationError(
            f"{source} names {named[0]}, and what is read of the node has no serial number of "
            "its own, so nobody can say where that device is: save the node again with "
            "nova-hpc inventory --save FILE --keep-names --keep-serials"
        )


def unnamed(
    wishes: Wishes, node: Node, stand_ins: Iterable[str], replaced: Collection[str]
) -> list[str]:
    """Which declared devices are named by where they are and not by what they are.

    :param stand_ins: addresses of :func:`without_stand_ins`.
    :param replaced: what is replaced in the node's files, see :mod:`nova_hpc.wire.capture`.
    """
    lines = [
        f"{each}: the declaration had a number for its serial number that stands for one in a "
        "saved inventory; whatever is there now is taken for what was meant."
        for each in stand_ins
    ]
    devices = (each for key in _DEVICES for each in getattr(wishes, key) or ())
    found = {each.address for each in devices if each.hardware is None}
    where = sorted(
        each.address
        for each in node.functions
        if each.address in found and each.physical_function is None
    )
    if where and capture.SERIALS in replaced:
        lines.append(
            f"{', '.join(where)}: declared by address, because what is read of the node has "
            "no serial numbers of its own; another device that is put there is taken for it. "
            "nova-hpc inventory --save FILE --keep-names --keep-serials has them."
        )
    return lines


@attrs.frozen
class Found:
    """Where the devices of a list are."""

    addresses: frozenset[str]
    #: One sentence each: what is not there.
    notes: tuple[str, ...] = ()


def find(devices: Iterable[Device] | None, hardware: Mapping[str, str], node: Node) -> Found:
    """Where declared devices are on this node.

    Hardware counts before its address: a card that was plugged in elsewhere is the same
    card. One that does not say what it is here, or is not there, keeps its address.

    :param hardware: address -> what the devices of the node say that they are.
    """
    places: dict[str, list[str]] = {}
    for address, said in hardware.items():
        places.setdefault(said, []).append(address)
    addresses, notes = set(), []
    for each in devices or ():
        where = places.get(each.hardware or "", [])
        if len(where) == 1:
            addresses.add(where[0])
            if each.address not in (None, where[0]):
                notes.append(f"{each.hardware} is declared at {each.address} and now {where[0]}.")
        elif each.address is not None:
            other = hardware.get(each.address)
            if each.hardware and other and not other.startswith("slot:"):
                notes.append(
                    f"{each.hardware}, declared at {each.address}, is not in this node; {other} "
                    "is there and is taken for what was meant."
                )
            elif each.hardware and other:
                notes.append(
                    f"{each.address} does not say whether it is {each.hardware}, which was "
                    "declared there, and is taken for it; root reads serial numbers."
                )
            elif node.function(each.address) is None and each.address != EVERY:
                notes.append(f"{each.address}, which is declared, is no function of this node now.")
            addresses.add(each.address)
        else:
            notes.append(f"{each.hardware}, which is declared, is not in this node.")
    return Found(frozenset(addresses), tuple(notes))


def with_hardware(
    devices: Iterable[Device] | None, hardware: Mapping[str, str]
) -> tuple[Device, ...] | None:
    """Devices of an option, which names addresses, with the hardware that is there."""
    if devices is None:
        return None
    said = {each: what for each, what in hardware.items() if not what.startswith("slot:")}
    return tuple(attrs.evolve(each, hardware=said.get(each.address or "")) for each in devices)


# --- what is offered --------------------------------------------------------------------


def names(wishes: Wishes) -> Iterator[tuple[str, RoleWish]]:
    """Role and wish, where there are any."""
    yield from (wishes.role_options or {}).items()


def to_declaration(
    wishes: Wishes,
    *,
    left_out: frozenset[str],
    whole: frozenset[str],
    sets: tuple[nvlink_sets.NvlinkSet, ...],
    withheld: Mapping[str, str],
) -> Declaration:
    """The wishes in terms of addresses, without what is configured already.

    :param withheld: address -> why it is not offered without a word about it.
    :raises DeclarationError: a resource class or a trait that Nova does not take.
    """
    classes, forms, networks, traits, once = {}, {}, {}, {}, set()
    for role, wish in names(wishes):
        if wish.resource_class is not None:
            classes[role] = declaration.check_resource_class(wish.resource_class)
        if wish.identity is not None:
            forms[role] = Form(wish.identity)
        if wish.physical_network is not None:
            networks[role] = declaration.check_network(wish.physical_network)
        if wish.traits:
            traits[role] = frozenset(map(declaration.check_trait, wish.traits))
        if wish.one_time_use:
            once.add(role)
    return Declaration(
        whole=whole,
        resource_classes=classes,
        identity=forms,
        networks=networks,
        traits=traits,
        one_time_use=frozenset(once),
        switches=bool(wishes.offer_switches),
        left_out=left_out,
        withheld=withheld,
        nvlink=sets or None,
    )
