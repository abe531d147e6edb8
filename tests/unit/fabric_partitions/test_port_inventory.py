# SPDX-License-Identifier: Apache-2.0
"""The inventory of physical ports."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.partitions.port_inventory import (
    PhysicalPort,
    PortInventory,
    PortInventoryError,
    PortInventoryFile,
    parse_inventory,
    render_inventory,
)

ONE = PhysicalPort("cn1", "0000:31:00.0", 0x2C90000200001, ("0000:31:00.2", "0000:31:00.3"))
TWO = PhysicalPort("cn2", "0000:31:00.0", 0x2C90000200011)
TEXT = """\
version: 1
ports:
- host: cn1
  address: 0000:31:00.0
  guid: 0x0002c90000200001
  functions: [0000:31:00.2, "0000:31:00.3"]
- {host: cn2, address: "0000:31:00.0", guid: "0002:c900:0020:0011"}
"""


def test_a_slot_of_a_port_or_of_a_function_leads_to_the_port() -> None:
    inventory = parse_inventory(TEXT)
    assert inventory == PortInventory((ONE, TWO))
    assert inventory.find_port("cn1", "0000:31:00.0") == ONE
    assert inventory.find_port("cn1", "0000:31:00.3") == ONE
    assert inventory.find_port("cn2", "0000:31:00.0") == TWO
    assert inventory.find_port("cn2", "0000:31:00.3") is None
    assert inventory.find_port("cn3", "0000:31:00.0") is None
    assert inventory.find_port("cn1", None) is None
    assert inventory.find_port("cn1", "nonsense") is None
    assert inventory.port_of_guid(0x2C90000200011) == TWO
    assert inventory.port_of_guid(1) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (TEXT, "", "no ports"),
        (TEXT, "[]", "no ports"),
        (TEXT, "{", "no YAML"),
        (TEXT, "version: 1", "ports is no list"),
        ("version: 1", "version: 2", "version is '2', and has to be 1"),
        ("version: 1", "ports: []\nversion: 1", "ports is given twice"),
        ("version: 1", "version: 1\nextra: 2", "the inventory has 'extra'"),
        ("- host: cn1", "- nonsense\n- host: cn1", "entry 1 is no port"),
        ("- host: cn1", "- host: ''", "entry 1: host is ''"),
        ("- host: cn1", "- host: [a]", "entry 1: host is"),
        ("host: cn2", "host: cn2, hosts: 1", "entry 2 (cn2) has 'hosts'"),
        ("0000:31:00.0\n", "0000:31:00\n", "entry 1 (cn1): address: '0000:31:00' is no PCI"),
        ("[0000:31:00.2,", "[0000:31:00.9,", "functions: '0000:31:00.9' is no PCI address"),
        ("[0000:31:00.2,", "x #", "functions is no list"),
        ("0x0002c90000200001", "0", "entry 1 (cn1) 0000:31:00.0: '0' is no port GUID"),
        ("  guid: 0x0002c90000200001\n", "", "None is no port GUID"),
        ("0002:c900:0020:0011", "0x2c90000200001", "is the GUID of cn1 0000:31:00.0 and of cn2"),
        ("host: cn2", "host: cn1", "0000:31:00.0 of cn1 leads to"),
        ("31:00.2,", "31:00.3,", "has a function twice"),
        ("31:00.2,", "31:00.0,", "itself as a function"),
        (
            'cn2, address: "0000:31:00.0"',
            'cn1, address: "0000:31:00.3"',
            "0000:31:00.3 of cn1 leads to 0000:31:00.0 and to 0000:31:00.3",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(old: str, new: str, reason: str) -> None:
    assert old in TEXT
    with pytest.raises(PortInventoryError) as caught:
        parse_inventory(TEXT.replace(old, new, 1))
    assert reason in str(caught.value)


@given(
    st.lists(
        st.builds(
            lambda host, bus, guid, count: PhysicalPort(
                f"cn{host}",
                f"0000:{bus:02x}:00.0",
                guid,
                tuple(f"0000:{bus:02x}:00.{1 + each}" for each in range(count)),
            ),
            st.integers(0, 5),
            st.integers(0, 255),
            st.integers(1, (1 << 64) - 1),
            st.integers(0, 6),
        ),
        unique_by=(lambda port: (port.host, port.address), lambda port: port.guid),
        max_size=8,
    )
)
def test_what_is_written_is_read(ports) -> None:
    ordered = sorted(ports, key=lambda port: (port.host, port.address))
    assert parse_inventory(render_inventory(ports)).ports == tuple(ordered)


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "ports.yaml"
    file = PortInventoryFile(path)
    with pytest.raises(PortInventoryError, match=r"No such file.*port_inventory"):
        file.load()
    path.write_text(render_inventory([ONE]))
    assert file.load().ports == (ONE,)
    assert file.load() is file.load()
    path.write_text(render_inventory([ONE, TWO]))
    assert file.load().ports == (ONE, TWO)
    assert file.complaint is None


@pytest.mark.parametrize("text", ["", "nonsense", "version: 1\nports: []\n", None])
def test_a_file_that_breaks_leaves_the_last_good_one(tmp_path, caplog, text) -> None:
    path = tmp_path / "ports.yaml"
    path.write_text(render_inventory([ONE]))
    file = PortInventoryFile(path)
    file.load()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    for _ in range(3):
        assert file.load().ports == (ONE,)
    assert file.complaint is not None
    assert file.complaint.startswith(f"{path}: ")
    # Said once.
    assert [row.message for row in caplog.records if row.levelname == "ERROR"] == [
        f"{file.complaint}; the last good inventory is used"
    ]
    path.write_text(render_inventory([TWO]))
    assert file.load().ports == (TWO,)
    assert file.complaint is None


def test_a_file_of_the_same_size_and_time_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "ports.yaml"
    path.write_text(render_inventory([ONE]))
    file = PortInventoryFile(path)
    file.load()
    before = path.stat()
    beside = tmp_path / "beside"
    beside.write_text(render_inventory([ONE]).replace("cn1", "cn9"))
    os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    beside.rename(path)
    assert file.load().ports[0].host == "cn9"
