# SPDX-License-Identifier: Apache-2.0
"""Names in shared memory, written by the helper of a nova-compute that is not root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.placement.segment_shape import MIB, SegmentShape
from nova_hpc.tenancy.segments import segment_record
from nova_hpc.tenancy.segments.segment_file import SegmentError, SegmentFolder
from virt_driver_patches import privileged

SERVER = "11111111-2222-4333-8444-555555555555"
QEMU, NOVA = 12345, 12346

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


@pytest.fixture
def folder() -> Iterator[SegmentFolder]:
    """A directory of the service's user."""
    hpc_conf.register_all_options(cfg.CONF)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        path = Path(top) / "nova-hpc"
        cfg.CONF.set_override("shared_memory_dir", str(path), group="hpc")
        privileged.default.set_client_mode(False)
        yield SegmentFolder(path, bind=lambda file, size, node: None)
        privileged.default.set_client_mode(True)
        cfg.CONF.clear_override("shared_memory_dir", group="hpc")


def test_names_are_written_and_nothing_else(folder: SegmentFolder) -> None:
    name = segment_record.name_new_file(SERVER, 0, SegmentShape(2, 2))
    folder.make_file(name)
    path = folder.path / str(name)
    os.chown(folder.path, NOVA, NOVA)
    os.chown(path, QEMU, QEMU)  # as libvirt does
    before = path.read_bytes()
    privileged.write_members_by_helper(name, {1: SERVER})
    text = SERVER.encode().ljust(64, b"\0")
    place = 2 * MIB + 4096 + 64
    assert path.read_bytes() == before[:place] + text + before[place + 64 :]
    before = path.read_bytes()
    for file, members in (
        ("../../etc/passwd", [[0, SERVER]]),
        (str(name), [[0, "no number"]]),
        (str(name), [["zero", SERVER]]),
        (str(segment_record.name_new_file(SERVER, 0, SegmentShape(2, 2))), [[0, SERVER]]),
    ):
        assert isinstance(privileged._write_members_in_helper(file, members), str)
    # A name for a file of somebody else's.
    os.link(path, folder.path / "second")
    privileged.write_members_by_helper(name, {0: SERVER})
    assert path.read_bytes() == before
    (folder.path / "second").unlink()
    folder.path.chmod(0o777)
    with pytest.raises(SegmentError, match="others may write in"):
        privileged.write_members_by_helper(name, {0: SERVER})
    assert path.read_bytes() == before
