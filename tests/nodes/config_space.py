# SPDX-License-Identifier: Apache-2.0
"""Configuration spaces, byte for byte as a device would answer.

Layouts: PCI Local Bus 3.0 chapter 6, PCI Express Base 5.0 chapter 7.
"""

from __future__ import annotations

import struct
from typing import Final

from tests.nodes.describe import Bridge, Endpoint, Link
from tests.nodes.plan import Placed

_POWER, _VPD, _EXPRESS = 0x40, 0x50, 0x70
_PORTS: Final = {"root": 4, "upstream": 5, "downstream": 6, "pci": 7}
_SPEEDS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_AER, _SERIAL, _ACS, _SRIOV, _ATS = 0x0001, 0x0003, 0x000D, 0x0010, 0x000F


def build(placed: Placed) -> bytes:
    """All 4096 bytes, or 256 of a conventional function."""
    if placed.physical is not None:
        return _virtual(placed)
    part = placed.part
    data = bytearray(4096)
    vendor, product = _ids(part.ids)
    struct.pack_into("<HHHH", data, 0, vendor, product, 0x0406, 0x0010)
    if isinstance(part, Bridge):
        struct.pack_into("<I", data, 8, 0x060400 << 8 | 0x01)
        data[0x0E] = 1
        secondary, subordinate = placed.buses or (0, 0)
        data[0x18:0x1B] = bytes((placed.bus, secondary, subordinate))
    else:
        struct.pack_into("<I", data, 8, int(part.code, 16) << 8 | 0xA1)
        struct.pack_into("<HH", data, 0x2C, *_ids(part.subsystem))
    data[0x34] = _POWER
    data[_POWER : _POWER + 4] = bytes((0x01, 0, 0x23, 0x00))
    if not _express(part):
        return bytes(data[:256])
    data[_POWER + 1] = _VPD
    # The register of vital product data keeps what was read last: part of a serial number.
    serial = getattr(part, "serial", None) or "0000000000000000"
    data[_VPD : _VPD + 8] = bytes((0x03, _EXPRESS, 0x00, 0x80)) + bytes.fromhex(serial)[:4]
    kind = _PORTS[part.kind] if isinstance(part, Bridge) else 0
    _put_express(data, kind, part.link, "flr" in getattr(part, "resets", ()))
    _put_extended(data, _capabilities(part))
    return bytes(data)


def _express(part: Bridge | Endpoint) -> bool:
    return isinstance(part, Bridge) or part.express


def _ids(text: str) -> tuple[int, int]:
    vendor, product = text.split(":")
    return int(vendor, 16), int(product, 16)


def _put_express(data: bytearray, kind: int, link: Link | None, flr: bool) -> None:
    data[_EXPRESS : _EXPRESS + 4] = struct.pack("<BBH", 0x10, 0, kind << 4 | 2)
    struct.pack_into("<I", data, _EXPRESS + 4, int(flr) << 28)
    if link is not None:
        speed, width = link.now or (link.speed, link.width)
        struct.pack_into("<I", data, _EXPRESS + 0x0C, _SPEEDS[link.speed] | link.width << 4)
        struct.pack_into("<H", data, _EXPRESS + 0x12, _SPEEDS[speed] | width << 4)


def _capabilities(part: Bridge | Endpoint) -> list[tuple[int, int, bytes]]:
    """Extended capabilities: id, version, body."""
    found = [(_AER, 2, bytes(0x44))]
    if isinstance(part, Endpoint) and part.serial is not None:
        # Least significant byte first.
        found.append((_SERIAL, 1, bytes.fromhex(part.serial)[::-1]))
    if part.acs is not None:
        found.append((_ACS, 1, struct.pack("<HH", *part.acs)))
    if isinstance(part, Endpoint) and part.vfs is not None:
        vfs = part.vfs
        body = struct.pack("<IHHHHHHHHHH", 0, 0x19, 0, vfs.total, vfs.total, vfs.count,
                           0, vfs.offset, vfs.stride, 0, int(vfs.product, 16))  # fmt: skip
        found.append((_SRIOV, 1, body + bytes(28)))
    if isinstance(part, Endpoint) and part.ats:
        found.append((_ATS, 1, struct.pack("<HH", 0x20, 0)))
    return found


def _put_extended(data: bytearray, found: list[tuple[int, int, bytes]]) -> None:
    offset = 0x100
    for index, (name, version, body) in enumerate(found):
        after = offset + 4 + (len(body) + 3 & ~3)
        last = index == len(found) - 1
        struct.pack_into("<I", data, offset, name | version << 16 | (0 if last else after) << 20)
        data[offset + 4 : offset + 4 + len(body)] = body
        offset = after


def _virtual(placed: Placed) -> bytes:
    """A virtual function: its ids read as all ones, its link registers as zero."""
    part = placed.part
    assert isinstance(part, Endpoint)
    assert part.vfs is not None
    data = bytearray(4096)
    struct.pack_into("<HHHH", data, 0, 0xFFFF, 0xFFFF, 0x0006, 0x0010)
    struct.pack_into("<I", data, 8, int(part.code, 16) << 8 | 0xA1)
    struct.pack_into("<HH", data, 0x2C, *_ids(part.subsystem))
    data[0x34] = _EXPRESS
    _put_express(data, 0, None, flr=True)
    found = [(_ATS, 1, struct.pack("<HH", 0x20, 0))] if part.vfs.ats else []
    _put_extended(data, found)
    return bytes(data)
