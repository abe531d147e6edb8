# SPDX-License-Identifier: Apache-2.0
"""What the host writes into a segment's file: bytes, and where they go.

The file is what a guest sees as an NVDIMM. Its first 2 MiB have the label of a device-dax
namespace, of which the guest's kernel makes ``/dev/daxX.0`` over the rest (``struct nd_pfn_sb``
of drivers/nvdimm/pfn.h, read by ``nd_pfn_validate`` of pfn_devs.c; Linux 4.7 and newer). The
rest begins with the segment's head, and the parts follow.

Any guest of the segment can write all of it. So it is written, and never read back.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

from nova_hpc.placement.segment_shape import PAGE, SegmentShape

#: Where the label lies in the file.
LABEL_AT: Final = 4096
#: Where the device begins in the file, with the head.
DEVICE_AT: Final = PAGE

#: "NHPCSHM1", read as one little-endian number.
MAGIC: Final = 0x314D48534350484E
#: Of the head and what lies behind it.
VERSION: Final = 1
_HEAD: Final = struct.Struct("<QIIQQ16s")

#: Where in the device the names of the servers are, and how long each is.
MEMBERS_AT: Final = 4096
MEMBER: Final = 64

#: ``struct nd_pfn_sb`` up to ``page_struct_size``; zeros and the checksum follow.
_LABEL: Final = struct.Struct("<16s16s16sIHHQQIIIIIH")
_LABEL_BYTES: Final = 4096
_CHECKSUM_AT: Final = 4088
_SIGNATURE: Final = b"NVDIMM_DAX_INFO\0"
#: Version 1.4 has the sizes of pages and of ``struct page``.
_MAJOR, _MINOR = 1, 4
#: ``enum nd_pfn_mode``: the kernel keeps its records of pages in ordinary memory.
_MODE_RAM: Final = 1
_SMALL_PAGE: Final = 4096
#: Of ``struct page``; a kernel with a larger one refuses it, and none has.
_PAGE_STRUCT: Final = 64


def write_label(shape: SegmentShape, label_uuid: uuid.UUID) -> bytes:
    """The label of a file of *shape*, for :data:`LABEL_AT`.

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
    """Fletcher's sum, as ``nd_fletcher64`` of drivers/nvdimm/core.c computes it."""
    low = high = 0
    for (word,) in struct.iter_unpack("<I", block):
        low = (low + word) & 0xFFFFFFFF
        high += low
    return (high << 32 | low) & 0xFFFFFFFFFFFFFFFF


def write_head(shape: SegmentShape, segment_uuid: uuid.UUID) -> bytes:
    """The head of a segment, for :data:`DEVICE_AT`.

    :param segment_uuid: a new one for each segment: who has the same one sees the same memory.
    """
    return _HEAD.pack(
        *(MAGIC, VERSION, shape.parts, shape.part_bytes, shape.device_bytes, segment_uuid.bytes)
    )


def member_place_of(part: int) -> int:
    """Where in the file the name of the server of a *part* is."""
    return DEVICE_AT + MEMBERS_AT + part * MEMBER


def write_member(server: str | None) -> bytes:
    """The name of a server; None: nobody has the part."""
    return (server or "").encode("ascii")[:MEMBER].ljust(MEMBER, b"\0")
