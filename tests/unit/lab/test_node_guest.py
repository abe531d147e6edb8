# SPDX-License-Identifier: Apache-2.0
"""What the guest says of itself, and the archives that the machines boot from."""

import gzip
import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import guest
from nova_hpc_lab.node.initramfs import CpioArchive, add_modules, module_files

INSIDE = Path(guest.__file__).parent / "inside"

REPORT = """\
=== nova-hpc guest report {number} begin ===
kernel 6.12.95+deb12-amd64
cpus 2
memory_kib 473440
cell 0 cpus 0-1 memory_kib 473440
pci 0000:01:00.0 1b36:000d 0c0330 - -1
bar 0000:01:00.0 0 16384
pci 0000:02:00.0 1234:1111 038000 - 0
bar 0000:02:00.0 0 33554432
bar 0000:02:00.0 2 4096
pci 0000:03:00.0 8086:10ca 020000 igbvf 0
bar 0000:03:00.0 0 16384
mac 0000:03:00.0 52:54:00:01:01:0A
=== nova-hpc guest report {number} end ===
"""


def test_a_report_is_read():
    found = guest.parse_report("SeaBIOS\r\n" + REPORT.format(number=1).replace("\n", "\r\n"))
    assert (found.kernel, found.cpus, found.memory_kib) == ("6.12.95+deb12-amd64", 2, 473440)
    assert found.cells == (guest.GuestCell(0, "0-1", 473440),)
    _, gpu, vf = found.functions
    assert (gpu.ids, gpu.bars, gpu.driver, gpu.numa_node) == (
        "1234:1111",
        (33554432, 4096),
        None,
        0,
    )
    assert (vf.ids, vf.driver, vf.device_class) == ("8086:10ca", "igbvf", "020000")
    assert found.macs == {"52:54:00:01:01:0a"}


def test_the_guests_own_check_is_part_of_its_report():
    assert guest.parse_report(REPORT.format(number=1)).check_status is None
    text = REPORT.format(number=1).replace(
        "=== nova-hpc guest report 1 end",
        "check WRONG device: device 0: not there\ncheck note\ncheck_status 1\n"
        "=== nova-hpc guest report 1 end",
    )
    found = guest.parse_report(text)
    assert found.check == ("WRONG device: device 0: not there", "note")
    assert found.check_status == 1


def test_the_last_complete_report_counts():
    later = REPORT.format(number=2).replace("cpus 2", "cpus 3", 1)
    cut = REPORT.format(number=3)[:200]
    found = guest.parse_report(REPORT.format(number=1) + later + cut)
    assert found.cpus == 3


def test_the_end_of_another_report_ends_none():
    lines = [*REPORT.format(number=1).splitlines()[:4], "=== nova-hpc guest report 2 end ===", ""]
    assert guest.parse_report("\n".join(lines)) is None


@pytest.mark.parametrize("text", ["", "panic", REPORT.format(number=1)[:-20]])
def test_no_report_is_none(text):
    assert guest.parse_report(text) is None


@given(st.data())
def test_a_damaged_report_never_raises(data):
    text = REPORT.format(number=1)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    other = data.draw(st.text(alphabet="abc 019:.-=\n\r\x00", max_size=20))
    found = guest.parse_report(text[:start] + other + text[end:])
    assert found is None or isinstance(found, guest.GuestReport)


@pytest.mark.parametrize("name", ["guest-init.sh", "node-init.sh", "boot.sh", "service.sh"])
def test_the_scripts_are_sound(name):
    subprocess.run(["sh", "-n", INSIDE / name], check=True)


def unpacked(data, folder):
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    plain = gzip.decompress(data)
    subprocess.run([busybox, "cpio", "-i", "-d"], input=plain, cwd=folder, check=True)
    return folder


def test_another_program_unpacks_an_archive(tmp_path):
    archive = CpioArchive()
    archive.file("init", b"#!/bin/sh\n", 0o755)
    archive.file("a/b/odd", b"12345")
    archive.file("a/empty", b"")
    archive.link("bin/sh", "busybox")
    folder = unpacked(archive.pack(), tmp_path)
    assert os.access(folder / "init", os.X_OK)
    assert (folder / "a/b/odd").read_bytes() == b"12345"
    assert (folder / "a/empty").read_bytes() == b""
    assert (folder / "bin/sh").readlink() == Path("busybox")


def test_the_same_content_gives_the_same_archive():
    def pack():
        archive = CpioArchive()
        archive.file("a/b", b"x")
        archive.device("dev/console", 5, 1)
        return archive.pack()

    assert pack() == pack()


@pytest.fixture
def modules(tmp_path):
    files = {"kernel/a.ko.xz": b"A", "kernel/b-c.ko.xz": b"BC", "kernel/d.ko": b"D"}
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    (tmp_path / "modules.dep").write_text(
        "kernel/a.ko.xz: kernel/b-c.ko.xz kernel/d.ko\n"
        "kernel/b-c.ko.xz: kernel/d.ko\n"
        "kernel/d.ko:\n"
    )
    (tmp_path / "modules.builtin").write_text("kernel/lib/in-side.ko\n")
    return tmp_path


def test_modules_come_with_what_they_need_in_loading_order(modules):
    found = [path.name for path in module_files(modules, ["a", "b_c", "in_side"])]
    assert found == ["d.ko", "b-c.ko.xz", "a.ko.xz"]


def test_modules_are_unpacked_into_an_archive(modules, tmp_path_factory):
    archive = CpioArchive()
    add_modules(archive, modules, ["b-c"])
    folder = unpacked(archive.pack(), tmp_path_factory.mktemp("out"))
    assert (folder / "modules/order").read_text().split() == ["d.ko", "b-c.ko"]
    assert (folder / "modules/b-c.ko").read_bytes() == b"BC"


def test_a_module_that_is_not_there_is_named(modules):
    with pytest.raises(LabError, match="no module missing"):
        module_files(modules, ["missing"])
