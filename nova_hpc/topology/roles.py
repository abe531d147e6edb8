# SPDX-License-Identifier: Apache-2.0
"""The roles of PCI functions: the entries of ``[hpc]device_role``.

Roles come from configuration, never from ids in code. Each entry is a JSON
object; see the help text of the option. :func:`parse_roles` is for the operator's
command, which refuses a bad entry. :func:`parse_good_roles` is for services, which log
a bad entry and use the others.
"""

from __future__ import annotations

import fnmatch
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology.model import Node, PciFunction

LOG = logging.getLogger(__name__)

DEV_TYPES: Final = ("type-PCI", "type-PF", "type-VF")

#: A role is also the name of an alias and a word of ``hpc:group``.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_HEX: Final = re.compile(r"[0-9a-f*?]{1,4}", re.ASCII)
_HEX_KEYS: Final = ("vendor_id", "product_id", "class")
_KEYS: Final = ("role", *_HEX_KEYS, "dev_type", "link_layer", "interface")
_INTERFACE: Final = re.compile(r"[A-Za-z0-9._:*?-]{1,15}", re.ASCII)

#: The link layer in the kernel's words, by the class of a function. It serves if the driver
#: does not report a layer: mlx5 changes the class of an adapter with the type of its link.
LINK_LAYERS: Final = {"0207": "InfiniBand", "0200": "Ethernet"}
_LONGEST_QUOTE: Final = 200

#: Makes the error of one entry from the description of its fault.
_Complaint = Callable[[str], "RoleError"]


class RoleError(ValueError):
    """An entry of ``[hpc]device_role`` is invalid. The text names the entry and the remedy."""


@attrs.frozen
class RolePattern:
    """One entry of ``[hpc]device_role``: a role, and the patterns that a function must match.

    The patterns use :mod:`fnmatch`, hex digits in lower case; ``link_layer`` is a word.
    """

    role: str
    vendor_id: str = "*"
    product_id: str = "*"
    device_class: str = "*"  # base class and sub-class, four hex digits
    dev_type: str = "*"
    link_layer: str = "*"
    #: Name of the network interface on the host, of the function or of its physical function.
    interface: str = "*"

    def matches(self, function: PciFunction, node: Node | None = None) -> bool:
        """Whether *function* of *node* matches every part of the entry."""
        code = function.class_code
        return (
            _matches_pattern(self.vendor_id, function.vendor_id)
            and _matches_pattern(self.product_id, function.product_id)
            and _matches_pattern(self.device_class, None if code is None else code[:4])
            and _matches_pattern(self.dev_type, function.dev_type)
            and (self.link_layer == "*" or self.link_layer == link_layer(function, node))
            and any(
                _matches_pattern(self.interface, name)
                for name in _interface_names_of(function, node)
            )
        )


@attrs.frozen
class Roles:
    """All entries of ``[hpc]device_role``, in their order; the first match wins."""

    patterns: tuple[RolePattern, ...] = ()

    #: Role of the patterns -> the name of its devices in the node's entries.
    kept: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def role_of(self, function: PciFunction, node: Node | None = None) -> str | None:
        """Return the role of *function*; None for a bridge and for a function without a role.

        :param node: its node: a virtual function is on the fabric of its physical one.
        """
        if function.is_bridge:
            return None
        matching_roles = (entry.role for entry in self.patterns if entry.matches(function, node))
        role = next(matching_roles, None)
        return None if role is None else self.kept.get(role, role)

    @property
    def names(self) -> tuple[str, ...]:
        """The roles, each once, in the order in which they first appear."""
        pattern_roles = (entry.role for entry in self.patterns)
        return tuple(dict.fromkeys(self.kept.get(role, role) for role in pattern_roles))


def parse_roles(entries: Sequence[str]) -> Roles:
    """Read all entries of ``[hpc]device_role``.

    :raises RoleError: one of them is bad; the text names it and the reason.
    """
    return Roles(tuple(_parse_role_pattern(number, text) for number, text in enumerate(entries, 1)))


def parse_good_roles(entries: Sequence[str]) -> Roles:
    """Read the good entries of ``[hpc]device_role``; log the bad ones.

    Functions that match only a bad entry have no role, so they are not offered. So a
    mistake makes devices unavailable, but never stops a service.
    """
    good = []
    for number, text in enumerate(entries, 1):
        try:
            good.append(_parse_role_pattern(number, text))
        except RoleError as error:
            LOG.error("%s The entry is ignored.", error)
    return Roles(tuple(good))


