# SPDX-License-Identifier: Apache-2.0
"""The host's data in a segment's file: bytes, and their places.

A guest sees the file as an NVDIMM. Its first 2 MiB contain the label of a device-dax
namespace; from it the guest's kernel creates ``/dev/daxX.0`` over the rest (``struct nd_pfn_sb``
of drivers/nvdimm/pfn.h, read by ``nd_pfn_validate`` of pfn_devs.c; Linux 4.7 and newer). The
rest begins with the segment's head, and the parts follow.

Any guest of the segment can write to all of it. So the host writes it, and never reads it back.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

from nova_hpc.placement.segment_shape import PAGE, SegmentShape

#: Offset of the label in the file.
LABEL_AT: Final = 4096
#: Offset of the device in the file; it begins with the head.
DEVICE_AT: Final = PAGE

#: "NHPCSHM1", read as one little-endian number.
MAGIC: Final = 0x314D48534350484E
#: Version of the head and of the layout behind it.
VERSION: Final = 1
_HEAD: Final = struct.Struct("<QIIQQ16s")

#: Offset of the servers' names in the device, and the length of each.
MEMBERS_AT: Final = 4096
MEMBER: Final = 64

#: ``struct nd_pfn_sb`` up to ``page_struct_size``; zeros and the checksum follow.
_LABEL: Final = struct.Struct("<16s16s16sIHHQQIIIIIH")
_LABEL_BYTES: Final = 4096
_CHECKSUM_AT: Final = 4088
_SIGNATURE: Final = b"NVDIMM_DAX_INFO\0"
#: Version 1.4 includes the sizes of pages and of ``struct page``.
_MAJOR, _MINOR = 1, 4
#: ``enum nd_pfn_mode``: the kernel keeps its records of pages in ordinary memory.
_MODE_RAM: Final = 1
_SMALL_PAGE: Final = 4096
#: Size of ``struct page``. A kernel with a larger one refuses the label; no kernel has one.
_PAGE_STRUCT: Final = 64


def write_label(shape: SegmentShape, label_uuid: uuid.UUID) -> bytes:
    """Return the label of a file of *shape*, for :data:`LABEL_AT`.

    :param label_uuid: a new one for each file.
    """
    block = bytearray(_LABEL_BYTES)
    _LABEL.pack_into(
        block,
        0,
        *(_SIGNATURE, label_uuid.bytes, bytes(16)),
        *(0, _MAJOR, _MINOR),  # flags and version
        DEVICE_AT,  # dataoff
        shape.device_bytes // _SMALL_PAGE,  # npfns
        *(_MODE_RAM, 0, 0),  # mode, start_pad, end_trunc
        *(PAGE, _SMALL_PAGE, _PAGE_STRUCT),
    )
    struct.pack_into("<Q", block, _CHECKSUM_AT, _checksum_of(block))
    return bytes(block)


def _checksum_of(block: bytes | bytearray) -> int:
    """Return Fletcher's sum, as ``nd_fletcher64`` of drivers/nvdimm/core.c computes it."""
    low = high = 0
    for (word,) in struct.iter_unpack("<I", block):
        low = (low + word) & 0xFFFFFFFF
        high += low
    return (high << 32 | low) & 0xFFFFFFFFFFFFFFFF


def write_head(shape: SegmentShape, segment_uuid: uuid.UUID) -> bytes:
    """Return the head of a segment, for :data:`DEVICE_AT`.

    :param segment_uuid: a new one for each segment: guests with the same UUID share its memory.
    """
    return _HEAD.pack(
        *(MAGIC, VERSION, shape.parts, shape.part_bytes, shape.device_bytes, segment_uuid.bytes)
    )


def member_place_of(part: int) -> int:
    """Return the offset in the file of the name of a *part*'s server."""
    return DEVICE_AT + MEMBERS_AT + part * MEMBER


def write_member(server: str | None) -> bytes:
    """Return the name of a server as bytes; None for an unused part."""
    return (server or "").encode("ascii")[:MEMBER].ljust(MEMBER, b"\0")
