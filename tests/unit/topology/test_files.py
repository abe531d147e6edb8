# SPDX-License-Identifier: Apache-2.0
"""Files below a root: links stay inside, and nothing hangs or raises oddly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc.topology.files import FileError, FileTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    top = tmp_path / "capture"
    (top / "sys/devices/a").mkdir(parents=True)
    (top / "sys/devices/a/vendor").write_text("0x10de\n")
    (top / "sys/bus").mkdir()
    (tmp_path / "secret").write_text("not of this machine\n")
    return top


def test_links_are_followed_inside_the_root(root: Path) -> None:
    (root / "sys/bus/relative").symlink_to("../devices/a")
    (root / "sys/bus/absolute").symlink_to("/sys/devices/a")
    (root / "sys/bus/twice").symlink_to("absolute")
    tree = FileTree(root)
    for name in ("relative", "absolute", "twice"):
        assert tree.text(f"/sys/bus/{name}/vendor") == "0x10de"
        assert tree.resolve(f"/sys/bus/{name}") == "/sys/devices/a"
        assert tree.target(f"/sys/bus/{name}") == "/sys/devices/a"


@pytest.mark.parametrize(
    "target", ["../secret", "../../../../../../secret", "/secret", "/../secret"]
)
def test_no_link_leaves_the_root(root: Path, target: str) -> None:
    (root / "file").symlink_to(target)
    assert FileTree(root).text("/file") is None
    outside = os.path.relpath(root.parent / "secret", root)
    (root / "direct").symlink_to(outside)
    assert FileTree(root).text("/direct") is None


def test_a_link_to_the_real_place_outside_is_not_followed(root: Path) -> None:
    (root / "file").symlink_to(root.parent / "secret")
    (root / "folder").symlink_to(root.parent)
    tree = FileTree(root)
    assert tree.text("/file") is None
    assert tree.text("/folder/secret") is None
    assert tree.names("/folder") == []


def test_loops_are_told(root: Path) -> None:
    (root / "self").symlink_to("self")
    (root / "ping").symlink_to("pong")
    (root / "pong").symlink_to("ping")
    tree = FileTree(root)
    for name in ("self", "ping"):
        with pytest.raises(FileError, match=f"/{name}: a loop of symbolic links"):
            tree.text(f"/{name}")
        assert not tree.exists(f"/{name}")


def test_what_is_no_text_file_is_told(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    (root / "binary").write_bytes(b"\x00\x01\xff")
    (root / "escape").write_bytes(b"\x1b[31mred")
    tree = FileTree(root)
    for name, why in (("pipe", "not a file"), ("folder", "not a file"), ("binary", "not text")):
        with pytest.raises(FileError, match=why):
            tree.text(f"/{name}")
    with pytest.raises(FileError, match="not text"):
        tree.text("/escape")


def test_a_capture_padded_to_a_page_reads_as_the_file_was(root: Path) -> None:
    (root / "online").write_bytes(b"0-3\n".ljust(4096, b"\0"))
    assert FileTree(root).text("/online") == "0-3"


def test_missing_is_none_and_not_an_error(root: Path) -> None:
    tree = FileTree(root)
    assert tree.text("/sys/no/such") is None
    assert tree.text("/sys/devices/a/vendor/below") is None
    assert tree.names("/sys/no") == []
    assert tree.target("/sys/no") is None


def test_the_text_of_a_link_counts_where_its_target_was_not_captured(root: Path) -> None:
    (root / "sys/devices/a/driver").symlink_to("../../bus/pci/drivers/nvidia")
    assert FileTree(root).target("/sys/devices/a/driver") == "/sys/bus/pci/drivers/nvidia"


def test_odd_paths_are_errors_of_the_file(root: Path) -> None:
    tree = FileTree(root)
    with pytest.raises(FileError):
        tree.text("/sys/nul\0byte")
    with pytest.raises(FileError):
        tree.resolve("/" + "x" * 300)
    (root / "sys/devices/nul name\n").mkdir()
    assert tree.names("/sys/devices") == ["a"]


def test_unreadable_files_are_told(root: Path) -> None:
    """As an ordinary user, whoever runs the tests: root may read everything."""
    (root / "closed").write_text("1")
    (root / "closed").chmod(0)
    (root / "shut").mkdir(mode=0)
    # pytest keeps its directories to the user that runs it.
    place = root
    while place != place.parent and place.stat().st_uid == os.geteuid():
        place.chmod(0o755)
        place = place.parent
    script = (
        "import os, pathlib, sys\n"
        "from nova_hpc.topology.files import FileError, FileTree\n"
        "tree = FileTree(pathlib.Path(sys.argv[1]))\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "for ask in (lambda: tree.text('/closed'), lambda: tree.names('/shut'),"
        " lambda: tree.text('/shut/x')):\n"
        "    try: print(ask())\n"
        "    except FileError as error: print(error)\n"
    )
    (root / "shut").chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines == [
        "/closed: permission denied",
        "/shut: permission denied",
        "/shut/x: permission denied",
    ]
