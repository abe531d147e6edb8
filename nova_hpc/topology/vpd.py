# SPDX-License-Identifier: Apache-2.0
"""Vital product data (VPD) of a PCI function: PCI Local Bus 3.0, appendix I. Pure.

This module parses bytes. A caller with a deadline has to read them: a device returns its
VPD word by word through a register, slowly, and some devices never answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: No VPD is longer: its address has 15 bits.
LONGEST: Final = 1 << 15
#: ConnectX functions that manage NVSwitches have this model (HGX B200 and B300).
MODEL: Final = "SMDL"
SWITCH_MANAGER: Final = "SW_MNG"

_READ_ONLY: Final = 0x90
_LARGE: Final = 0x80
_END: Final = 0x78


class VpdError(Exception):
    """The bytes are not vital product data (VPD) of a PCI device."""


def read_vpd_keywords(data: bytes) -> dict[str, str]:
    """Return keyword -> value of the read-only part of VPD; the first of each counts.

    :raises VpdError: see :func:`walk_vpd_fields`.
    """
    fields: dict[str, str] = {}
    for word, value in walk_vpd_fields(data):
        fields.setdefault(word, value.decode("ascii", "replace").strip("\0 "))
    return fields


def walk_vpd_fields(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the keywords and values in the read-only part of VPD, as far as *data* reach.

    :raises VpdError: the beginning is wrong, or *data* end before their own length.
    """
    offset = 0
    while offset < len(data):
        tag = data[offset]
        if tag == _END:
            break
        if not tag & _LARGE:
            # A small resource has its length in the tag.
            if offset == 0:
                raise VpdError(f"it begins with {tag:#04x}")
            offset += 1 + (tag & 7)
            continue
        if offset + 3 > len(data):
            raise VpdError("it is cut off")
        start = offset + 3
        end = start + int.from_bytes(data[offset + 1 : start], "little")
        if tag == _READ_ONLY:
            yield from _split_vpd_fields(data[start:end])
        if end > len(data):
            raise VpdError("it is cut off")
        if tag == _READ_ONLY:
            break
        offset = end


def _split_vpd_fields(data: bytes) -> Iterator[tuple[str, bytes]]:
    place = 0
    while place + 3 <= len(data):
        word = data[place : place + 2].decode("ascii", "replace")
        size = data[place + 2]
        # "RV" is a checksum and reserved bytes; it is the last keyword.
        if word == "RV":
            break
        yield word, data[place + 3 : place + 3 + size]
        place += 3 + size


def manages_switches(data: bytes) -> bool:
    """Whether the function with this VPD manages NVSwitches.

    :raises VpdError: see :func:`read_vpd_keywords`.
    """
    wanted = f"{MODEL}={SWITCH_MANAGER}"
    for word, value in read_vpd_keywords(data).items():
        if (word, value) == (MODEL[:2], SWITCH_MANAGER) or wanted in value.replace(" ", ""):
            return True
    return False
