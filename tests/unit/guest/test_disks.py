# SPDX-License-Identifier: Apache-2.0
"""``check`` and the NVMe disks of a server: there or not, empty or not, whatever they hold."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.hygiene import clean_nvme
from nova_hpc.topology.model import Node, NumaNode, PciFunction
from nova_hpc_guest import build, disks
from tests.unit.guest.servers import fewer, run, start
from tests.unit.guest.worlds import GPU, Guest

DISK = {"vendor_id": "144d", "product_id": "a80a", "class_code": "010802"}
PLACES = ("0000:1a:00.0", "0000:1b:00.0")
SIZE = 4 << 20
LABEL = "disk: device 1 (nvme 144d:a80a): "


def server(folder: str) -> Guest:
    """A GPU and a disk below one switch."""
    below = {"root": "pci0000:17", "switches": ("0000:18:00.0",), "numa_node": 1}
    path = ("0000:17:00.0", "0000:18:00.0")
    node = Node(
        "x",
        numa_nodes=(NumaNode(0), NumaNode(1)),
        functions=(
            PciFunction(PLACES[0], **GPU, **below, path=(*path, "0000:19:00.0")),
            PciFunction(PLACES[1], **DISK, **below, path=(*path, "0000:19:01.0")),
        ),
    )
    return start(folder, node, PLACES, roles=dict(zip(PLACES, ("gpu", "nvme"), strict=True)))


@attrs.frozen
class Disk:
    """The disk of a guest: its files in sysfs, and a file for its blocks."""

    guest: Guest

    @property
    def controller(self) -> Path:
        return self.guest.folders[PLACES[1]] / "nvme/nvme0"

    @property
    def blocks(self) -> Path:
        return self.guest.root / "dev/nvme0n1"

    def show(self, size: object = SIZE, unit: object = 512, path: str = "nvme0n1") -> Path:
        """The kernel has found a namespace."""
        place = self.controller / path
        (place / "queue").mkdir(parents=True, exist_ok=True)
        (place / "size").write_text(f"{size // 512 if isinstance(size, int) else size}\n")
        (place / "queue/logical_block_size").write_text(f"{unit}\n")
        return place

    def hold(self, data: bytes) -> None:
        self.blocks.parent.mkdir(exist_ok=True)
        self.blocks.write_bytes(data.ljust(SIZE, b"\0"))

    def check(self, *options: str) -> tuple[int, list[str]]:
        """Status, and the lines about the disk."""
        status, out, err = run(self.guest, "check", *options)
        assert err == ""
        return status, [line for line in out.splitlines() if " disk: " in line]

    def said(self, *options: str) -> tuple[int, str]:
        status, (line,) = self.check(*options)
        assert LABEL in line
        return status, line.partition(" " + LABEL)[2]


@pytest.fixture
def disk(tmp_path):
    found = Disk(server(str(tmp_path)))
    found.show()
    found.hold(b"")
    return found


# --- there, as asked --------------------------------------------------------------------------


def test_a_disk_that_is_not_there(disk):
    (disk.guest.root / "sys/bus/pci/devices" / disk.guest.folders[PLACES[1]].name).unlink()
    status, out, _ = run(disk.guest, "check")
    assert status == 1
    assert "WRONG device: device 1 (nvme 144d:a80a): not there" in out
    assert " disk: " not in out


def test_a_disk_without_a_block_device(disk):
    shutil.rmtree(disk.controller / "nvme0n1")
    assert disk.said() == (1, "no block device: it has no namespace that this kernel knows")
    # The kernel still works on it.
    for state in ("new", "connecting", "resetting"):
        (disk.controller / "state").write_text(f"{state}\n")
        assert disk.said() == (0, f"content unknown: its controller is {state}")
    for state in ("live", "dead", "\x1b[2J"):
        (disk.controller / "state").write_text(f"{state}\n")
        assert disk.said()[0] == 1
    shutil.rmtree(disk.controller)
    assert disk.said() == (0, "content unknown: the kernel shows no controller of it yet")


@pytest.mark.parametrize("driver", ["vfio-pci", None])
def test_a_disk_that_the_kernel_does_not_drive(disk, driver):
    link = disk.guest.folders[PLACES[1]] / "driver"
    link.unlink()
    if driver:
        link.symlink_to(f"/sys/bus/pci/drivers/{driver}")
    status, words = disk.said()
    assert status == (0 if driver else 1)
    assert words.startswith("content unknown: ")


def test_each_namespace_is_looked_at(disk):
    """Also one whose block device is made of several paths."""
    disk.show(path="nvme2c0n7")
    (disk.guest.root / "dev/nvme2n7").write_bytes(b"data " * (SIZE // 5) + b"data ")
    status, lines = disk.check()
    assert status == 0
    assert [line.partition(LABEL)[2].split()[0] for line in lines] == ["nvme0n1", "nvme2n7"]
    assert "empty: " in lines[0]
    assert "not empty: " in lines[1]


def test_too_many_namespaces_are_named(disk):
    for number in range(2, 40):
        disk.show(path=f"nvme0n{number}")
    _, lines = disk.check()
    assert len(lines) == 39
    assert sum(line.endswith(": content unknown: not looked at") for line in lines) == 7


# --- empty or not ------------------------------------------------------------------------------


def noise(size: int = SIZE, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("data", [b"", b"\xff" * SIZE, b"\xff" * (SIZE // 2)])
def test_an_erased_disk(disk, data):
    disk.hold(data)
    status, words = disk.said("--empty-disks")
    assert status == 0
    assert words.startswith("nvme0n1 (4 MiB): empty: ")
    assert words.endswith(" samples of 4 KiB are zeros or ones")


def test_an_erased_key_is_not_known_to_be_empty(disk):
    disk.hold(noise())
    for options in ((), ("--empty-disks",)):
        status, words = disk.said(*options)
        assert status == 0
        assert words.startswith("nvme0n1 (4 MiB): unknown: not zero, and noise")


@pytest.mark.parametrize("place", [0, 64 << 10, SIZE - 4096, SIZE - 512])
@pytest.mark.parametrize("around", ["zeros", "noise"])
def test_data_at_the_ends_are_found(disk, place, around):
    data = bytearray(noise() if around == "noise" else bytes(SIZE))
    start = place & ~4095
    data[start : start + 4096] = b"secret of a tenant ".ljust(512, b".") * 8
    disk.hold(bytes(data))
    assert disk.said()[0] == 0
    status, words = disk.said("--empty-disks")
    assert status == 1
    assert "not empty: " in words


def test_data_on_the_whole_disk_are_found_between_the_ends(disk):
    data = bytearray(b"secret of a tenant ".ljust(512, b".") * (SIZE // 512))
    data[: 1 << 20] = bytes(1 << 20)
    data[-(1 << 20) :] = bytes(1 << 20)
    disk.hold(bytes(data))
    assert "samples have data" in disk.said()[1]


def test_a_mark_of_the_host_is_an_erase_that_did_not_end(disk):
    space = clean_nvme.NvmeNamespace(1, 512, SIZE // 512)
    data = bytearray(noise())
    data[:512] = clean_nvme.make_marker(space, 0)
    disk.hold(bytes(data))
    assert disk.said() == (1, "nvme0n1 (4 MiB): not erased: the host's mark of an erase is there")


SIGNS = {
    "a GPT": (512, b"EFI PART"),
    "a boot sector": (510, b"\x55\xaa"),
    "LVM": (512, b"LABELONE"),
    "a RAID": (4096, struct.pack("<I", 0xA92B4EFC)),
    "LUKS": (0, b"LUKS\xba\xbe\0\2"),
    "XFS": (0, b"XFSB\0\0\x10\0"),
    "Btrfs": (65600, b"_BHRfS_M"),
    "F2FS": (1024, b"\x10\x20\xf5\xf2"),
    "NTFS": (3, b"NTFS    "),
    "exFAT": (3, b"EXFAT   "),
    "ZFS": (128 << 10, struct.pack("<Q", 0x00BAB10C)),
}


@pytest.mark.parametrize("name", SIGNS)
def test_signatures_alone(disk, name):
    """Everything else is zero: one sign is enough."""
    place, sign = SIGNS[name]
    data = bytearray(SIZE)
    data[place : place + len(sign)] = sign
    disk.hold(bytes(data))
    status, words = disk.said("--empty-disks")
    assert (status, words) == (1, f"nvme0n1 (4 MiB): not empty: {name}")


@pytest.mark.parametrize("end", [SIZE, SIZE - 4096 * 3 - 512])
def test_signatures_at_the_end(disk, end):
    disk.show(size=end)
    last = {"a GPT": end - 512, "a RAID": ((end & ~0xFFFF) - 0x10000)}
    for name, place in last.items():
        data = bytearray(SIZE)
        sign = SIGNS[name][1]
        data[place : place + len(sign)] = sign
        disk.hold(bytes(data))
        assert disk.said()[1].endswith(f"not empty: {name}")


TOOLS = {
    "ext2 to ext4": ("mke2fs", "-q", "-F", "-t", "ext4"),
    "swap": ("mkswap",),
}


@pytest.mark.parametrize("name", TOOLS)
def test_what_real_tools_write(disk, name):
    if shutil.which(TOOLS[name][0]) is None:
        pytest.skip(f"there is no {TOOLS[name][0]}")
    subprocess.run([*TOOLS[name], str(disk.blocks)], check=True, capture_output=True)
    assert disk.said()[1].endswith(f"not empty: {name}")


def test_noise_has_no_signature(disk):
    """Two bytes of a signature come by chance."""
    data = bytearray(noise())
    data[510:512], data[1080:1082] = b"\x55\xaa", b"\x53\xef"
    disk.hold(bytes(data))
    assert "unknown: not zero" in disk.said()[1]


def test_what_the_kernel_shows_counts_without_any_right(disk):
    (disk.controller / "nvme0n1/nvme0n1p1").mkdir()
    (disk.controller / "nvme0n1/holders/dm-0").mkdir(parents=True)
    assert disk.said()[1] == "nvme0n1 (4 MiB): not empty: 1 partition, part of dm-0"
    disk.blocks.unlink()
    assert disk.said()[1] == "nvme0n1 (4 MiB): not empty: 1 partition"


# --- hostile, or broken ------------------------------------------------------------------------


def test_what_cannot_be_read_is_unknown(disk):
    disk.hold(b"")
    os.truncate(disk.blocks, SIZE // 2)
    status, words = disk.said("--empty-disks")
    assert status == 0
    assert "content unknown: byte " in words
    disk.blocks.unlink()
    assert "content unknown: /dev/nvme0n1: no such file" in disk.said()[1]
    disk.blocks.symlink_to("/dev/zero")
    assert "content unknown: /dev/nvme0n1: " in disk.said()[1]
    disk.blocks.unlink()
    os.mkfifo(disk.blocks)
    assert "content unknown: /dev/nvme0n1: " in disk.said()[1]
    disk.blocks.unlink()
    disk.blocks.mkdir()
    assert "content unknown: /dev/nvme0n1: " in disk.said()[1]


def test_another_device_of_that_name_is_not_read(monkeypatch, tmp_path):
    """On the machine itself: a block device with the numbers that sysfs has."""
    root = disks.Root("/")
    monkeypatch.setattr(root, "place", lambda path: f"{tmp_path}{path}")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvme0n1").write_bytes(bytes(SIZE))
    with pytest.raises(OSError, match="another device"):
        disks._open_device(root, "nvme0n1", "259:0")
    (tmp_path / "dev/nvme0n2").symlink_to("/dev/null")
    with pytest.raises(OSError, match="symbolic"):
        disks._open_device(root, "nvme0n2", "1:3")


TEXTS = st.sampled_from(["", "0", "-1", "x", "9" * 15, "9" * 30, "513", "4096", "1e3", "8\n8", "٣"])


@fewer
@given(TEXTS, TEXTS, st.binary(max_size=700), st.sampled_from([0, 512, 4096, 64 << 10]))
def test_nothing_raises_whatever_is_there(size, unit, content, place):
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(server(folder))
        disk.show(size, unit)
        (disk.controller / "nvme0n1/dev").write_bytes(content)
        (disk.controller / "nvme0n1/holders").mkdir()
        (disk.controller / "nvme0n1/holders/\x1b[2J").mkdir()
        (disk.controller / "nvme0n1\n").mkdir()
        disk.hold(bytes(place) + content)
        status, lines = disk.check()
        assert status in (0, 1)
        assert all(line.isprintable() for line in lines)


@given(st.integers(1, 1 << 50))
def test_samples_are_within_the_disk(size):
    places = disks.choose_samples(size)
    assert places == sorted(set(places))
    assert places[0] == 0
    assert places[-1] <= size - 1 < places[-1] + 4096
    assert len(places) <= 300


# --- as users run it ---------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [True, False])
def test_the_single_file_without_anything_else(disk, tmp_path, accept):
    """Also the one in user data of cloud-init."""
    command = tmp_path / "nova-hpc-guest"
    command.write_bytes(build.single_file(accept))
    argv = [sys.executable, "-I", "-S", str(command), "check", "--root", str(disk.guest.root)]
    done = subprocess.run([*argv, "--format", "json"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (finding,) = [one for one in json.loads(done.stdout)["findings"] if one["kind"] == "disk"]
    assert finding["text"].startswith("nvme0n1 (4 MiB): empty: ")
    assert finding["wrong"] is False


def test_it_can_be_left_out(disk):
    disk.hold(b"data")
    assert disk.check("--skip", "disk", "--empty-disks") == (0, [])
    # "show" and "accept" read no blocks.
    assert "not empty" not in run(disk.guest, "show", "--format", "json")[1]
