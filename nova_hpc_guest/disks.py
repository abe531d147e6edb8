# SPDX-License-Identifier: Apache-2.0
"""NVMe disks of this machine: their block devices, and whether sampled blocks are empty.

The cloud erases a disk before a server gets it. Then its blocks read as zeros or as ones, or as
noise after an erase of its key. Encrypted data also look like noise, so noise proves neither.
No function raises, and nothing is written.
"""

from __future__ import annotations

import os
import random
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from .files import Root, describe_error
from .machine import GuestFunction, locate_function_folder

#: States of a controller in which the kernel still works on it.
_UNSETTLED: Final = ("new", "resetting", "connecting")

EMPTY, NOISE, USED, UNERASED, UNKNOWN = "empty", "noise", "used", "unerased", "unknown"

_CONTROLLER: Final = re.compile(r"nvme\d{1,5}", re.ASCII)
#: A namespace below its controller; with the kernel's multipath it is a path (c).
_NAMESPACE: Final = re.compile(r"(nvme\d{1,5})(?:c\d{1,5})?(n\d{1,5})", re.ASCII)
_COUNT: Final = re.compile(r"\d{1,15}", re.ASCII)
_NUMBERS: Final = re.compile(r"(\d{1,6}):(\d{1,7})", re.ASCII)
#: More than servers have; the rest is named as unknown.
_MOST: Final = 32
#: Bytes of a sample; samples evenly over the disk, and at random.
_SAMPLE: Final = 4096
_SPREAD, _RANDOM = 64, 64
#: Bytes that are read as a whole, at both ends: tables and signatures are there.
_END: Final = 256 << 10
#: Written into blocks by the host before it erases them.
_MARK: Final = b"nova-hpc erase marker "
_SECTOR: Final = 512


class NamespaceView(NamedTuple):
    """A block device of a disk, with its size in bytes and the content of its sampled blocks."""

    name: str
    #: Bytes; None if unknown.
    size: int | None
    #: EMPTY, NOISE, USED, UNERASED or UNKNOWN.
    content: str
    #: Samples that were read.
    samples: int = 0
    #: The first signs of use, or why the content is not known.
    words: tuple[str, ...] = ()


class DiskView(NamedTuple):
    """A disk as this machine sees it: its block devices, or the problem of reading it."""

    namespaces: tuple[NamespaceView, ...]
    #: Why no block device can be expected; None if one can.
    problem: str | None = None


def check_disk(
    root: Root, function: GuestFunction, must_be_empty: bool = False
) -> Iterator[tuple[str, bool]]:
    """Read blocks of an NVMe disk; returns texts, and whether each is about a fault.

    :param must_be_empty: the caller has not used it yet.
    """
    return _describe_disk(_read_disk(root, function), must_be_empty)


def _read_disk(root: Root, function: GuestFunction) -> DiskView:
    if function.driver != "nvme":
        bound = f"it is bound to {function.driver}" if function.driver else "no driver has it"
        return DiskView((), f"{bound}, so no blocks can be read")
    folder = f"{locate_function_folder(root, function.address)}/nvme"
    controllers = [name for name in root.names(folder) if _CONTROLLER.fullmatch(name)]
    if not controllers:
        return DiskView((), "the kernel shows no controller of it yet")
    state = root.text(f"{folder}/{controllers[0]}/state")
    place = f"{folder}/{controllers[0]}"
    found = [match for match in map(_NAMESPACE.fullmatch, root.names(place)) if match]
    views = [
        _read_namespace(root, f"{place}/{match[0]}", match[1] + match[2]) for match in found[:_MOST]
    ]
    views += [
        NamespaceView(match[1] + match[2], None, UNKNOWN, words=("not looked at",))
        for match in found[_MOST:]
    ]
    problem = f"its controller is {state}" if not views and state in _UNSETTLED else None
    return DiskView(tuple(views), problem)


