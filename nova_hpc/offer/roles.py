# SPDX-License-Identifier: Apache-2.0
"""Which PCI function plays which role: the entries of ``[hpc]device_role``.

Roles come from configuration, never from ids in code. Each entry is a JSON
object, see the help text of the option. :func:`strict` is for the operator's
command, which refuses a bad entry; :func:`lenient` is for services, which log
it and go on with the others.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Sequence
from typing import Final

import attrs
from oslo_log import log as logging

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology.model import Function

LOG = logging.getLogger(__name__)

DEV_TYPES: Final = ("type-PCI", "type-PF", "type-VF")

#: A role is also the name of an alias and a word of ``hpc:group``.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_HEX: Final = re.compile(r"[0-9a-f*?]{1,4}", re.ASCII)
_HEX_KEYS: Final = ("vendor_id", "product_id", "class")
_KEYS: Final = ("role", *_HEX_KEYS, "dev_type")
_LONGEST_QUOTE: Final = 200

#: Makes the error of one entry from what is wrong with it.
_Complaint = Callable[[str], "RoleError"]


class RoleError(ValueError):
    """A bad entry of ``[hpc]device_role``; the text names it and the cure."""


@attrs.frozen
class Pattern:
    """One entry: the role, and what a function must look like to play it.

    The patterns are of :mod:`fnmatch`, lower case except for ``dev_type``.
    """

    role: str
    vendor_id: str = "*"
    product_id: str = "*"
    device_class: str = "*"  # base class and sub-class, four hex digits
    dev_type: str = "*"

    def matches(self, function: Function) -> bool:
        """Whether every part of the pattern matches *function*."""
        code = function.class_code
        return (
            _matches(self.vendor_id, function.vendor_id)
            and _matches(self.product_id, function.product_id)
            and _matches(self.device_class, None if code is None else code[:4])
            and _matches(self.dev_type, function.dev_type)
        )


@attrs.frozen
class Roles:
    """All entries, in their order; the first that matches wins."""

    patterns: tuple[Pattern, ...] = ()

    def role_of(self, function: Function) -> str | None:
        """The role of *function*; None for a bridge and for one without a role."""
        if function.is_bridge:
            return None
        return next((entry.role for entry in self.patterns if entry.matches(function)), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The roles, each once, in the order in which they first appear."""
        return tuple(dict.fromkeys(entry.role for entry in self.patterns))


def strict(entries: Sequence[str]) -> Roles:
    """Read all entries of ``[hpc]device_role``.

    :raises RoleError: one of them is bad; the text says which and why.
    """
    return Roles(tuple(_parse(number, text) for number, text in enumerate(entries, 1)))


def lenient(entries: Sequence[str]) -> Roles:
    """Read the good entries of ``[hpc]device_role``; log the bad ones.

    Functions that only a bad entry would have matched have no role, so they
    are not offered: a mistake makes devices unavailable, never a service.
    """
    good = []
    for number, text in enumerate(entries, 1):
        try:
            good.append(_parse(number, text))
        except RoleError as error:
            LOG.error("%s The entry is ignored.", error)
    return Roles(tuple(good))


def configured(entries: Sequence[str]) -> frozenset[str]:
    """The names of the roles that an operator has given; none where all is the default.

    :param entries: ``[hpc]device_role`` as a service has it.
    """
    if list(entries) == DEFAULT_ROLES:
        return frozenset()
    return frozenset(lenient(entries).names)


def _parse(number: int, text: str) -> Pattern:
    def bad(why: str) -> RoleError:
        quoted = text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."
        return RoleError(f"[hpc]device_role, entry {number}, {quoted!r}: {why}.")

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
        raise bad(
            "it would match every function; add at least one of "
            f"{', '.join((*_HEX_KEYS, 'dev_type'))}"
        )
    return Pattern(
        role=role,
        vendor_id=_hex(entry.get("vendor_id", "*"), "vendor_id", bad),
        product_id=_hex(entry.get("product_id", "*"), "product_id", bad),
        device_class=_hex(entry.get("class", "*"), "class", bad),
        dev_type=_dev_type(entry.get("dev_type", "*"), bad),
    )


def _hex(value: str, key: str, bad: _Complaint) -> str:
    value = value.lower()
    if not _HEX.fullmatch(value) or ("*" not in value and len(value) != 4):
        raise bad(
            f"{key!r} is {value!r}, not four hex digits without 0x, "
            "some of which may be replaced by the wildcards * and ?"
        )
    return value


def _dev_type(value: str, bad: _Complaint) -> str:
    if not any(fnmatch.fnmatchcase(kind, value) for kind in DEV_TYPES):
        raise bad(f"'dev_type' is {value!r}, which matches none of {', '.join(DEV_TYPES)}")
    return value


def _matches(pattern: str, value: str | None) -> bool:
    """What is unknown matches only where anything would do."""
    return pattern == "*" if value is None else fnmatch.fnmatchcase(value, pattern)
