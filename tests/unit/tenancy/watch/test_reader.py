# SPDX-License-Identifier: Apache-2.0
"""The reader of devices in use: files of a node, healthy, broken and gone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import attrs
import pytest

from benchmarks import sysfs_tree
from nova_hpc.tenancy.watch.error_file import ErrorFile
from nova_hpc.tenancy.watch.look import (
    DRIVER,
    FATAL,
    NONFATAL,
    PARENT_FATAL,
    PORT_FATAL,
    DeviceLook,
)
from nova_hpc.tenancy.watch.reader import DeviceReader


@attrs.frozen
class Node:
    """A GPU and a virtual function of an adapter with a port."""

    root: Path
    gpu: str
    vf: str

    def folder(self, address: str) -> Path:
        return (self.root / "sys/bus/pci/devices" / address).resolve()

    @property
    def adapter(self) -> Path:
        return (self.folder(self.vf) / "physfn").resolve()

    def look(self, address: str) -> DeviceLook:
        return DeviceReader(self.root).read([address])[address]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (gpu, _), (vf, _) = sysfs_tree.build(tmp_path, 2, 2, 1)
    built = Node(tmp_path, gpu, vf)
    port = built.adapter / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (built.adapter / "infiniband/mlx5_0/fw_ver").write_text("28.39.1002\n")
    return built


def test_a_healthy_gpu_and_a_healthy_virtual_function(node: Node) -> None:
    assert node.look(node.gpu) == DeviceLook(
        present=True,
        silent=False,
        ids="de103023a1000203de10c116",
        width=16,  # the speed of a GPU's link is not read
        counters={FATAL: 0, NONFATAL: 0},
    )
    assert node.look(node.vf) == DeviceLook(
        present=True,
        silent=False,
        firmware="28.39.1002",
        width=16,
        speed=32.0,
        counters={FATAL: 0, NONFATAL: 0, PARENT_FATAL: 0},
        ports={"mlx5_0/1": True},
    )


def test_what_a_virtual_function_has_of_its_adapter(node: Node) -> None:
    (node.adapter / "current_link_width").write_text("8\n")
    (node.adapter / "current_link_speed").write_text("16.0 GT/s PCIe\n")
    (node.adapter / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 2\n")
    # Others' nonfatal errors are no fault of this function.
    (node.adapter / "aer_dev_nonfatal").write_text("TOTAL_ERR_NONFATAL 9\n")
    look = node.look(node.vf)
    assert (look.width, look.speed) == (8, 16.0)
    assert look.counters == {FATAL: 0, NONFATAL: 0, PARENT_FATAL: 2}
    for text, ports in (
        ("1: DOWN\n", {"mlx5_0/1": False}),
        ("2: INIT\n", {"mlx5_0/1": False}),
        ("5: ACTIVE_DEFER\n", {}),
        ("what\n", {}),
    ):
        (node.adapter / "infiniband/mlx5_0/ports/1/state").write_text(text)
        assert node.look(node.vf).ports == ports
    (node.adapter / "power_state").write_text("D3hot\n")
    look = node.look(node.vf)
    assert (look.width, look.speed, look.firmware, look.ports) == (None, None, None, {})


def test_a_fatal_error_that_only_the_port_above_the_link_counts(node: Node) -> None:
    """Before: a GPU that lost its link, which stops its guest, had no word."""
    for folder, address in ((node.folder(node.gpu), node.gpu), (node.adapter, node.vf)):
        assert PORT_FATAL not in node.look(address).counters
        (folder.parent / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 1\n")
        assert node.look(address).counters[PORT_FATAL] == 1


def test_a_device_that_is_gone_silent_asleep_or_unreadable(node: Node) -> None:
    for address, ones in ((node.gpu, 64), (node.vf, 8)):
        folder = node.folder(address)
        plain = (folder / "config").read_bytes()
        (folder / "config").write_bytes(b"\xff" * len(plain))
        look = node.look(address)
        assert (look.silent, look.ids, look.readable) == (True, None, False)
        (folder / "config").write_bytes(plain[: ones - 1])
        assert node.look(address).silent is None
        (folder / "config").unlink()
        assert node.look(address).silent is None
        os.mkfifo(folder / "config")  # must not hang
        assert node.look(address).silent is None
        (folder / "config").unlink()
        (folder / "config").mkdir()
        assert node.look(address).silent is None
        (folder / "config").rmdir()
        (folder / "config").write_bytes(plain)
    config = node.folder(node.gpu) / "config"
    for vendor in (b"\xff\xff", b"\x01\x00"):  # within a reset
        config.write_bytes(vendor + config.read_bytes()[2:])
        look = node.look(node.gpu)
        assert (look.silent, look.ids, look.width) == (None, None, None)
    (node.folder(node.gpu) / "power_state").write_text("D3cold\n")
    look = node.look(node.gpu)
    assert (look.asleep, look.silent, look.width) == (True, None, None)
    shutil.rmtree(node.folder(node.gpu))
    (node.root / "sys/bus/pci/devices" / node.gpu).unlink()
    assert node.look(node.gpu) == DeviceLook(present=False)
    # A whole bus that is empty says nothing of a device.
    shutil.rmtree(node.root / "sys/bus/pci/devices")
    assert node.look(node.gpu) == DeviceLook()
    (node.root / "sys/bus/pci/devices").mkdir()
    assert node.look(node.gpu) == DeviceLook()


def test_values_of_a_link_that_is_down(node: Node) -> None:
    folder = node.folder(node.gpu)
    for text in ("0", "63", "255", "", "x16", "-1"):
        (folder / "current_link_width").write_text(f"{text}\n")
        assert node.look(node.gpu).width is None
    (node.adapter / "current_link_speed").write_text("Unknown\n")
    assert node.look(node.vf).speed is None
    (node.adapter / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    assert node.look(node.vf).speed == 2.5


def test_another_device_at_the_same_place(node: Node) -> None:
    reader = DeviceReader(node.root)
    assert reader.read([node.vf])[node.vf].speed == 32.0
    link = node.root / "sys/bus/pci/devices" / node.vf
    target = link.readlink()
    link.unlink()
    assert reader.read([node.vf]) == {node.vf: DeviceLook(present=False)}
    (node.folder(node.gpu) / "current_link_width").write_text("4\n")
    link.symlink_to(os.path.relpath(node.folder(node.gpu), link.parent))
    assert reader.read([node.vf])[node.vf].width == 4
    link.unlink()
    link.symlink_to(target)


def test_one_device_is_read_whatever_another_is(node: Node) -> None:
    shutil.rmtree(node.folder(node.gpu))
    (node.root / "sys/bus/pci/devices" / node.gpu).unlink()
    looks = DeviceReader(node.root).read([node.gpu, node.vf, "0000:ff:00.0"])
    assert looks[node.vf].width == 16
    assert looks["0000:ff:00.0"].present is False


def test_errors_of_an_exporter(node: Node, tmp_path: Path) -> None:
    import re

    path = tmp_path / "gpu.prom"
    errors = ErrorFile(str(path), re.compile("gpu_.*_total"))
    reader = DeviceReader(node.root, errors)
    assert DRIVER not in reader.read([node.gpu])[node.gpu].counters
    path.write_text(f'gpu_xid_total{{pci="{node.gpu}"}} 7\n')
    assert reader.read([node.gpu])[node.gpu].counters[DRIVER] == 7
    assert DRIVER not in reader.read([node.vf])[node.vf].counters
    path.unlink()
    assert DRIVER not in reader.read([node.gpu])[node.gpu].counters
    path.write_bytes(b"x" * ((1 << 20) + 1))
    assert errors.read() == {}
    path.unlink()
    path.mkdir()
    assert errors.read() == {}
