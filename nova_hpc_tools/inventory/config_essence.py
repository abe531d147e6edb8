# SPDX-License-Identifier: Apache-2.0
"""The part of a configuration space in a record of a node: only the fields that are read."""

from __future__ import annotations

import os
from typing import Final

from nova_hpc.topology.confspace import (
    CAP_EXPRESS,
    EXTENDED_PART,
    HEADER,
    SIZE,
    STANDARD,
    find_extended_capability,
    walk_capabilities,
    walk_extended_capabilities,
)

_EXTENDED_CAP_SERIAL: Final = 0x0003


def with_serial(handle: int, data: bytes) -> bytes:
    """Add the device's serial number to the bytes that skim_config() read."""
    offset = serial_at(data)
    if offset is None:
        return data
    serial = os.pread(handle, 8, offset)
    return data[:offset] + serial + data[offset + len(serial) :]


def serial_at(data: bytes) -> int | None:
    """Return the offset of a device's serial number (8 bytes, least first), or None."""
    offset = find_extended_capability(data, None if len(data) < SIZE else 1, _EXTENDED_CAP_SERIAL)
    return offset + 4 if offset and offset + 12 <= SIZE else None


def config_essence_of(data: bytes) -> bytes:
    """Reduce a configuration space to the fields that we read, plus the serial number.

    All other bytes are 0: vendor-specific registers, and that of the vital product data, may
    contain any data that was read or written last.
    """
    if len(data) <= HEADER or data.count(0xFF) == len(data):
        return data
    kept = bytearray(data[:HEADER].ljust(len(data), b"\0"))

    def keep(offset: int, size: int) -> None:
        kept[offset : offset + size] = data[offset : offset + size]

    if len(data) >= STANDARD:
        for offset in walk_capabilities(data):
            express = data[offset] == CAP_EXPRESS and offset + 0x14 <= STANDARD
            keep(offset, 0x14 if express else 2)
    if len(data) == SIZE:
        for offset in walk_extended_capabilities(data, SIZE - EXTENDED_PART):
            keep(offset, EXTENDED_PART)
        serial = serial_at(data)
        if serial is not None:
            keep(serial, 8)
    return bytes(kept)
