# SPDX-License-Identifier: Apache-2.0
"""No link of others decides where a process with rights writes."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc.topology import handles
from nova_hpc.topology.files import FileError

DEVICE = "sys/devices/pci0000:00/0000:00:02.0"
LISTED = "/sys/bus/pci/devices/0000:00:02.0"
#: Another user.
NOBODY = 65534

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sysfs with one device, listed by a link as the kernel does."""
    found = tmp_path / "node"
    (found / DEVICE).mkdir(parents=True)
    (found / DEVICE / "reset").write_text("")
    (found / "sys/bus/pci/devices").mkdir(parents=True)
    (found / LISTED[1:]).symlink_to("../../../devices/pci0000:00/0000:00:02.0")
    (found / "etc").mkdir()
    (found / "etc/reset").write_text("mine")
    return found


def refused(root: Path, path: str) -> str:
    with pytest.raises(FileError) as raised, handles.kernel_file(root, path):
        pass
    return str(raised.value)


def test_links_of_the_kernel_are_followed(root):
    with handles.kernel_file(root, f"{LISTED}/reset") as file:
        Path(handles.path_of_handle(file)).write_text("1\n")
        # What takes its place meanwhile is not what was looked at.
        (root / DEVICE / "reset").rename(root / DEVICE / "old")
        (root / DEVICE / "reset").symlink_to(root / "etc/reset")
        Path(handles.path_of_handle(file)).write_text("2\n")
        assert handles.read_held_file(file, 4096) == b"2\n"
        assert handles.read_held_file(file, 1) == b"2"
    assert (root / DEVICE / "old").read_text() == "2\n"
    assert (root / "etc/reset").read_text() == "mine"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file)
    with handles.kernel_folder(root, LISTED) as folder:
        assert {each.name for each in Path(handles.path_of_handle(folder)).iterdir()} == {
            "old",
            "reset",
        }
    for path in ("/sys/bus/pci/devices/0000:00:03.0/reset", f"{LISTED}/vpd", f"{LISTED}/old/x"):
        with handles.kernel_file(root, path) as file:
            assert file is None


@pytest.mark.parametrize(
    "target", ["/etc/reset", "../../../../etc/reset", "../../../../sys/../etc/reset"]
)
def test_a_link_leads_out_of_sys(root, target):
    (root / DEVICE / "reset").unlink()
    (root / DEVICE / "reset").symlink_to(target)
    text = refused(root, f"{LISTED}/reset")
    assert text.startswith(f"{LISTED}/reset: ")
    assert "out of /sys" in text


def test_what_is_no_file(root):
    (root / DEVICE / "reset").unlink()
    (root / DEVICE / "reset").mkdir()
    assert refused(root, f"{LISTED}/reset") == f"{LISTED}/reset: not a file"
    (root / DEVICE / "loop").symlink_to("loop")
    assert "loop of symbolic links" in refused(root, f"{LISTED}/loop")
    (root / DEVICE / "vpd").write_text("")
    with pytest.raises(FileError, match="not a directory"):
        handles.kernel_folder(root, f"{LISTED}/vpd").__enter__()
    assert "no possible path" in refused(root, f"{LISTED}/a\0b")


