# SPDX-License-Identifier: Apache-2.0
"""The command on the sysfs of a guest that QEMU, SeaBIOS and Linux have made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.guest.servers import run
from tests.unit.guest.worlds import Guest
from tests.unit.topology import nccl_reader

CAPTURE = Path(__file__).parents[2] / "data/guest/booted.tar.xz"


@pytest.fixture
def booted(tmp_path: Path) -> Guest:
    subprocess.run(["tar", "-xf", CAPTURE, "-C", tmp_path], check=True)
    return Guest(tmp_path)


def test_it_is_as_promised(booted):
    assert run(booted, "check", "--skip", "driver") == (
        0,
        "As promised: 4 devices, 2 NUMA nodes, topology mirror.\n",
        "",
    )
    assert (
        run(booted, "show")[1]
        == """\
topology mirror, 4 devices
NUMA node 0: 1 CPU, 512 MiB, pages of 2 MiB
  root 0
    switch 0
      device 0 (gpu 1234:1111): 0000:43:00.0 no driver
      device 1 (vf 8086:10d3): 0000:44:00.0 no driver
NUMA node 1: 1 CPU, 512 MiB, pages of 2 MiB
  root 1
    device 2 (gpu 1234:1111): 0000:51:00.0 no driver
    device 3 (vf 8086:10d3): 0000:52:00.0 no driver

        0    1    2    3
   0    -  PIX  SYS  SYS
   1  PIX    -  SYS  SYS
   2  SYS  SYS    -  PHB
   3  SYS  SYS  PHB    -
"""
    )


def test_no_driver_is_loaded_in_it(booted):
    status, out, _ = run(booted, "check", "--quiet")
    assert status == 1
    assert out.splitlines() == [
        f"WRONG driver: device {number} ({name}): no driver is bound to it"
        for number, name in enumerate(["gpu 1234:1111", "vf 8086:10d3"] * 2)
    ]


def test_a_device_is_missing(booted):
    (booted.root / "sys/bus/pci/devices/0000:51:00.0").unlink()
    assert run(booted, "check", "--quiet", "--skip", "driver") == (
        1,
        "WRONG device: device 2 (gpu 1234:1111): not there, at 50/00.0/00.0\n",
        "",
    )


def test_nccl_gets_its_addresses(booted):
    assert run(booted, "install")[0] == 0
    text = (booted.root / "run/nova-hpc/nccl-topology.xml").read_text()
    seen = nccl_reader.devices(nccl_reader.read(text))
    assert list(seen) == ["0000:43:00.0", "0000:44:00.0", "0000:51:00.0", "0000:52:00.0"]
    gpu, adapter, far_gpu, far_adapter = seen.values()
    assert nccl_reader.path_type(gpu, adapter) == "PIX"
    assert nccl_reader.path_type(far_gpu, far_adapter) == "PHB"
    assert nccl_reader.path_type(gpu, far_adapter) == "SYS"
