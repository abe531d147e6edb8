# SPDX-License-Identifier: Apache-2.0
"""Configuration spaces."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import confspace
from nova_hpc.topology.model import BridgeKind
from tests.unit.topology.builder import EXPRESS, config


def test_an_endpoint() -> None:
    space = confspace.parse_config_space(config(flr=True))
    assert (space.vendor_id, space.product_id, space.class_code) == ("10de", "2330", "030200")
    assert space.revision == "a1"
    assert space.header_type == 0
    assert space.flr is True
    assert space.link is not None
    assert (space.link.speed, space.link.width) == (16.0, 16)
    assert (space.link.max_speed, space.link.max_width) == (32.0, 16)
    assert space.link.degraded is True
    assert space.link.narrow is False


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4, BridgeKind.ROOT_PORT),
        (5, BridgeKind.UPSTREAM),
        (6, BridgeKind.DOWNSTREAM),
        (7, BridgeKind.PCI),
        (9, None),
    ],
)
def test_kinds_of_ports(code: int, kind: BridgeKind | None) -> None:
    space = confspace.parse_config_space(
        config(class_code=0x060400, header=1, buses=(5, 9), port=code)
    )
    assert space.port is kind
    assert space.buses == (5, 9)


@pytest.mark.parametrize(
    ("can", "does", "isolates"),
    [
        (0x1F, 0x1D, True),
        (0x1F, 0x1F, True),
        (0x1F, 0x1C, False),
        (0x1F, 0x00, False),
        # What a port cannot switch off is always on.
        (0x00, 0x00, True),
        (0x0D, 0x0D, True),
        (0x0D, 0x0C, False),
    ],
)
def test_acs(can: int, does: int, isolates: bool) -> None:
    space = confspace.parse_config_space(config(port=4, header=1, acs=(can, does)))
    assert space.acs_control == does
    assert space.acs_isolates is isolates


def test_acs_is_unknown_without_the_extended_space() -> None:
    for size in (64, 256):
        space = confspace.parse_config_space(config(acs=(0x1F, 0x1D), size=size))
        assert space.acs_control is None
        assert space.acs_isolates is None
    none = confspace.parse_config_space(config())
    assert (none.acs_control, none.acs_isolates) == (0, False)
    conventional = confspace.parse_config_space(config(port=None, size=256))
    assert (conventional.acs_control, conventional.acs_isolates) == (0, False)


def test_the_first_64_bytes_have_the_identity_only() -> None:
    space = confspace.parse_config_space(config(size=64))
    assert space.vendor_id == "10de"
    assert space.express is None
    assert space.link is None
    assert space.flr is None


def test_a_virtual_function_has_no_identity_of_its_own() -> None:
    space = confspace.parse_config_space(config(0xFFFF, 0xFFFF))
    assert space.vendor_id is None
    assert space.class_code == "030200"
    assert not space.silent


def test_a_function_that_does_not_answer_is_silent() -> None:
    assert confspace.parse_config_space(b"\xff" * 4096) == confspace.ConfigSpace(silent=True)
    assert confspace.parse_config_space(b"\xff" * 63) == confspace.ConfigSpace()


def test_loops_of_capabilities_end() -> None:
    data = bytearray(config(acs=(0, 0)))
    data[EXPRESS] = 0x01
    data[EXPRESS + 1] = EXPRESS
    assert confspace.parse_config_space(bytes(data)).express is False
    data = bytearray(config())
    data[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert confspace.parse_config_space(bytes(data)).acs_control == 0


@pytest.mark.parametrize(
    ("speed", "width", "rate"), [(2.5, 1, 0.25), (8.0, 16, 15.754), (32.0, 16, 63.015)]
)
def test_bandwidth(speed: float, width: int, rate: float) -> None:
    assert confspace.link_bandwidth_of(speed, width) == rate


@given(st.binary(max_size=5000))
def test_any_bytes_are_read(data: bytes) -> None:
    confspace.parse_config_space(data)


@given(st.data())
def test_damaged_spaces_are_read(data: st.DataObject) -> None:
    space = bytearray(config(acs=(0x1F, 0x1D), header=data.draw(st.sampled_from([0, 1]))))
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.sampled_from([6, 0x34, 0x40, 0x41, 0x42, *range(0x100, 0x148)]))
        space[place] = data.draw(st.integers(0, 255))
    confspace.parse_config_space(bytes(space[: data.draw(st.integers(0, 4096))]))


@given(data=st.data())
def test_what_is_not_looked_at_is_not_read(data: st.DataObject) -> None:
    """Whatever the space holds, the parts that are read say the same as all of it."""
    space = bytearray(config(acs=(0x1F, 0x1D), subsystem=(0x10DE, 0x16C1)))
    for _ in range(data.draw(st.integers(0, 6))):
        # Heads of capabilities, so that chains lead anywhere.
        offset = 4 * data.draw(st.integers(0, len(space) // 4 - 1))
        head = data.draw(st.sampled_from([0x0D, 0x0F, 0x01, 0xFFFF])) | 1 << 16
        struct.pack_into("<I", space, offset, head | data.draw(st.integers(0, 0xFFF)) << 20)
    del space[data.draw(st.sampled_from([0, 64, 256, 4096])) :]
    with tempfile.TemporaryFile() as file:
        file.write(space)
        file.flush()
        skimmed = confspace.skim_config(file.fileno())
    assert confspace.parse_config_space(skimmed) == confspace.parse_config_space(bytes(space))


def test_all_ones_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"\xff" * 4096)
    with (tmp_path / "config").open("rb") as file:
        assert confspace.parse_config_space(confspace.skim_config(file.fileno())).silent
