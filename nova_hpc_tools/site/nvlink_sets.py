# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node that are linked: the entries of ``[hpc]nvlink_set``.

The operator writes the sets if sysfs does not show them. The GPUs on a board with
NVSwitches are one set, and so are the GPUs of each xGMI hive, which their driver
shows in sysfs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology import nvlink
from nova_hpc.topology.model import AddressError, Node, normalise_address
from nova_hpc.topology.nvlink import SWITCH_ROLE
from nova_hpc.topology.roles import Roles

#: The role of the devices in the sets.
GPU_ROLE: Final = "gpu"

_EXAMPLE: Final = '{"name": "left", "devices": ["0000:07:00.0", "0000:0a:00.0"]}'
_LONGEST_QUOTE: Final = 200
_LONGEST_TAG: Final = 255


class NvlinkError(ValueError):
    """An entry of ``[hpc]nvlink_set`` is invalid. The text names it and the cure."""


@attrs.frozen
class NvlinkSet:
    """GPUs that a server may get together, and only together."""

    name: str
    devices: frozenset[str]  # normalised addresses


def parse_nvlink_sets(entries: Sequence[str]) -> tuple[NvlinkSet, ...]:
    """Read all entries of ``[hpc]nvlink_set``.

    :raises NvlinkError: one of them is bad, or they contradict each other.
    """
    sets = tuple(_parse_nvlink_set(number, text) for number, text in enumerate(entries, 1))
    names: set[str] = set()
    members: dict[frozenset[str], str] = {}
    for nvlink_set in sets:
        if nvlink_set.name in names:
            raise NvlinkError(
                f"[hpc]nvlink_set: the name {nvlink_set.name!r} is given twice; rename one"
            )
        names.add(nvlink_set.name)
        if nvlink_set.devices in members:
            raise NvlinkError(
                f"[hpc]nvlink_set: {members[nvlink_set.devices]!r} and "
                f"{nvlink_set.name!r} have the same "
                "devices; remove one"
            )
        members[nvlink_set.devices] = nvlink_set.name
    for address, text in sorted(nvlink_tags_of(sets).items()):
        if len(text) > _LONGEST_TAG:
            raise NvlinkError(
                f"[hpc]nvlink_set: {address} is in so many sets that its tag would have more than "
                f"{_LONGEST_TAG} characters; use shorter names"
            )
    return sets


def _parse_nvlink_set(number: int, text: str) -> NvlinkSet:
    def bad(reason: str) -> NvlinkError:
        quoted = text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."
        return NvlinkError(f"[hpc]nvlink_set, entry {number}, {quoted!r}: {reason}.")

    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise bad(f"not JSON; write it like {_EXAMPLE}") from None
    if not isinstance(entry, dict) or set(entry) != {"name", "devices"}:
        raise bad(f"not an object with 'name' and 'devices'; write it like {_EXAMPLE}")
    name, devices = entry["name"], entry["devices"]
    if not isinstance(name, str) or not nvlink.NAME.fullmatch(name):
        raise bad(
            "'name' must be up to 32 letters, digits, '.', '_' and '-' that begin with a letter "
            "or a digit"
        )
    if not isinstance(devices, list) or not all(isinstance(device, str) for device in devices):
        raise bad("'devices' must be a list of PCI addresses")
    if not 2 <= len(devices) <= nvlink.MOST_MEMBERS:
        raise bad(f"'devices' must name 2 to {nvlink.MOST_MEMBERS} devices, not {len(devices)}")
    addresses = set()
    for device in devices:
        try:
            address = normalise_address(device)
        except AddressError as error:
            raise bad(str(error)) from None
        if address in addresses:
            raise bad(f"{address} is named twice")
        addresses.add(address)
    return NvlinkSet(name, frozenset(addresses))


def check_nvlink_gpus(gpus: Iterable[str], node: Node) -> None:
    """Check that the node has every GPU of ``[hpc]nvlink_gpus``.

    :raises NvlinkError: it lacks one, or a text is not an address.
    """
    for text in gpus:
        try:
            address = normalise_address(text)
        except AddressError as error:
            raise NvlinkError(f"[hpc]nvlink_gpus: {error}") from None
        if node.function(address) is None:
            raise NvlinkError(f"[hpc]nvlink_gpus: this node has no device {address}")