def _read_namespace(root: Root, folder: str, name: str) -> NamespaceView:
    sectors = root.text(f"{folder}/size") or ""
    block = root.text(f"{folder}/queue/logical_block_size") or ""
    if not (_COUNT.fullmatch(sectors) and _COUNT.fullmatch(block)):
        return NamespaceView(name, None, UNKNOWN, words=("its size is not known",))
    size, unit = int(sectors) * _SECTOR, int(block)
    if size == 0 or unit not in (_SECTOR << shift for shift in range(8)):
        return NamespaceView(name, size, UNKNOWN, words=("it has no blocks that can be read",))
    parts = [
        each for each in root.names(folder) if re.fullmatch(rf"{name}p\d{{1,3}}", each, re.ASCII)
    ]
    words = [f"{len(parts)} partition{'s' * (len(parts) != 1)}"] if parts else []
    words += [
        f"part of {holder}"
        for holder in root.names(f"{folder}/holders")[:1]
        if holder.isprintable()
    ]
    try:
        handle = _open_device(root, name, root.text(f"{folder}/dev"))
    except OSError as error:
        reason = f"/dev/{name}: {describe_error(error)}"
        return NamespaceView(name, size, USED if words else UNKNOWN, words=(*words, reason)[:1])
    try:
        return _judge_samples(handle, name, size, unit, words)
    finally:
        os.close(handle)


def _open_device(root: Root, name: str, numbers: str | None) -> int:
    """Open a block device, or the file that stands for it below another root.

    :raises OSError: it cannot be opened, or is not the one with these device numbers.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(root.place(f"/dev/{name}"), flags)
    status = os.fstat(handle)
    match = _NUMBERS.fullmatch(numbers or "")
    same = match is not None and (int(match[1]), int(match[2])) == (
        os.major(status.st_rdev),
        os.minor(status.st_rdev),
    )
    captured = root.folder != "" and stat.S_ISREG(status.st_mode)
    if captured or (stat.S_ISBLK(status.st_mode) and same):
        return handle
    os.close(handle)
    raise OSError("another device is there")


def _judge_samples(handle: int, name: str, size: int, unit: int, words: list[str]) -> NamespaceView:
    """Read the samples and judge the content.

    The host's mark counts before all else. Partitions, holders, signatures and other data prove
    use. Without them a reading error makes the content unknown, and noise in one sample makes it
    noise. Only blank samples make it empty.
    """
    count = noise = data = 0
    unerased, problem = False, ""
    for place in choose_samples(size):
        want = min(_SAMPLE, size - place)
        try:
            piece = os.pread(handle, want, place)
        except OSError as error:
            problem = f"byte {place}: {describe_error(error)}"
            break
        if len(piece) != want:
            problem = f"byte {place} cannot be read"
            break
        count += 1
        if _is_blank(piece):
            continue
        unerased = unerased or _MARK in piece
        if _is_noise(piece):
            noise += 1
        else:
            data += 1
    if unerased:
        return NamespaceView(name, size, UNERASED, count, ("the host's mark of an erase is there",))
    if data:
        # Noise contains any two bytes by chance, so signatures count only if there are data.
        words += [word for word, look in _SIGNATURES if look(_Reader(handle, size, unit))]
        words = words or [f"{data} of {count} samples have data"]
    if problem and not words:
        return NamespaceView(name, size, UNKNOWN, count, (problem,))
    content = USED if words else NOISE if noise else EMPTY
    return NamespaceView(name, size, content, count, tuple(words))


def choose_samples(size: int) -> list[int]:
    """Choose the places of the samples in a disk of *size* bytes, as offsets in bytes.

    They are at both ends, evenly between, and at random.
    """
    last = max(0, size - 1) // _SAMPLE
    ends = _END // _SAMPLE
    numbers = {*range(min(ends, last + 1)), *range(max(0, last - ends), last + 1)}
    numbers.update(number * last // (_SPREAD - 1) for number in range(_SPREAD))
    numbers.update(random.randrange(last + 1) for _ in range(_RANDOM))
    return [number * _SAMPLE for number in sorted(numbers)]


def _is_blank(piece: bytes) -> bool:
    """Return whether the bytes read as an erased or deallocated block: all zeros, or all ones."""
    return piece[:1] in (b"\0", b"\xff") and piece.count(piece[:1]) == len(piece)


def _is_noise(piece: bytes) -> bool:
    """Return whether the bytes cannot be compressed, as encrypted or random data."""
    return len(piece) >= _SECTOR and len(zlib.compress(piece, 1)) >= len(piece) - len(piece) // 32


class _Reader(NamedTuple):
    """Reader of a device's bytes at places that may be behind its end."""

    handle: int
    size: int
    unit: int

    def at(self, place: int, length: int) -> bytes:
        try:
            return os.pread(self.handle, length, place) if 0 <= place < self.size else b""
        except OSError:
            return b""


