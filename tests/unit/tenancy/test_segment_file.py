# SPDX-License-Identifier: Apache-2.0
"""Files of segments, on a tmpfs of this machine: what is made, refused, listed and removed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_hpc.placement.segment_shape import MIB, SegmentShape
from nova_hpc.tenancy.segments import label, segment_file, segment_record
from nova_hpc.tenancy.segments.segment_file import SegmentError, SegmentFolder
from nova_hpc.tenancy.segments.segment_record import SegmentFileName

GROUP = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
SERVER = "11111111-2222-3333-4444-555555555555"
SHAPE = SegmentShape(2, 2)


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def folder(memory: Path) -> SegmentFolder:
    return SegmentFolder(memory / "nova-hpc")


def new_name(node: int = 0) -> SegmentFileName:
    return segment_record.name_new_file(GROUP, node, SHAPE)


def test_a_file_is_whole_from_the_beginning(folder: SegmentFolder) -> None:
    name = new_name()
    umask = os.umask(0)  # a careless one
    try:
        folder.make_file(name)
    finally:
        os.umask(umask)
    state = (folder.path / str(name)).stat()
    assert stat.S_IMODE(state.st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o711
    assert state.st_size == SHAPE.file_bytes == state.st_blocks * 512
    data = (folder.path / str(name)).read_bytes()
    assert data[: label.LABEL_AT] == bytes(label.LABEL_AT)
    assert data[label.LABEL_AT :].startswith(b"NVDIMM_DAX_INFO\0")
    assert data[2 * MIB :].startswith(b"NHPCSHM1")
    assert data[2 * MIB + 4096 :].strip(b"\0") == b""
    listing = folder.list_files()
    assert (listing.usable, listing.damaged, listing.problems) == ({name}, set(), ())


def test_no_two_segments_have_one_number(folder: SegmentFolder) -> None:
    names = [new_name() for _ in range(8)]
    for name in names:
        folder.make_file(name)
    heads = {(folder.path / str(name)).read_bytes()[2 * MIB :][32:48] for name in names}
    labels = {(folder.path / str(name)).read_bytes()[4096 + 16 :][:16] for name in names}
    assert len(heads) == len(labels) == len(names)


def test_names_of_servers_are_written_and_taken_out(folder: SegmentFolder) -> None:
    name = new_name()
    folder.make_file(name)
    folder.write_members(name, {1: SERVER})
    path = folder.path / str(name)
    assert path.read_bytes()[2 * MIB + 4096 :][:128] == bytes(64) + SERVER.encode() + bytes(28)
    folder.write_members(name, {})
    assert path.read_bytes()[2 * MIB + 4096 :][:128] == bytes(128)


def test_a_file_that_is_there_is_never_taken(folder: SegmentFolder) -> None:
    name = new_name()
    folder.make_file(new_name())
    path = folder.path / str(name)
    path.write_bytes(b"marker")
    with pytest.raises(SegmentError, match="File exists"):
        folder.make_file(name)
    assert path.read_bytes() == b"marker"
    listing = folder.list_files()
    assert name in listing.damaged
    assert name not in listing.usable
    assert any("was changed since it was made" in problem for problem in listing.problems)


def test_a_link_is_neither_followed_nor_removed(folder: SegmentFolder, memory: Path) -> None:
    name, other = new_name(), memory / "precious"
    folder.make_file(new_name())
    other.write_bytes(bytes(SHAPE.file_bytes))
    link = folder.path / str(name)
    link.symlink_to(other)
    with pytest.raises(SegmentError, match="File exists"):
        folder.make_file(name)
    with pytest.raises(SegmentError, match="symbolic links"):
        folder.write_members(name, {0: SERVER})
    folder.remove_file(name)
    assert link.is_symlink()
    assert other.read_bytes() == bytes(SHAPE.file_bytes)
    assert name not in folder.list_files().usable


@pytest.mark.parametrize("kind", ["larger", "smaller", "open", "linked", "folder", "pipe"])
def test_what_was_changed_is_joined_by_nobody(folder: SegmentFolder, kind: str) -> None:
    name = new_name()
    folder.make_file(name)
    path = folder.path / str(name)
    if kind in ("larger", "smaller"):
        os.truncate(path, SHAPE.file_bytes + (4096 if kind == "larger" else -4096))
    elif kind == "open":
        path.chmod(0o644)
    elif kind == "linked":
        os.link(path, folder.path / "second")
    else:
        path.unlink()
        path.mkdir() if kind == "folder" else os.mkfifo(path)
    listing = folder.list_files()
    assert name in listing.damaged
    assert not listing.usable
    assert listing.problems


def test_what_others_left_is_named_and_kept(folder: SegmentFolder) -> None:
    folder.make_file(new_name())
    (folder.path / "notes\n").write_text("x")
    (problem,) = folder.list_files().problems
    assert "notes\\n' is no file of nova-hpc's: move it elsewhere" in problem
    assert (folder.path / "notes\n").exists()


def test_a_directory_that_others_can_change_is_not_used(folder: SegmentFolder) -> None:
    folder.path.mkdir()
    folder.path.chmod(0o777)
    for act in (folder.list_files, lambda: folder.make_file(new_name())):
        with pytest.raises(SegmentError, match=r"others may write in .*: chmod 0711"):
            act()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_directory_of_another_user_is_not_used(folder: SegmentFolder) -> None:
    folder.path.mkdir()
    os.chown(folder.path, 12345, 12345)
    with pytest.raises(SegmentError, match="belongs to user 12345 and not to nova-compute's"):
        folder.make_file(new_name())


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_directory_is_not_used(folder: SegmentFolder, memory: Path, kind: str) -> None:
    if kind == "link":
        (memory / "elsewhere").mkdir()
        folder.path.symlink_to(memory / "elsewhere")
    else:
        folder.path.write_text("")
    with pytest.raises(SegmentError, match=r"set .hpc.shared_memory_dir to a directory"):
        folder.make_file(new_name())
    with pytest.raises(SegmentError):
        folder.list_files()


def test_a_disk_is_no_memory(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    device = tmp_path.stat().st_dev
    line = f"22 1 {os.major(device)}:{os.minor(device)} / / rw - ext4 /dev/sda1 rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(line)
    with pytest.raises(SegmentError, match="is on no tmpfs"):
        SegmentFolder(tmp_path / "x", root=tmp_path).make_file(new_name())


def test_nothing_is_left_of_a_file_that_cannot_be_made(folder: SegmentFolder) -> None:
    with pytest.raises(SegmentError, match="NUMA node 900 cannot be chosen"):
        folder.make_file(new_name(900))
    assert list(folder.path.iterdir()) == []


def test_a_tmpfs_that_is_too_small_is_named(
    folder: SegmentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make_file(new_name())
    room = os.statvfs(folder.path)
    few = os.statvfs_result((*room[:3], 1, 1, *room[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda file: few)
    with pytest.raises(
        SegmentError, match=r"has 0 MiB left, and .* takes 8: mount its tmpfs larger"
    ):
        folder.make_file(new_name())


def test_memory_that_programs_have_is_not_taken(folder: SegmentFolder, tmp_path: Path) -> None:
    node = tmp_path / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "meminfo").write_text(
        "Node 0 MemTotal: 99999 kB\nNode 0 MemFree: 4096 kB\nNode 0 Active(file): 1024 kB\n"
        "Node 0 Inactive(file): 1024 kB\n"
    )
    assert segment_file.read_available_memory(tmp_path, 0) == 6 * MIB
    small = SegmentFolder(folder.path, root=tmp_path)
    with pytest.raises(SegmentError, match=r"NUMA node 0 has 6 MiB left, and .* takes 8"):
        small.make_file(new_name())
    assert segment_file.read_available_memory(tmp_path, 1) is None
    (node / "meminfo").write_text("Node 0 MemFree: many kB\n")
    assert segment_file.read_available_memory(tmp_path, 0) is None


def test_what_is_gone_is_removed(folder: SegmentFolder) -> None:
    folder.remove_file(new_name())
    assert folder.list_files() == segment_file.FolderListing()
    folder.make_file(new_name())
    folder.remove_file(new_name())
    assert len(folder.list_files().usable) == 1