def check_nvlink_sets(sets: Iterable[NvlinkSet], node: Node, roles: Roles) -> None:
    """Check that the node has the devices of every set, with one role, as whole devices.

    :raises NvlinkError: a set does not match the node.
    """
    for nvlink_set in sets:
        kinds = set()
        for address in sorted(nvlink_set.devices):
            function = node.function(address)
            if function is None:
                raise NvlinkError(
                    f"[hpc]nvlink_set {nvlink_set.name!r}: this node has no device {address}"
                )
            role = roles.role_of(function, node)
            if role is None or role == SWITCH_ROLE:
                raise NvlinkError(
                    f"[hpc]nvlink_set {nvlink_set.name!r}: {address} has "
                    f"{'no role' if role is None else f'the role {role}'}; name the GPUs, and give "
                    "them a role by [hpc]device_role"
                )
            if function.physical_function is not None:
                raise NvlinkError(
                    f"[hpc]nvlink_set {nvlink_set.name!r}: {address} is a virtual "
                    f"function; NVLink sets "
                    "are of whole devices"
                )
            kinds.add(role)
        if len(kinds) > 1:
            raise NvlinkError(
                f"[hpc]nvlink_set {nvlink_set.name!r}: its devices have different roles "
                f"({', '.join(sorted(kinds))}); all members must have the same"
            )


def default_nvlink_sets(node: Node, roles: Roles) -> tuple[NvlinkSet, ...]:
    """Find NVLink sets of the inventory: GPUs on a board with NVSwitches, and xGMI hives.

    GPUs on a board with NVSwitches have the vendor of the switches and one product. A card in
    another slot has another product. If two products have equally many GPUs, the inventory does not
    show the set, and the operator has to declare it. GPUs that are linked by xGMI report their hive
    while the host's driver has them. GPUs that cannot be given are members, too: a set that lacks
    one of its members is not whole. The inventory does not show NVLink bridges between cards.
    """
    vendors = {
        function.vendor_id
        for function in node.functions
        if roles.role_of(function, node) == SWITCH_ROLE
    }
    sets = []
    for vendor in sorted(vendor for vendor in vendors if vendor is not None):
        products: dict[str | None, set[str]] = {}
        for function in node.functions:
            whole = function.physical_function is None
            if function.vendor_id == vendor and whole and roles.role_of(function, node) == GPU_ROLE:
                products.setdefault(function.product_id, set()).add(function.address)
        most = sorted(products.values(), key=len)[-2:]
        if not most or (len(most) == 2 and len(most[0]) == len(most[1])):
            continue
        members = frozenset(most[-1])
        if 2 <= len(members) <= nvlink.MOST_MEMBERS:
            sets.append(NvlinkSet(f"all-{vendor}" if len(vendors) > 1 else "all", members))
    return (*sets, *_sets_of_hives(node, roles))


def _sets_of_hives(node: Node, roles: Roles) -> Iterator[NvlinkSet]:
    """Yield one set for each xGMI hive, named after the lowest address in it."""
    hives: dict[str, set[str]] = {}
    for function in node.functions:
        if function.hive is not None and function.physical_function is None:
            hives.setdefault(function.hive, set()).add(function.address)
    for first, members in sorted(hives.items()):
        played = {
            roles.role_of(function, node)
            for function in map(node.function, members)
            if function is not None
        }
        # A hive is a set only if the roles, which operators can change, make all of it GPUs.
        if played == {GPU_ROLE} and 2 <= len(members) <= nvlink.MOST_MEMBERS:
            yield NvlinkSet(f"hive-{first.replace(':', '.')}", frozenset(members))


def nvlink_tags_of(sets: Iterable[NvlinkSet]) -> Mapping[str, str]:
    """Return address of each GPU -> value of the tag ``hpc_nvlink``."""
    memberships: dict[str, dict[str, int]] = {}
    for nvlink_set in sets:
        for address in nvlink_set.devices:
            memberships.setdefault(address, {})[nvlink_set.name] = len(nvlink_set.devices)
    texts = {address: nvlink.format_nvlink_tag(sizes) for address, sizes in memberships.items()}
    return {address: text for address, text in texts.items() if text is not None}
