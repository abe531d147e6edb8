# SPDX-License-Identifier: Apache-2.0
"""Which piece of hardware a device is, by its own words."""

import pytest

from tests.unit.tenancy.hygiene_node import GPU, config, make, record, sweep

#: A server.
ONE = "11111111-1111-1111-1111-111111111111"


@pytest.fixture
def node(tmp_path):
    return make(tmp_path)


def with_serial(text):
    """A configuration space whose first extended capability is a serial number."""
    data = bytearray(config())
    data[0x100:0x10C] = (0x0003 | 1 << 16).to_bytes(4, "little") + int(text, 16).to_bytes(
        8, "little"
    )
    return bytes(data)


def vital(*words):
    """Vital product data: a name, and a read-only part with keywords."""
    part = b"".join(key + bytes([len(text)]) + text for key, text in words)
    name = b"GPU"
    return (
        *(b"\x82", len(name).to_bytes(2, "little"), name),
        *(b"\x90", len(part).to_bytes(2, "little"), part, b"\x78"),
    )


@pytest.mark.parametrize(
    ("space", "vpd", "hardware"),
    [
        (with_serial("48b02d0300a1b2c3"), (), "serial:48b02d0300a1b2c3"),
        (with_serial("48b02d0300a1b2c3"), vital((b"SN", b"S1")), "serial:48b02d0300a1b2c3"),
        (with_serial("f" * 16), vital((b"PN", b"x" * 9), (b"SN", b"S1 ")), "vpd:S1"),
        (with_serial("0" * 16), vital((b"PN", b"x")), f"slot:{GPU}"),
        (config(), vital((b"SN", b"\x00\x01")), f"slot:{GPU}"),
        (config(), (b"\x90\xff\xff", b"SN\xff"), f"slot:{GPU}"),
        (config(), (b"\xff" * 300,), f"slot:{GPU}"),
        (config(), (), f"slot:{GPU}"),
    ],
)
def test_which_hardware_it_is_stands_with_the_baseline(node, space, vpd, hardware):
    (node.devices / GPU / "config").write_bytes(space)
    if vpd:
        (node.devices / GPU / "vpd").write_bytes(b"".join(vpd))
    assert sweep(node) == {}
    assert record(node).hardware == hardware
    node.step().give(ONE, node.candidates(GPU))
    node.step().take_back(ONE, {})
    assert record(node).hardware == hardware
    # Another board in its place is noticed at the next look.
    (node.devices / GPU / "config").write_bytes(with_serial("00000000000000aa"))
    sweep(node)
    assert record(node).hardware == "serial:00000000000000aa"
