# SPDX-License-Identifier: Apache-2.0
"""What the host writes into a segment: by the kernel's rules, and byte for byte."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.segment_shape import MIB, SegmentShape, count_parts
from nova_hpc.tenancy.segments import label

GOLDEN = Path(__file__).parents[2] / "data/golden/segment"
NUMBER = uuid.UUID("0b8c2a51-7c3e-4d5f-9a61-2f3e4d5c6b7a")
SERVER = "11111111-2222-3333-4444-555555555555"
SHAPES = st.builds(
    SegmentShape, st.integers(1, 2048).map(lambda half: 2 * half), st.integers(2, 16)
)


class RefusedLabelError(Exception):
    """What the kernel returns instead of making a device."""


def fletcher(block: bytes) -> int:
    """nd_fletcher64: two sums of 32 and 64 bits over words of 32."""
    low = high = 0
    for at in range(0, len(block), 4):
        low = (low + int.from_bytes(block[at : at + 4], "little")) % 2**32
        high = (high + low) % 2**64
    return (high * 2**32 + low) % 2**64


def kernel_reads(block: bytes, size: int, start: int = 0x140000000) -> int:
    """What nd_pfn_validate and nd_dax_probe do with a label; the bytes of the device.

    :param size: of the namespace.
    :param start: its address in the guest.
    """
    field = struct.Struct("<16s16s16sIHHQQIIIIIH").unpack_from(block)
    signature, _, parent, _, major, minor, offset, pages, mode, pad, cut, align, page, entry = field
    if signature != b"NVDIMM_DAX_INFO\0":
        raise RefusedLabelError("signature")
    blank = block[:4088] + bytes(8)
    if int.from_bytes(block[4088:], "little") != fletcher(blank):
        raise RefusedLabelError("checksum")
    if parent != bytes(16):  # of a namespace without labels of its own
        raise RefusedLabelError("parent")
    if (major, minor) != (1, 4) or mode not in (1, 2):
        raise RefusedLabelError("version")
    if align not in (4096, 2 * MIB, 1 << 30) or align > size:
        raise RefusedLabelError("align")
    if page != 4096 or entry < 64:
        raise RefusedLabelError("page")
    if offset >= size or offset < 8192 or (start + offset + pad) % align or offset % 4096:
        raise RefusedLabelError("offset")
    if (start + pad) % (2 * MIB) or (start + size - cut) % (2 * MIB):
        raise RefusedLabelError("alignment of the whole")
    length = size - pad - offset - cut
    if pages != length // 4096 or length % align:
        raise RefusedLabelError("pages")
    return length


@given(SHAPES)
def test_the_kernel_makes_a_device_of_it(shape: SegmentShape) -> None:
    block = label.write_label(shape, NUMBER)
    assert kernel_reads(block, shape.file_bytes) == shape.device_bytes


@pytest.mark.parametrize("place", [0, 20, 33, 60, 70, 72, 84, 2000, 4095])
def test_any_other_byte_is_refused(place: int) -> None:
    shape = SegmentShape(64, 2)
    block = bytearray(label.write_label(shape, NUMBER))
    block[place] ^= 1
    with pytest.raises(RefusedLabelError):
        kernel_reads(bytes(block), shape.file_bytes)


def test_the_bytes_are_those_of_the_golden_files() -> None:
    shape = SegmentShape(64, 2)
    assert label.write_label(shape, NUMBER).hex() == (GOLDEN / "label.hex").read_text().strip()
    assert label.write_head(shape, NUMBER).hex() == (GOLDEN / "head.hex").read_text().strip()


@given(SHAPES)
def test_the_head_says_what_the_library_reads(shape: SegmentShape) -> None:
    head = struct.unpack("<QIIQQ16s", label.write_head(shape, NUMBER))
    assert head[0].to_bytes(8, "little") == b"NHPCSHM1"
    assert head[1:] == (
        *(1, shape.parts, shape.part_mib * MIB, 2 * MIB + shape.parts * shape.part_mib * MIB),
        NUMBER.bytes,
    )
    assert shape.file_bytes == 4 * MIB + shape.parts * shape.part_mib * MIB


@given(SHAPES)
def test_names_lie_between_the_head_and_the_parts(shape: SegmentShape) -> None:
    places = [label.member_place_of(part) for part in range(shape.parts)]
    assert places == [2 * MIB + 4096 + 64 * part for part in range(shape.parts)]
    assert places[0] >= label.DEVICE_AT + 48
    assert places[-1] + 64 <= label.DEVICE_AT + 2 * MIB
    assert label.write_member(SERVER) == SERVER.encode() + bytes(28)
    assert label.write_member(None) == bytes(64)


@given(st.integers(0, 1024), st.integers(1, 256))
def test_there_are_as_many_parts_as_servers_fit(dedicated: int, vcpus: int) -> None:
    servers = 0
    while (servers + 1) * vcpus <= dedicated:
        servers += 1
    assert count_parts(dedicated, vcpus) == sorted((2, servers, 16))[1]
