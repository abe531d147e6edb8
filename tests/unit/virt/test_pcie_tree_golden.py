# SPDX-License-Identifier: Apache-2.0
"""The domains of version 1, byte for byte, and the pictures in the documentation.

A change here is a change of the hardware of servers that exist: make a new
version of the rules instead.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice, plan_guest_pci_tree, windows
from nova_hpc.topology.model import Bar
from nova_hpc_common.level import Location, distance_between
from nova_hpc_tools.site import lstopo
from tests.unit.virt import tree_picture, tree_reader
from tests.unit.virt.tree_worlds import UEFI, arranged, domain

TOP = Path(__file__).parents[3]
GOLDEN = TOP / "tests/data/golden"
PICTURES = TOP / "docs/source/user/pictures"
#: A GPU of 32 GiB as the DGX-2 has them; a capture by lstopo has no BARs.
GPU = (
    Bar(1, 32 << 30, prefetchable=True, wide=True),
    Bar(3, 32 << 20, prefetchable=True, wide=True),
)


def same(path: Path, text: str) -> None:
    """Compare with a file; NOVA_HPC_RENEW_GOLDEN writes it."""
    if os.environ.get("NOVA_HPC_RENEW_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def two_sockets() -> list[TreeDevice]:
    """GPU and VF below a switch on node 0, at root ports of their own on node 1."""
    switch = Location(numa=0, socket=0, root="pci0000:20", switches=("0000:22:00.0",))
    ports = [f"0000:80:0{number}.0" for number in range(2)]
    bare = [Location(numa=1, socket=1, root="pci0000:80", switches=(port,)) for port in ports]
    span = windows.span_of_bars(GPU)
    return [
        TreeDevice("0000:24:00.0", switch, span, clique=True),
        TreeDevice("0000:25:10.0", switch),
        TreeDevice("0000:81:00.0", bare[0], span, clique=True),
        TreeDevice("0000:82:10.0", bare[1]),
    ]


@pytest.mark.parametrize(
    ("name", "mode", "cells", "options"),
    [
        ("mirror", TopologyMode.MIRROR, {0: 0, 1: 1}, {}),
        ("mirror-uefi", TopologyMode.MIRROR, {0: 0, 1: 1}, {"loader": UEFI, "root_ports": 16}),
        ("mirror-no-cells", TopologyMode.MIRROR, {}, {}),
        ("numa", TopologyMode.NUMA, {0: 0, 1: 1}, {}),
        ("numa-one-cell", TopologyMode.NUMA, {1: 0}, {}),
    ],
)
def test_version_1(valid, name, mode, cells, options):
    rules = Abi(mode, version=1)
    devices = two_sockets()
    xml = domain([each.address for each in devices], cells=len(cells), **options)
    text = arranged(xml, plan_guest_pci_tree(devices, cells, rules), rules)
    valid(text)
    same(GOLDEN / f"guest-v1-{name}.xml", text + "\n")


@pytest.fixture(scope="session")
def dgx2(captures):
    """The GPUs of an NVIDIA DGX-2: host address -> device."""
    node = lstopo.read_lstopo_file(captures / "hwloc/nvidiaDGX2.xml")
    found = [each for each in node.functions if each.vendor_id == "10de"]
    gpus = [each for each in found if (each.class_code or "").startswith("03")]
    return [
        TreeDevice(each.address, each.location, windows.span_of_bars(GPU), clique=True)
        for each in gpus
    ]


@pytest.mark.parametrize("count", [8, 16])
def test_a_dgx2(valid, dgx2, count):
    # Every other GPU: one of each of the innermost switches.
    devices = dgx2 if count == 16 else dgx2[::2]
    assert len(devices) == count
    rules = Abi(TopologyMode.MIRROR, clique=True, version=1)
    made = plan_guest_pci_tree(devices, {0: 0, 1: 1}, rules)
    xml = domain([each.address for each in devices], memory=1 << 30, loader=UEFI)
    text = arranged(xml, made, rules)
    valid(text)
    same(GOLDEN / f"guest-v1-dgx2-{count}.xml", text + "\n")
    guest = tree_reader.read(text)
    for one, other in itertools.combinations(devices, 2):
        seen = distance_between(guest.places[one.address], guest.places[other.address])
        assert seen is distance_between(one.location, other.location)
    names = {each.address: "GPU" for each in devices}
    lines = [line.rstrip() for line in tree_picture.lines(made, names)]
    assert sum("GPU" in line for line in lines) == count
    same(PICTURES / f"dgx2-{count}.txt", "\n".join(lines) + "\n")
