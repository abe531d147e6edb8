# SPDX-License-Identifier: Apache-2.0
"""The process that reads the fabric, where there is none."""

import pytest

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


def test_a_secret_is_not_shown() -> None:
    assert "123456" not in repr(ReaderSettings(m_key=123456))
