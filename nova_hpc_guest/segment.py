# SPDX-License-Identifier: Apache-2.0
"""The segment: memory that this machine shares with others of its server group on its host.

The host labels the memory, and this machine's kernel makes a device-dax of it. It begins with
a head and a table of the servers that have the parts. Every server of the group can write all of
it, so this module checks the content, and the content counts only as a hint.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
import uuid
from typing import Final, NamedTuple

from .document import STATE, SharedMemory
from .files import Root, describe_error

DAX_DEVICES: Final = "/sys/bus/dax/devices"
#: Programs read their part's number here.
PART: Final = f"{STATE}/part"
MEMORY_TYPES: Final = "/sys/kernel/debug/x86/pat_memtype_list"
#: Alignment of the device, and room for the head and the table before the first part.
UNIT: Final = 2 << 20

_HEAD: Final = struct.Struct("<QIIQQ16s")
_MAGIC: Final = 0x314D48534350484E
_VERSION: Final = 1
_HOLDERS: Final = 4096
_HOLDER: Final = 64
_UUID: Final = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_NAME: Final = re.compile(r"dax\d{1,4}\.\d{1,4}", re.ASCII)
_TYPE: Final = re.compile(
    r"\[mem 0x([0-9a-f]{1,16})-0x([0-9a-f]{1,16})[\])] ([a-z-]{1,32})", re.ASCII
)
#: More devices than any machine has.
_MOST: Final = 64


class SegmentHead(NamedTuple):
    """The head, as the host wrote it or a server of the group wrote over it."""

    parts: int
    part_bytes: int
    #: Of this very memory: another segment has another one.
    uuid: str


class SharedDevice(NamedTuple):
    """A device-dax of this machine: its size in bytes, its driver and its physical address."""

    #: Of the kernel, as ``dax0.0``.
    name: str
    size: int
    #: ``device_dax``; ``kmem`` if its memory became ordinary memory; None without a driver.
    driver: str | None
    #: Address in this machine's physical memory; None if hidden from this user.
    start: int | None

    @property
    def path(self) -> str:
        """The path of the device below /dev."""
        return f"/dev/{self.name}"


class SegmentView(NamedTuple):
    """This machine's view of its segment: the device, its head, and the server of each part."""

    #: None if no device has the promised size.
    device: SharedDevice | None
    head: SegmentHead | None = None
    #: Part -> UUID of the server that has it; None if free, or if the entry is not a UUID.
    holders: tuple[str | None, ...] = ()
    #: The kernel's kind of mapping, as ``write-back``; None if unknown.
    mapping: str | None = None
    #: Why head and table could not be read; None if they were.
    problem: str | None = None
    #: This user may not read the device, so nothing is known of its head.
    denied: bool = False
    #: The part that is configured for programs; None if none is.
    installed: int | None = None
    #: Reasons why programs do not use it, in words.
    obstacles: tuple[str, ...] = ()


def segment_bytes(promise: SharedMemory) -> int:
    """Return the size of the device of a promised segment, in bytes."""
    return UNIT + promise.parts * promise.part_bytes


def read_segment(root: Root, promise: SharedMemory) -> SegmentView:
    """Look for the promised segment, and at its head. Nothing raises."""
    views = [
        _look_at_device(root, device, promise)
        for device in list_dax_devices(root)
        if device.size == segment_bytes(promise)
    ]
    # A user may have a device of that very size as well: it has no head.
    return next(
        (view for view in views if view.head is not None), views[0] if views else SegmentView(None)
    )


def _look_at_device(root: Root, device: SharedDevice, promise: SharedMemory) -> SegmentView:
    if device.driver == "kmem":
        return SegmentView(device, problem="its memory was made ordinary memory")
    try:
        data, mapping, problem = _map_head(root, device)
    except PermissionError as error:
        return SegmentView(device, problem=describe_error(error), denied=True)
    if data is None:
        return SegmentView(device, problem=problem)
    head, problem = _judge_head(data, promise)
    holders = () if head is None else parse_holders(data, head.parts)
    installed = _parse_number(root.text(PART))
    return SegmentView(device, head, holders, mapping, problem, installed=installed)


