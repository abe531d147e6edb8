# SPDX-License-Identifier: Apache-2.0
"""The configuration space of a PCI function, as sysfs shows it.

Every user can read the first 64 bytes; root can read 256 (conventional PCI) or 4096 (PCI
Express). Captures often hold 64. So each value here is None if its bytes are missing.
Register layouts: PCI Local Bus 3.0 chapter 6, PCI Express Base 5.0 chapter 7; names as in
the kernel's ``pci_regs.h``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Final

import attrs

from nova_hpc.topology.model import BridgeKind, PcieLink

#: Bytes of a whole space, of the part that every user can read, and of conventional PCI.
SIZE: Final = 4096
HEADER: Final = 64
STANDARD: Final = 256

#: Bytes that are read of each extended capability: its head and first registers.
EXTENDED_PART: Final = 8

#: The command register, two bytes, and its bit that lets a function write to memory.
COMMAND: Final = 4
BUS_MASTER: Final = 0x04

CAP_EXPRESS: Final = 0x10
_EXTENDED_CAP_ACS: Final = 0x000D
_EXTENDED_CAP_ATS: Final = 0x000F
_ATS_ENABLE: Final = 0x8000

#: Source validation, request and completion redirect, upstream forwarding: the kernel
#: requires these of a port before it splits IOMMU groups (REQ_ACS_FLAGS).
ACS_NEEDED: Final = 0x01 | 0x04 | 0x08 | 0x10

_SPEEDS: Final = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_PORTS: Final = {
    4: BridgeKind.ROOT_PORT,
    5: BridgeKind.UPSTREAM,
    6: BridgeKind.DOWNSTREAM,
    7: BridgeKind.PCI,
    8: BridgeKind.PCI,
}


@attrs.frozen
class ConfigSpace:
    """The values that this project reads from a PCI configuration space.

    A value is None if its bytes are missing.
    """

    vendor_id: str | None = None
    product_id: str | None = None
    class_code: str | None = None
    revision: str | None = None
    #: Vendor and id of the board; None if the header has no such fields (a bridge).
    subsystem: tuple[str, str] | None = None
    #: 0 an endpoint, 1 a bridge to PCI, 2 a CardBus bridge.
    header_type: int | None = None
    #: Secondary and subordinate bus of a bridge.
    buses: tuple[int, int] | None = None
    #: Kind of port, from the PCI Express capability.
    port: BridgeKind | None = None
    express: bool | None = None
    link: PcieLink | None = None
    flr: bool | None = None  # function level reset
    acs_capability: int | None = None  # None if there is none, or if unknown
    acs_control: int | None = None
    acs_isolates: bool | None = None
    ats: bool | None = None  # can translate addresses itself
    ats_enabled: bool | None = None
    #: All ones: the function does not answer (gone, or fallen off the bus).
    silent: bool = False


def skim_config(handle: int, limit: int = SIZE) -> bytes:
    """Read the parts of a configuration space for :func:`parse_config_space`; the rest is zeros.

    Reading fewer bytes is faster: a device answers every four bytes with a round trip of their own,
    and most of its space is empty.

    :param handle: descriptor of the open file ``config``.
    :raises OSError: it cannot be read.
    """
    start = os.pread(handle, min(STANDARD, limit), 0)
    if len(start) < STANDARD or start.count(0xFF) == len(start):
        return start
    space = bytearray(start).ljust(SIZE, b"\0")
    for offset in walk_extended_capabilities(space, limit - EXTENDED_PART):
        part = os.pread(handle, EXTENDED_PART, offset)
        if len(part) < EXTENDED_PART:
            # Conventional PCI, or a short capture.
            return start
        space[offset : offset + EXTENDED_PART] = part
    return bytes(space)


def acs_control_at(data: bytes) -> int | None:
    """Return the offset of the ACS control register (two bytes) in a configuration space.

    None without ACS.
    """
    express = _find_capability(data, CAP_EXPRESS) if len(data) >= SIZE else None
    offset = find_extended_capability(data, express, _EXTENDED_CAP_ACS)
    return offset + 6 if offset else None


def walk_capabilities(data: bytes) -> Iterator[int]:
    """Yield the offset of each standard PCI capability, in the order of their list, each once.

    :param data: at least the first 256 bytes of a space whose status bit announces a list.
    """
    seen: set[int] = set()
    offset = data[0x34] & ~3
    while offset >= HEADER and offset not in seen:
        seen.add(offset)
        yield offset
        offset = data[offset + 1] & ~3


def walk_extended_capabilities(data: bytes | bytearray, last: int) -> Iterator[int]:
    """Yield the offset of each extended PCIe capability up to *last*, in list order, each once.

    The first offset is yielded even if there is no capability. The header (four bytes) of a
    capability is read only when the caller requests the next offset. So a caller can read the space
    piece by piece.

    :param last: the highest offset that is yielded. *data* must contain the four bytes there.
    """
    seen: set[int] = set()
    offset = STANDARD
    while STANDARD <= offset <= last and offset not in seen:
        seen.add(offset)
        yield offset
        head = _read_register(data, offset, 4)
        offset = 0 if head == 0xFFFFFFFF else head >> 20 & ~3


# Nearly all spaces are unchanged from one reading of a node to the next.
@functools.lru_cache(maxsize=1024)
def parse_config_space(data: bytes) -> ConfigSpace:
    """Read a configuration space; never raises, whatever the bytes are.

    The ids of a virtual function read as all ones; sysfs shows them in files.
    """
    if len(data) < HEADER:
        return ConfigSpace()
    if data.count(0xFF) == len(data):
        return ConfigSpace(silent=True)
    header = data[0x0E] & 0x7F
    express = _find_capability(data, CAP_EXPRESS)
    port = link = flr = None
    if express:
        port = _PORTS.get(data[express + 2] >> 4 & 0xF)
        flr = bool(_read_register(data, express + 4, 4) >> 28 & 1)
        link = _read_link(data, express)
    able, control, isolates = _read_acs(data, express)
    ats = find_extended_capability(data, express, _EXTENDED_CAP_ATS)
    return ConfigSpace(
        vendor_id=_read_id(data, 0),
        product_id=_read_id(data, 2),
        class_code=f"{_read_register(data, 8, 4) >> 8:06x}",
        revision=f"{data[8]:02x}",
        subsystem=_read_subsystem(data, header),
        header_type=header,
        buses=(data[0x19], data[0x1A]) if header == 1 else None,
        port=port if header == 1 else None,
        express=None if express is None else express > 0,
        link=link,
        flr=flr,
        acs_capability=able,
        acs_control=control,
        acs_isolates=isolates,
        ats=None if ats is None else ats > 0,
        ats_enabled=None
        if ats is None
        else ats > 0 and bool(_read_register(data, ats + 6, 2) & _ATS_ENABLE),
    )


def link_bandwidth_of(speed: float, width: int) -> float:
    """Compute the bandwidth of a PCIe link in one direction, in GB/s, without the line coding.

    :param speed: GT/s per lane.
    :param width: number of lanes.
    """
    if speed <= 5:
        coding = 8 / 10
    elif speed <= 32:
        coding = 128 / 130
    else:
        coding = 242 / 256
    return round(speed * coding * width / 8, 3)


def _read_register(data: bytes | bytearray, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def _read_id(data: bytes, offset: int) -> str | None:
    value = _read_register(data, offset, 2)
    return None if value == 0xFFFF else f"{value:04x}"


def _read_subsystem(data: bytes, header: int) -> tuple[str, str] | None:
    vendor, product = _read_id(data, 0x2C), _read_id(data, 0x2E)
    if header != 0 or vendor is None or product is None or vendor == "0000":
        return None
    return vendor, product


def _find_capability(data: bytes, wanted: int) -> int | None:
    """Return the offset of a standard capability; 0 without any, None if the bytes are missing."""
    if not _read_register(data, 6, 2) & 0x10:
        return 0
    if len(data) < STANDARD:
        return None
    for offset in walk_capabilities(data):
        if data[offset] == wanted:
            # The parts that are used end 0x14 after the start.
            return offset if offset + 0x14 <= STANDARD else 0
    return 0


def _read_link(data: bytes, express: int) -> PcieLink | None:
    most = _read_register(data, express + 0x0C, 4)
    status = _read_register(data, express + 0x12, 2)
    speed, width = _SPEEDS.get(status & 0xF), status >> 4 & 0x3F or None
    max_speed, max_width = _SPEEDS.get(most & 0xF), most >> 4 & 0x3F or None
    if (speed, width, max_speed, max_width) == (None, None, None, None):
        return None
    rate = link_bandwidth_of(speed, width) if speed and width else None
    return PcieLink(speed, width, max_speed, max_width, rate)


def find_extended_capability(data: bytes, express: int | None, wanted: int) -> int | None:
    """Return the offset of the extended capability *wanted*; 0 if there is none.

    None if the bytes are missing.

    :param express: offset of the PCI Express capability, as from a search for it.
    """
    if express == 0:
        return 0  # conventional PCI has none
    if express is None or len(data) < SIZE:
        return None
    for offset in walk_extended_capabilities(data, SIZE - EXTENDED_PART):
        if _read_register(data, offset, 2) == wanted:
            return offset
    return 0


def _read_acs(data: bytes, express: int | None) -> tuple[int | None, int | None, bool | None]:
    """Read capability and control register of ACS, and whether it isolates; None if unknown."""
    offset = find_extended_capability(data, express, _EXTENDED_CAP_ACS)
    if not offset:
        return None, offset, None if offset is None else False
    can, does = _read_register(data, offset + 4, 2), _read_register(data, offset + 6, 2)
    # A bit that the port cannot switch is hard-wired on (PCIe 6.12.1.1).
    needed = ACS_NEEDED & can
    return can, does, does & needed == needed
