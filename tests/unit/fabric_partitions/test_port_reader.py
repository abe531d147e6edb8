# SPDX-License-Identifier: Apache-2.0
"""The process that reads the fabric, where there is none."""

import pytest

from nova_hpc.fabric.partitions import port_reader, port_reader_call
from nova_hpc.fabric.partitions.port_reader import (
    PortReader,
    PortReaderError,
    ReaderSettings,
    find_local_port,
)
from nova_hpc.fabric.partitions.port_tables import EndPort


def test_the_local_port_is_found_by_its_guid(tmp_path) -> None:
    for device, port, guid in (("mlx5_0", 1, "0001"), ("mlx5_1", 2, "0011")):
        folder = tmp_path / device / "ports" / str(port) / "gids"
        folder.mkdir(parents=True)
        (folder / "0").write_text(f"fe80:0000:0000:0000:0002:c900:0020:{guid}\n")
    assert find_local_port(0x0002C90000200011, tmp_path) == ("mlx5_1", 2)
    with pytest.raises(PortReaderError, match="no local port has the GUID 0x0002c90000200021"):
        find_local_port(0x0002C90000200021, tmp_path)


def test_what_is_not_there_is_said_each_time() -> None:
    reader = PortReader(ReaderSettings(guid=0xDEAD))
    for _ in range(2):
        with pytest.raises(PortReaderError, match="no local port has the GUID"):
            reader.read_ports()
    assert reader.read_tables([]) == {}
    with pytest.raises(PortReaderError):
        reader.read_tables([EndPort(1, "ca", 1, 1, (2, 1))])
    reader.close()
    reader.close()


@pytest.mark.parametrize(
    ("program", "seconds", "reason"),
    [
        ("import time; time.sleep(60)", 0.5, "it takes no question in"),
        ("import sys, time; sys.stdin.readline(); time.sleep(60)", 0.5, "in 0 seconds"),
        ("import sys; sys.stdin.readline(); sys.exit(3)", 60.0, "the process ended with 3"),
        ("import sys; sys.stdin.readline(); print('nonsense')", 60.0, "Expecting value"),
        ("import sys; sys.exit('no library')", 60.0, r"\(no library\)"),
    ],
)
def test_a_process_that_hangs_or_dies_is_noticed(
    tmp_path, monkeypatch, program, seconds, reason
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    monkeypatch.setattr(port_reader, "_CALL", str(path))
    monkeypatch.setattr(port_reader, "_SECONDS", seconds)
    monkeypatch.setattr(port_reader, "_MARGIN", 0.0)
    reader = PortReader(ReaderSettings())
    # More than a pipe holds.
    ports = [
        EndPort(guid, "ca", guid, 1, (2, 1), (1, 2, 3)) for guid in range(1 << 60, 5000 + (1 << 60))
    ]
    for _ in range(2):
        with pytest.raises(PortReaderError, match=reason):
            reader.read_tables(ports)
    reader.close()


def test_a_secret_is_not_shown() -> None:
    assert "123456" not in repr(ReaderSettings(m_key=123456))


class _OneWay:
    """A port and its switch; the port tells the state of its link, or not."""

    def __init__(self, state):
        self.state = state

    def ask(self, path, attribute, modifier):
        data = bytearray(64)
        if attribute == port_reader_call._PORT_INFO and self.state is None:
            return None
        if attribute == port_reader_call._NODE_INFO:
            data[20:30] = (0xA).to_bytes(8, "big") + (32).to_bytes(2, "big")
        elif attribute == port_reader_call._SWITCH_INFO:
            data[14:16] = (32).to_bytes(2, "big")
        elif attribute == port_reader_call._PORT_INFO:
            data[32] = self.state
        else:
            data[:4] = b"\x7f\xff\x81\x01"
        return bytes(data)


@pytest.mark.parametrize(
    ("state", "read"),
    [
        (4, [[0x7FFF, 0x8101], [0x7FFF, 0x8101], False]),
        (2, [[0x7FFF, 0x8101], [0x7FFF, 0x8101], True]),
        (None, [None, [0x7FFF, 0x8101], False]),
    ],
)
def test_a_port_that_does_not_tell_its_link_is_unread(state, read):
    """Its tables may be right while no data passes."""
    tables = port_reader_call._Tables(_OneWay(state))
    assert tables.read([0xA, "ca", 5, 1, 99, 3, [1, 3], True]) == read
