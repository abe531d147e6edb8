# SPDX-License-Identifier: Apache-2.0
"""The commands show and check, by hand, and as the guide shows them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc_common.wire.server_faults import FaultWord
from nova_hpc_guest import build, compare, document, terms
from tests.unit.guest.servers import gpu_of, run


def test_show(guest):
    status, out, err = run(guest, "show")
    assert (status, err) == (0, "")
    assert (
        out
        == """\
topology mirror, 3 devices
NUMA node 0: 8 CPUs, 16 GiB, pages of 1 GiB
  root 0
    switch 0
      device 0 (gpu 10de:2330): 0000:23:00.0 nvidia
      device 1 (gpu 10de:2330): 0000:24:00.0 nvidia
NUMA node 1: 8 CPUs, 16 GiB, pages of 1 GiB
  root 1
    device 2 (vf 15b3:101e): 0000:31:00.0 mlx5_core

        0    1    2
   0    -  PIX  SYS
   1  PIX    -  SYS
   2  SYS  SYS    -
"""
    )


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        (
            "current_link_width",
            "8",
            "WRONG link: device 0 (gpu 10de:2330): the link has 8 lanes of 16",
        ),
        (
            "max_link_speed",
            "16.0 GT/s PCIe",
            "WRONG link: device 0 (gpu 10de:2330): the link makes 16 GT/s at most, not 32",
        ),
        (
            "numa_node",
            "rubbish",
            "WRONG numa: device 0 (gpu 10de:2330): NUMA node not known instead of 0",
        ),
    ],
)
def test_links_and_nodes(guest, path, text, line):
    (gpu_of(guest) / path).write_text(text)
    status, out, _ = run(guest, "check")
    assert status == 1
    assert line in out.splitlines()


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("device", "0x2331", "10de:2331"),
        ("vendor", "0x1002", "1002:2330"),
        # The same numbers, and another kind of device.
        ("class", "0x020700", "10de:2330"),
    ],
)
def test_another_device_at_the_promised_place(guest, path, text, found):
    (gpu_of(guest) / path).write_text(f"{text}\n")
    status, out, _ = run(guest, "check", "--quiet")
    assert status == 1
    (line,) = out.splitlines()
    assert line.startswith("WRONG device: device 0 (gpu 10de:2330): at ")
    assert line.endswith(f" is {found} instead")


def test_an_idle_device_is_no_fault(guest):
    (gpu_of(guest) / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    status, out, _ = run(guest, "check")
    assert status == 0
    assert out.startswith("note link: device 0 (gpu 10de:2330): the link makes 2.5 of 32 GT/s now")
    assert run(guest, "check", "--quiet") == (0, "", "")


def test_another_tree(guest):
    """The device moved to a port of its own: the same ids, another place."""
    text = guest.root / f"sys/firmware/qemu_fw_cfg/by_name/{terms.DOCUMENT}/raw"
    found = json.loads(document.decode_entry(text.read_bytes()))
    found["devices"][0]["switches"] = [7]
    text.write_text(json.dumps(found))
    status, out, _ = run(guest, "check", "--quiet")
    assert status == 1
    assert out == (
        "WRONG tree: device 0 (gpu 10de:2330): PIX to device 1 (gpu 10de:2330) instead of PHB\n"
    )
    assert run(guest, "check", "--skip", "tree")[0] == 0


def test_nodes_and_pages(guest):
    node = guest.root / "sys/devices/system/node/node1"
    (node / "cpulist").write_text("8-11\n")
    (node / "meminfo").write_text("Node 1 MemTotal: 4000000 kB\n")
    (guest.root / "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages").unlink()
    (guest.root / "sys/kernel/mm/hugepages/hugepages-1048576kB").rmdir()
    status, out, _ = run(guest, "check", "--quiet", "--hugepages", "2M=5")
    assert status == 1
    assert out.splitlines() == [
        "WRONG cells: NUMA node 1 has 4 CPUs instead of 8",
        "WRONG cells: NUMA node 1 has 3906 MiB of 16384",
        "WRONG hugepages: the memory lies in the host's pages of 1048576 KiB, and this kernel "
        "offers no pages of that size",
        "WRONG hugepages: 4 pages of 2048 KiB in the pool, 5 asked for",
    ]
    assert run(guest, "check", "--skip", "cells,hugepages")[0] == 0
    (node / "cpulist").unlink()
    assert "1 NUMA nodes with CPUs instead of 2" in run(guest, "check")[1]


# -- the user guide ----------------------------------------------------------------

GUIDE = Path(build.__file__).parents[1] / "docs/source/user/guest.rst"


def block(after: str) -> str:
    """The literal block that follows a line of the guide, without its indentation."""
    lines = GUIDE.read_text().partition(after)[2].splitlines()
    start = next(
        index
        for index, line in enumerate(lines)
        if line.startswith("   ") and not lines[index - 1].startswith("..")
    )
    found = itertools.takewhile(lambda line: not line or line.startswith("   "), lines[start:])
    return "\n".join(line[3:] for line in found).strip("\n") + "\n"


def test_the_guide_shows_what_the_command_prints(guest):
    assert block("in the words of NCCL and ``nvidia-smi topo``::") == run(guest, "show")[1]


def test_the_script_of_the_guide_names_the_nearest_adapter(guest, tmp_path):
    folder = guest.folders["0000:98:00.0"]
    (folder / "infiniband/mlx5_3").mkdir(parents=True)
    (folder / "net/ib0").mkdir(parents=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "real").write_bytes(build.single_file())
    (tools / "nova-hpc-guest").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{tools}/real" "$@" --root "{guest.root}"\n'
    )
    (tools / "nova-hpc-guest").chmod(0o755)
    done = subprocess.run(
        [
            "sh",
            "-euc",
            block("distances and the names of the adapters.") + 'echo "$UCX_NET_DEVICES"',
        ],
        env={"PATH": f"{tools}:{os.environ['PATH']}", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("mlx5_3:1\n", "")


def test_the_words_are_those_of_the_owner(guest):
    """The guest's wheel has them once more, because it does not need the common one."""
    assert {
        "device": FaultWord.GONE.value,
        "link": FaultWord.LINK.value,
        "pkey": FaultWord.PARTITION.value,
    } == compare.FAULTS
    assert set(compare.FAULTS) <= set(compare.KINDS)
    (gpu_of(guest) / "current_link_width").write_text("8\n")
    (gpu_of(guest) / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    status, out, _ = run(guest, "check", "--format", "json")
    faults = [(found["kind"], found["fault"]) for found in json.loads(out)["findings"]]
    # The speed is only a note.
    assert (status, faults) == (1, [("link", "link"), ("link", None)])
