# SPDX-License-Identifier: Apache-2.0
"""The archive of a node: what it holds, how it is written, and those of strangers."""

from __future__ import annotations

import io
import json
import lzma
import os
import subprocess
import tarfile

import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.files import FileTree
from nova_hpc_tools.inventory import node_archive
from nova_hpc_tools.main import main
from tests.unit.inventory.saved_nodes import read, save


def test_links_stay_links_and_tar_unpacks_it(synthetic, tmp_path):
    archive = tmp_path / "node.tar.xz"
    save(synthetic("hgx-h100"), archive)
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    assert {member.uid for member in members} | {member.mtime for member in members} == {0}
    links = [member.name for member in members if member.issym()]
    assert "sys/bus/pci/devices/0000:19:00.0" in links
    assert "sys/kernel/iommu_groups/0/devices/0000:00:1f.0" in links
    folder = tmp_path / "unpacked"
    folder.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    assert sysfs.read_tree(FileTree(folder), "x") == sysfs.read_tree(
        node_archive.load_node_archive(archive), "x"
    )
    # Saved once more it is the same, byte for byte.
    save(folder, tmp_path / "again.tar.xz")
    assert (tmp_path / "again.tar.xz").read_bytes() == archive.read_bytes()


def test_all_formats_of_an_archive(synthetic, tmp_path, capsys):
    root, archive = synthetic("hgx-h100"), tmp_path / "node.tar.xz"
    save(root, archive)
    capsys.readouterr()
    texts = {}
    for source in (["--root", str(root)], ["--from", str(archive)]):
        for form in ("tree", "nccl", "device-spec", "json"):
            option = "--format" if form == "json" else "--show"
            assert main(["inventory", *source, option, form]) == 0
            texts.setdefault(form, []).append(capsys.readouterr().out)
    assert texts["nccl"][0] == texts["nccl"][1]
    assert texts["device-spec"][0] == texts["device-spec"][1]
    assert texts["tree"][0].splitlines()[1:] == texts["tree"][1].splitlines()[1:]
    assert json.loads(texts["json"][1])["source"] == str(archive)


def test_an_archive_is_there_whole_or_not_at_all(synthetic, tmp_path, monkeypatch, capsys):
    target = tmp_path / "node.tar.xz"
    target.write_text("before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        arguments = ["inventory", "--root", str(synthetic("bare")), "--save", str(target)]
        assert main(arguments) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["node.tar.xz"]
    assert target.read_text() == "before"
    save(synthetic("bare"), target)
    assert read(target).hostname == "node"


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:xz") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (b"no archive", "not an archive"),
        (lzma.compress(b"no tar" * 1000), "not an archive"),
        (packed((member("sys/a"), b"1"))[:-20], "cut short"),
        (packed((member("../../etc/passwd"), b"1")), "has no place in it"),
        (packed((member("/etc/passwd"), b"1")), "has no place in it"),
        (packed((member("sys/./a"), b"1")), "has no place in it"),
        (packed((member("dev/sda", tarfile.BLKTYPE), b"")), "of a kind that no node has"),
        (packed((member("sys/a", tarfile.LNKTYPE, "/etc/passwd"), b"")), "of a kind"),
        (lzma.compress(bytes(1 << 27)), "too large"),
    ],
)
def test_archives_of_strangers(data, words, tmp_path, capsys):
    path = tmp_path / "x.tar.xz"
    path.write_bytes(data)
    assert main(["inventory", "--from", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert line.startswith("nova-hpc inventory: --from ")
    assert words in line
    assert "Traceback" not in captured.err


def test_links_of_an_archive_lead_nowhere_else(tmp_path):
    path = tmp_path / "x.tar.xz"
    path.write_bytes(
        packed(
            (member("proc/sys/kernel/hostname", tarfile.SYMTYPE, "/etc/hostname"), b""),
            (member("sys/bus/pci/devices/0000:00:00.0", tarfile.SYMTYPE, "/"), b""),
            (member("sys/a", tarfile.SYMTYPE, "a"), b""),
        )
    )
    node = read(path)
    assert node.hostname is None
    assert len(node.functions) == 1
