# SPDX-License-Identifier: Apache-2.0
"""Names of files, and what a domain says of the memory that it shares."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova_hpc.placement.segment_shape import SegmentShape
from nova_hpc.tenancy.segments import segment_record
from nova_hpc.tenancy.segments.segment_record import SegmentFileName, SegmentUse

GROUP = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
FOLDER = PurePosixPath("/dev/shm/nova-hpc")
NAMES = st.builds(
    SegmentFileName,
    st.uuids().map(str),
    st.integers(0, 1023),
    st.builds(SegmentShape, st.integers(2, 4096), st.integers(2, 16)),
    st.integers(0, 2**32 - 1).map("{:08x}".format),
)


@given(NAMES)
def test_a_name_says_all_again(name: SegmentFileName) -> None:
    assert segment_record.parse_file_name(str(name)) == name


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f-]{36}\.node[0-9]\.[0-9x]{1,8}\.[0-9a-f]{8}")))
def test_another_text_is_no_name(text: str) -> None:
    name = segment_record.parse_file_name(text)
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "../x", "lock", f"{GROUP}", f"{GROUP}.node0.2x64.0123456"),
        *(f"{GROUP}.node0.2x64.0123456G", f"{GROUP}.node00.2x64.01234567"),
        *(f"{GROUP}.node0.02x64.01234567", f"{GROUP}.node0.2x64.01234567\n"),
        *(f"{GROUP.upper()}.node0.2x64.01234567", f"{GROUP}.node٣.2x64.01234567"),
    ],
)
def test_names_that_are_none(text: str) -> None:
    assert segment_record.parse_file_name(text) is None


def test_names_are_not_used_twice() -> None:
    shape = SegmentShape(64, 2)
    names = {str(segment_record.name_new_file(GROUP, 0, shape)) for _ in range(1000)}
    assert len(names) == 1000


def uses(devices: str) -> tuple[SegmentUse, ...]:
    text = f"<domain><devices>{devices}</devices></domain>"
    return segment_record.read_segment_uses(etree.fromstring(text))


def memory(path: str, alias: str = "", model: str = "nvdimm") -> str:
    source = f"<source><path>{path}</path></source>" if path else ""
    return f"<memory model='{model}'>{source}{alias}</memory>"


@pytest.mark.parametrize(
    ("alias", "part"),
    [
        ("<alias name='ua-hpc-shared-0'/>", 0),
        ("<alias name='ua-hpc-shared-15'/>", 15),
        ("<alias name='ua-hpc-shared-16'/>", None),
        ("<alias name='ua-hpc-shared-1\n'/>", None),
        ("<alias name='nvdimm0'/>", None),
        ("<alias/>", None),
        ("", None),
    ],
)
def test_the_part_is_in_the_name_of_the_device(alias: str, part: int | None) -> None:
    assert uses(memory("/x/y", alias)) == (SegmentUse("/x/y", part),)


def test_memory_without_a_file_is_none_of_ours() -> None:
    assert uses(memory("", model="dimm") + "<memory model='virtio-mem'/>") == ()


def test_the_file_counts_in_the_directory_alone() -> None:
    name = SegmentFileName(GROUP, 0, SegmentShape(64, 2), "01234567")
    assert SegmentUse(f"{FOLDER}/{name}", 0).file_in(FOLDER) == name
    assert SegmentUse(f"/tmp/{name}", 0).file_in(FOLDER) is None
    assert SegmentUse(f"{FOLDER}/x/{name}", 0).file_in(FOLDER) is None
    assert SegmentUse(f"{FOLDER}/pmem0", 0).file_in(FOLDER) is None
