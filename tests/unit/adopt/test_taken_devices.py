# SPDX-License-Identifier: Apache-2.0
"""Devices that the host's own files, or its processes, keep from where they belong."""

import json
import os

import pytest

from nova_hpc_tools.main import main
from tests.nodes import states
from tests.nodes.write import write
from tests.unit.node_files import put

IDS = "10de:2330,15b3:1021"
DECLARED = """schema: nova-hpc/node
version: 1
left_out: [{address: "0000:19:00.0", why: monitoring of the host}]
vfs: {pf: 8}
"""
FIRST = "0000:18:00.0"


@pytest.fixture
def look(tmp_path, capsys):
    """What the doctor finds on a node, by check."""

    def run(driver="vfio-pci", change=lambda root: None, conf="[DEFAULT]\n"):
        root = write(states.plain(driver), tmp_path / "node")
        change(root)
        (tmp_path / "node.yaml").write_text(DECLARED)
        (tmp_path / "nova.conf").write_text(conf)
        words = ["doctor", "--root", root, "--declaration", tmp_path / "node.yaml"]
        words += ["--config-file", tmp_path / "nova.conf", "-f", "json"]
        main(list(map(str, words)))
        found = {}
        for each in json.loads(capsys.readouterr().out)["findings"]:
            found.setdefault(each["check"], []).append(each)
        return found

    return run


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("/proc/cmdline", f"iommu=pt vfio-pci.ids={IDS}", f"vfio-pci.ids={IDS} (/proc/cmdline)"),
        (
            "/etc/modprobe.d/vfio.conf",
            f"# ours\noptions vfio-pci ids={IDS} disable_vga=1",
            f"options vfio-pci ids={IDS} disable_vga=1 (/etc/modprobe.d/vfio.conf:2)",
        ),
    ],
)
def test_ids_that_take_more_than_is_meant(look, path, text, named):
    found = look(change=lambda root: put(root, path, text))["driver-ids"]
    seen = [each["seen"] for each in found]
    assert all(named in text for text in seen)
    assert seen[0].startswith("0000:19:00.0: left_out keeps it with the host")
    assert seen[1].startswith("0000:1a:00.0, 0000:3c:00.0: it has virtual functions")
    assert len(seen) == 2


@pytest.mark.parametrize(
    "ids",
    ["10de:2331", "8086:1572", "10de:2330:0000:0000", "15b3:1021:ffffffff:ffffffff:030000:ff0000"],
)
def test_ids_that_take_nothing_else(look, ids):
    assert "driver-ids" not in look(
        change=lambda root: put(root, "/proc/cmdline", f"vfio_pci.ids={ids}")
    )


def test_ids_with_subsystem_and_class(look):
    text = "vfio-pci.ids=15B3:0x1021:ffffffff:ffffffff:020000:ff0000"
    assert "driver-ids" in look(change=lambda root: put(root, "/proc/cmdline", text))


def held(root, number=1123, name="nvidia-persiste"):
    put(root, f"/proc/{number}/comm", name)
    (root / f"proc/{number}/fd").mkdir()
    (root / f"proc/{number}/fd/4").symlink_to("/dev/nvidia0")
    put(root, f"/proc/driver/nvidia/gpus/{FIRST}/information", "Model: H100\nDevice Minor: 0")


def test_a_process_that_holds_a_gpu_is_named(look):
    (finding,) = look("nvidia", held)["driver"]
    text = f"{FIRST}: process 1123 (nvidia-persiste) has /dev/nvidia0 open"
    assert finding["cure"].startswith(
        f"First end the programs that have it open ({text}); then driverctl"
    )


def test_without_a_process_nothing_is_said(look):
    def change(root):
        held(root)
        (root / "proc/1123/fd/4").unlink()

    (finding,) = look("nvidia", change)["driver"]
    assert finding["cure"].startswith("driverctl set-override")


def test_processes_that_cannot_be_looked_at_are_unknown(look):
    def change(root):
        held(root)
        # As /proc answers a user who is not root.
        (root / "proc/1123/fd/4").unlink()
        (root / "proc/1123/fd").rmdir()
        os.symlink("fd", root / "proc/1123/fd")  # noqa: PTH211 - a loop: cannot be listed

    (finding,) = look("nvidia", change)["driver"]
    assert "whether a process has it open is unknown (1 of the host" in finding["cure"]


def test_entries_that_match_nothing_are_named(look):
    lines = [
        '{"address": "0000:5e:00.4", "managed": "no", "resource_class": "CUSTOM_VGPU"}',
        '{"vendor_id": "10de", "product_id": "2bb5"}',
        '{"vendor_id": "10de", "product_id": "2330", "address": "0000:18:00.0"}',
    ]
    conf = "[pci]\n" + "".join(f"device_spec = {line}\n" for line in lines)
    seen = [each["seen"] for each in look(conf=conf)["entry-unmatched"]]
    assert seen == [
        f"The entry {line} of [pci]device_spec matches no device of this node."
        for line in lines[:2]
    ]