def test_a_device_node_is_no_file(root):
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    os.mknod(root / DEVICE / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert refused(root, f"{LISTED}/null") == f"{LISTED}/null: not a file"


#: In a mount namespace of its own, something else is mounted below /sys.
MOUNTED = """\
import subprocess, sys
from pathlib import Path
from nova_hpc.topology import handles
from nova_hpc.topology.files import FileError
subprocess.run(["mount", "-t", "tmpfs", "none", "/sys/kernel/mm"], check=True)
Path("/sys/kernel/mm/reset").write_text("mine")
for path in ("/sys/kernel/mm/reset", "/sys/kernel/../../etc/hostname", "/sys/kernel/vmcoreinfo"):
    try:
        with handles.kernel_file(Path("/"), path) as file:
            print("held", file is not None)
    except FileError as error:
        print(error)
"""


@only_root
def test_only_files_of_sysfs_itself_on_a_machine_that_runs():
    argv = ["unshare", "-m", sys.executable, "-c", MOUNTED]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode and "ermitted" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.returncode == 0, done.stderr
    other, out, held = done.stdout.splitlines()
    assert other == "/sys/kernel/mm/reset: it is no file of the kernel's sysfs"
    assert "out of /sys" in out
    assert held.startswith("held")


# -- folders of the service ---------------------------------------------------------------


def test_a_folder_is_made_once(tmp_path):
    for _ in range(2):
        with handles.hold_folder(tmp_path / "locks", make=True) as here:
            assert stat.S_ISDIR(os.fstat(here).st_mode)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o755
    with pytest.raises(FileNotFoundError), handles.hold_folder(tmp_path / "other"):
        pass
    with pytest.raises(FileNotFoundError), handles.hold_folder(tmp_path / "a/b", make=True):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError), handles.hold_folder(tmp_path / "file", make=True):
        pass
    with pytest.raises(ValueError, match="root directory"), handles.hold_folder(Path("/")):
        pass


def test_the_last_part_is_no_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to("elsewhere")
    with pytest.raises(OSError, match="locks"), handles.hold_folder(tmp_path / "locks", make=True):
        pass


def test_links_above_of_this_user_are_followed(tmp_path):
    (tmp_path / "disk/state").mkdir(parents=True)
    (tmp_path / "up").mkdir()
    (tmp_path / "up/absolute").symlink_to(tmp_path / "disk")
    (tmp_path / "up/relative").symlink_to("../disk/../disk")
    for name in ("absolute", "relative"):
        with handles.hold_folder(tmp_path / f"up/{name}/state/{name}", make=True):
            assert (tmp_path / f"disk/state/{name}").is_dir()
    (tmp_path / "up/loop").symlink_to("loop/loop")
    with pytest.raises(PermissionError), handles.hold_folder(tmp_path / "up/loop/state"):
        pass


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_link_where_others_write_is_not_followed(tmp_path, mode):
    (tmp_path / "disk/state").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/link").symlink_to(tmp_path / "disk")
    (tmp_path / "shared").chmod(mode)
    with pytest.raises(PermissionError, match="link link in it"):
        handles.hold_folder(tmp_path / "shared/link/state").__enter__()


@only_root
@pytest.mark.parametrize("whose", ["folder", "link"])
def test_a_link_of_another_user_is_not_followed(tmp_path, whose):
    """As of the service's, where root goes."""
    (tmp_path / "disk/state").mkdir(parents=True)
    (tmp_path / "nova").mkdir()
    (tmp_path / "nova/link").symlink_to(tmp_path / "disk")
    if whose == "folder":
        os.chown(tmp_path / "nova", NOBODY, NOBODY)
    else:
        os.lchown(tmp_path / "nova/link", NOBODY, NOBODY)
    with pytest.raises(PermissionError):
        handles.hold_folder(tmp_path / "nova/link/locks", make=True).__enter__()
    assert not (tmp_path / "disk/locks").exists()
    # Without a link it is the service's own place.
    with handles.hold_folder(tmp_path / "nova/locks", make=True):
        owner = (tmp_path / "nova/locks").stat().st_uid
        assert owner == (NOBODY if whose == "folder" else 0)


@only_root
def test_only_what_was_made_is_given_away(tmp_path):
    nova = tmp_path / "nova"
    nova.mkdir()
    os.chown(nova, NOBODY, NOBODY)
    (tmp_path / "shadow").write_text("root's")
    with contextlib.suppress(OSError):
        os.link(tmp_path / "shadow", nova / "second")
    (nova / "third").write_text("")
    os.chown(nova / "third", NOBODY - 1, NOBODY - 1)
    (nova / "own").write_text("")
    above = os.open(nova, os.O_RDONLY)
    try:
        for name in ("second", "third", "own"):
            handle = os.open(nova / name, os.O_RDWR)
            handles.give_to_owner_above(handle, above)
            os.close(handle)
    finally:
        os.close(above)
    assert (tmp_path / "shadow").stat().st_uid == 0
    assert (nova / "third").stat().st_uid == NOBODY - 1
    assert (nova / "own").stat().st_uid == NOBODY
