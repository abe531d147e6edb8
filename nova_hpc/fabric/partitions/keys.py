# SPDX-License-Identifier: Apache-2.0
"""P_Keys and GUIDs as numbers and as text.

A P_Key has 15 bits, which name the partition, and above them the membership bit (InfiniBand
Architecture Specification, volume 1, 10.9.1). Numbers in this module are only the 15 bits, unless
a name contains *table entry*.
"""

from __future__ import annotations

import enum
import re
from typing import Final

#: The partition that every port is in (0xffff with full membership).
DEFAULT_PKEY: Final = 0x7FFF
#: Set in the table entry of a full member.
FULL_MEMBER_BIT: Final = 0x8000
#: The P_Keys that a network can have: Neutron's segments of type vlan end here.
LEAST_PKEY: Final = 1
LARGEST_PKEY: Final = 4094
#: Partitions of one port beside the default one. A block of a P_Key table has 32 entries. A table
#: that shrinks from more than one block keeps stale entries (seen with opensm 3.3.23).
MOST_PKEYS_OF_A_PORT: Final = 31

_GUID: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")
_MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)


class Membership(enum.StrEnum):
    """The kind of membership in a partition. Two limited members cannot exchange packets."""

    #: All members.
    FULL = "full"
    #: Only full members.
    LIMITED = "limited"


def table_entry(pkey: int, membership: Membership) -> int:
    """Return the entry of a port's P_Key table: 0x8123 for full membership of 0x0123."""
    return pkey | (FULL_MEMBER_BIT if membership is Membership.FULL else 0)


def format_pkey(pkey: int) -> str:
    """Format a P_Key as text, such as ``0x0123``."""
    return f"0x{pkey:04x}"


def format_guid(guid: int) -> str:
    """Format a port GUID as text, such as ``0x0002c90000200001``."""
    return f"0x{guid:016x}"


def parse_guid(text: object) -> int:
    """Parse a port GUID of up to 16 hex digits, with ``0x`` or without; colons may separate.

    :raises ValueError: it is none, or zero, which no port has; the text names it.
    """
    found = _GUID.fullmatch(text.replace(":", "").strip()) if isinstance(text, str) else None
    if found is None or not int(found[1], 16):
        raise ValueError(f"{text!r} is no port GUID, such as 0x0002c90000200001")
    return int(found[1], 16)


def derive_guid(mac: str) -> int:
    """Compute the GUID that ``ebrctl`` gives a function for the MAC of its Neutron port.

    networking-mlnx 21.0.0 defines the rule (eswitchd/utils/ib_utils.py, mlx5): the first half, two
    bytes of zero, the second half.

    :raises ValueError: the MAC does not have six bytes, or all of them are zero.
    """
    digits = mac.lower().replace(":", "") if isinstance(mac, str) else ""
    if not isinstance(mac, str) or not _MAC.fullmatch(mac.lower()) or not int(digits, 16):
        raise ValueError(f"{mac!r} is no MAC address of six bytes: no GUID can be made of it")
    return int(f"{digits[:6]}0000{digits[6:]}", 16)