def link_layer(function: PciFunction, node: Node | None = None) -> str | None:
    """Return the link layer of an adapter: ``InfiniBand`` or ``Ethernet``.

    None for neither, both, or unknown. The ports of the function or of its physical function
    decide; without them, its class.
    """
    parent = _physical_function_of(function, node)
    layers = {
        port.link_layer
        for candidate in (function, parent)
        if candidate is not None
        for device in candidate.rdma
        for port in device.ports
    } - {None}
    if layers:
        return layers.pop() if len(layers) == 1 else None
    return LINK_LAYERS.get((function.class_code or "")[:4])


def _interface_names_of(function: PciFunction, node: Node | None) -> list[str | None]:
    """Return the network interfaces of *function*, else of its physical function; else [None]."""
    for candidate in (function, _physical_function_of(function, node)):
        names = [
            name for name in (candidate.os_devices if candidate else ()) if name.startswith("net ")
        ]
        if names:
            return [name.removeprefix("net ") for name in names]
    return [None]


def _physical_function_of(function: PciFunction, node: Node | None) -> PciFunction | None:
    if node is None or function.physical_function is None:
        return None
    return node.function(function.physical_function)


def configured_role_names(entries: Sequence[str]) -> frozenset[str]:
    """Return the names of the roles that an operator has configured; empty for the default entries.

    :param entries: ``[hpc]device_role`` of a service.
    """
    if list(entries) == DEFAULT_ROLES:
        return frozenset()
    return frozenset(parse_good_roles(entries).names)


def _parse_role_pattern(number: int, text: str) -> RolePattern:
    """Read one entry of ``[hpc]device_role``.

    :param number: its position from 1, for the error.
    :raises RoleError: it is not a JSON object with a valid role and valid patterns.
    """

    def bad(reason: str) -> RoleError:
        quoted = text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."
        return RoleError(f"[hpc]device_role, entry {number}, {quoted!r}: {reason}.")

    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise bad('not JSON; write it like {"role": "gpu", "vendor_id": "10de"}') from None
    if not isinstance(entry, dict):
        raise bad('not a JSON object; write it like {"role": "gpu", "vendor_id": "10de"}')
    unknown = sorted(set(entry) - set(_KEYS))
    if unknown:
        raise bad(f"unknown key {unknown[0]!r}; the keys are {', '.join(_KEYS)}")
    for key, value in entry.items():
        if not isinstance(value, str):
            raise bad(f'the value of {key!r} must be a string: put it into "double quotes"')
    role = entry.get("role", "")
    if not _NAME.fullmatch(role):
        raise bad(
            "it needs a 'role' of up to 64 letters, digits, '-' and '_' that begins with a letter"
        )
    if len(entry) == 1:
        raise bad(f"it would match every function; add at least one of {', '.join(_KEYS[1:])}")
    return RolePattern(
        role=role,
        vendor_id=_check_hex_pattern(entry.get("vendor_id", "*"), "vendor_id", bad),
        product_id=_check_hex_pattern(entry.get("product_id", "*"), "product_id", bad),
        device_class=_check_hex_pattern(entry.get("class", "*"), "class", bad),
        dev_type=_check_dev_type(entry.get("dev_type", "*"), bad),
        link_layer=_check_link_layer(entry.get("link_layer", "*"), bad),
        interface=_check_interface(entry.get("interface", "*"), bad),
    )


def _check_hex_pattern(value: str, key: str, bad: _Complaint) -> str:
    value = value.lower()
    if not _HEX.fullmatch(value) or ("*" not in value and len(value) != 4):
        raise bad(
            f"{key!r} is {value!r}, not four hex digits without 0x, "
            "some of which may be replaced by the wildcards * and ?"
        )
    return value


def _check_dev_type(value: str, bad: _Complaint) -> str:
    if not any(fnmatch.fnmatchcase(kind, value) for kind in DEV_TYPES):
        raise bad(f"'dev_type' is {value!r}, which matches none of {', '.join(DEV_TYPES)}")
    return value


def _check_link_layer(value: str, bad: _Complaint) -> str:
    if value not in ("*", *LINK_LAYERS.values()):
        raise bad(f"'link_layer' is {value!r}, not {' or '.join(LINK_LAYERS.values())}")
    return value


def _check_interface(value: str, bad: _Complaint) -> str:
    if not _INTERFACE.fullmatch(value):
        raise bad(f"'interface' is {value!r}, no name of a network interface with * and ?")
    return value


def _matches_pattern(pattern: str, value: str | None) -> bool:
    """Whether *value* matches; an unknown value matches only the pattern ``*``."""
    return pattern == "*" if value is None else fnmatch.fnmatchcase(value, pattern)