def _has(place: int, magic: bytes) -> Callable[[_Reader], bool]:
    return lambda reader: reader.at(place, len(magic)) == magic


def _has_gpt(reader: _Reader) -> bool:
    places = (reader.unit, reader.size - reader.unit)
    return any(reader.at(place, 8) == b"EFI PART" for place in places)


def _has_boot_sector(reader: _Reader) -> bool:
    return reader.at(510, 2) == b"\x55\xaa"


def _has_lvm(reader: _Reader) -> bool:
    return any(reader.at(sector * _SECTOR, 8) == b"LABELONE" for sector in range(4))


def _has_raid(reader: _Reader) -> bool:
    magic = struct.pack("<I", 0xA92B4EFC)
    ends = ((reader.size & ~0xFFFF) - 0x10000, ((reader.size >> 9) - 16 & ~7) << 9)
    return any(reader.at(place, 4) in (magic, magic[::-1]) for place in (0, 4096, *ends))


def _has_zfs(reader: _Reader) -> bool:
    magic = struct.pack("<Q", 0x00BAB10C)
    places = range(128 << 10, 256 << 10, 1024)
    return any(reader.at(place, 8) in (magic, magic[::-1]) for place in places)


#: Words for people, and functions that recognise the content; the offsets are libblkid's.
_SIGNATURES: Final = (
    ("a GPT", _has_gpt),
    ("a boot sector", _has_boot_sector),
    ("LVM", _has_lvm),
    ("a RAID", _has_raid),
    ("LUKS", _has(0, b"LUKS\xba\xbe")),
    ("ext2 to ext4", _has(1080, b"\x53\xef")),
    ("XFS", _has(0, b"XFSB")),
    ("Btrfs", _has(65600, b"_BHRfS_M")),
    ("F2FS", _has(1024, b"\x10\x20\xf5\xf2")),
    ("NTFS", _has(3, b"NTFS    ")),
    ("exFAT", _has(3, b"EXFAT   ")),
    ("swap", _has(4086, b"SWAPSPACE2")),
    ("ZFS", _has_zfs),
)


def _describe_disk(view: DiskView, must_be_empty: bool) -> Iterator[tuple[str, bool]]:
    if view.problem is not None:
        yield f"content unknown: {view.problem}", False
        return
    if not view.namespaces:
        yield "no block device: it has no namespace that this kernel knows", True
    for each in view.namespaces:
        size = "" if each.size is None else f" ({each.size >> 20} MiB)"
        yield (
            f"{each.name}{size}: {_describe_content(each)}",
            each.content == UNERASED or (must_be_empty and each.content == USED),
        )


def _describe_content(view: NamespaceView) -> str:
    words = ", ".join(view.words)
    if view.content == EMPTY:
        return f"empty: {view.samples} samples of 4 KiB are zeros or ones"
    if view.content == NOISE:
        return (
            "unknown: not zero, and noise as after an erase of the key, or encrypted data "
            f"({view.samples} samples)"
        )
    if view.content == USED:
        return f"not empty: {words}"
    return f"{'not erased' if view.content == UNERASED else 'content unknown'}: {words}"