def list_dax_devices(root: Root) -> list[SharedDevice]:
    """List the devices-dax of this machine, from sysfs."""
    devices = []
    for name in root.names(DAX_DEVICES)[:_MOST]:
        size = _parse_number(root.text(f"{DAX_DEVICES}/{name}/size"))
        if _NAME.fullmatch(name) and size is not None:
            driver = root.link(f"{DAX_DEVICES}/{name}/driver")
            devices.append(
                SharedDevice(
                    name,
                    size,
                    driver.rstrip("/").rpartition("/")[2] if driver else None,
                    # The kernel shows 0 if this user must not see the address.
                    _parse_number(root.text(f"{DAX_DEVICES}/{name}/resource")) or None,
                )
            )
    return devices


def parse_head(data: bytes) -> SegmentHead | None:
    """Parse the head of a segment; None if missing, of another version, or contradictory."""
    if len(data) < _HEAD.size:
        return None
    magic, version, parts, part_bytes, size, number = _HEAD.unpack_from(data)
    good = (magic, version) == (_MAGIC, _VERSION) and 2 <= parts <= 16
    if not good or not part_bytes or part_bytes % UNIT or size != UNIT + parts * part_bytes:
        return None
    return SegmentHead(parts, part_bytes, str(uuid.UUID(bytes=number)))


def parse_holders(data: bytes, parts: int) -> tuple[str | None, ...]:
    """Return the UUID of the server of each part in the segment's table; None for a free part."""
    holders: list[str | None] = []
    for part in range(parts):
        at = _HOLDERS + part * _HOLDER
        text = data[at : at + _HOLDER].rstrip(b"\0")
        holders.append(text.decode("ascii") if _UUID.fullmatch(text) else None)
    return tuple(holders)


def find_memory_types(text: str, start: int, size: int) -> frozenset[str]:
    """Return the types that the kernel's list gives to any of this physical memory.

    :param text: the kernel's list of memory types.
    :param start: physical address.
    :param size: bytes.
    """
    types = set()
    for match in _TYPE.finditer(text):
        # The end is the first byte that is not of it, or the last that is: by the release.
        if int(match[1], 16) < start + size and int(match[2], 16) > start:
            types.add(match[3])
    return frozenset(types)


def _judge_head(data: bytes, promise: SharedMemory) -> tuple[SegmentHead | None, str | None]:
    head = parse_head(data)
    if head is None:
        return None, "it has no head that this command can read"
    if (head.parts, head.part_bytes) != (promise.parts, promise.part_bytes):
        return None, (
            f"its head says {head.parts} parts of {head.part_bytes >> 20} MiB instead of "
            f"{promise.parts} of {promise.part_bytes >> 20}"
        )
    return head, None


def _map_head(root: Root, device: SharedDevice) -> tuple[bytes | None, str | None, str | None]:
    """Map head and table; return them, their kind of mapping, and the fault if they are unreadable.

    A device-dax can be mapped, in whole pages of 2 MiB, and not be read.

    :raises PermissionError: this user may not open it.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(root.place(device.path), flags)
        try:
            kind = os.fstat(handle).st_mode
            if not (stat.S_ISCHR(kind) or stat.S_ISREG(kind)):
                return None, None, "not a device"
            with mmap.mmap(handle, UNIT, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
                data = memory[: _HOLDERS + 16 * _HOLDER]
                return data, _read_mapping(root, device), None
        finally:
            os.close(handle)
    except PermissionError:
        raise
    except ValueError:
        return None, None, "shorter than its head"
    except OSError as error:
        return None, None, describe_error(error)


def _read_mapping(root: Root, device: SharedDevice) -> str | None:
    """Return the type of the device's memory while some of it is mapped; None if unknown."""
    if device.start is None:
        return None
    types = find_memory_types(_read_long(root, MEMORY_TYPES), device.start, device.size)
    return " and ".join(sorted(types)) or None


def _read_long(root: Root, path: str) -> str:
    try:
        data = root.read(path)
    except Exception:  # debugfs must not make a command fail, whatever its content
        return ""
    return (data or b"").decode("ascii", "replace")


def _parse_number(text: str | None) -> int | None:
    """Parse a whole number as sysfs has it: decimal, or hexadecimal after ``0x``; else None."""
    match = re.fullmatch(r"0x([0-9a-f]{1,16})|(\d{1,19})", text or "", re.ASCII)
    if match is None:
        return None
    return int(match[1], 16) if match[1] else int(match[2])
