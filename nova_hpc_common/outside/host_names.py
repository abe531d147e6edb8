# SPDX-License-Identifier: Apache-2.0
"""Host names that another program may be given: Slurm, MPI, pdsh, Ansible, a shell.

Each of these programs interprets more than a name in the place of a name: options
(``-oProxyCommand=``), ranges (``n[0-9]``), templates (``{{ ... }}``), further words of a line.
RFC 1123, 2.1, excludes all of that, so one rule serves for all of them.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from nova_hpc_common.outside.text import printable_text

#: RFC 1035, 2.3.4, in characters.
LONGEST_NAME: Final = 253
LONGEST_LABEL: Final = 63
#: Characters of a bad name that are shown.
_SHOWN: Final = 80
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?", re.ASCII)
#: Resolvers read a name with such a last label as an address (inet_aton(3)).
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class OutsideError(ValueError):
    """A text from outside must not be passed to another program. The message may be printed."""


def is_uuid(text: object) -> bool:
    """Whether *text* is a UUID in lower case, as the ids of Nova and Neutron."""
    return isinstance(text, str) and _UUID.fullmatch(text) is not None


def explain_wrong_host(name: str) -> str | None:
    """Explain why *name* is not a host name by RFC 1123; None if it is one."""
    if not name:
        return "it is empty"
    if len(name) > LONGEST_NAME:
        return f"it has {len(name)} characters; a name of a host has at most {LONGEST_NAME}"
    labels = name.split(".")
    for label in labels:
        if len(label) > LONGEST_LABEL:
            return f"a part of it has {len(label)} characters; {LONGEST_LABEL} are possible"
        if _LABEL.fullmatch(label) is None:
            return (
                "a name of a host has letters, digits and hyphens, and dots between its parts; "
                "no part begins or ends with a hyphen (RFC 1123)"
            )
    if _NUMBER.fullmatch(labels[-1]):
        return "its last part is a number, so programs take it for an address"
    if labels[-1].lower() == "localhost" or labels[0].lower() == "localhost":
        return "it means the machine on which it is read"
    return None


def require_host_name(name: str, whose: str) -> str:
    """Return *name* if it is a valid host name.

    :param whose: the owner of this name, with the remedy, for the message.
    :raises OutsideError: it is not valid.
    """
    wrong = explain_wrong_host(name)
    if wrong is not None:
        raise OutsideError(f"{quote_bad_name(name)} cannot name a host: {wrong}; {whose}")
    return name


def require_ip_address(text: str, whose: str) -> str:
    """Return *text* in the standard form of an IP address.

    :param whose: the owner of this address, for the message.
    :raises OutsideError: it is not one, or has a zone, which is valid only on its own host.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise OutsideError(f"{quote_bad_name(text)} is no IP address; {whose}") from None
    # Anything may follow a percent sign (RFC 4007, 11).
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise OutsideError(f"{quote_bad_name(text)} is an address with a zone; {whose}")
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise OutsideError(f"{quote_bad_name(text)} is the address of no other machine; {whose}")
    return str(address)


def quote_bad_name(text: str) -> str:
    """Make an invalid name printable, cut and quote it, for a message."""
    shown = printable_text(text)
    return f"'{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}'"
