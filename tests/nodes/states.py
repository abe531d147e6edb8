# SPDX-License-Identifier: Apache-2.0
"""States of nodes that people reported: a written node is changed into them."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

from nova_hpc.topology import cpuset
from tests.nodes.describe import DIRECT, Machine, Processor, Root
from tests.nodes.parts import EPYC, GEN5, XEON, adapter, gpu, numa_nodes, port, switch
from tests.nodes.write import listed, masked

_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"


def plain(driver: str = "vfio-pci") -> Machine:
    """Two sockets, a switch each with two GPUs and an InfiniBand adapter with eight VFs."""

    def root(bus: int, numa: int) -> Root:
        cards = [gpu("10de:2330", "10de:16c1", bus + at, driver=driver) for at in (4, 6)]
        below = switch(bus + 2, *cards, adapter(numa, bus + 5), acs=DIRECT)
        return Root(0, bus, numa, (port("01.0", bus + 1, below),))

    memory = numa_nodes(2, 1, 16, 256, {2048: 0, 1048576: 200})
    return Machine("plain", memory, (root(0x15, 0), root(0x37, 1)), Processor(XEON, sibling=32))


def epyc() -> Machine:
    """Two sockets of AMD with a GPU and an adapter each."""

    def root(bus: int, numa: int) -> Root:
        cards = (gpu("10de:2330", "10de:16c1", bus + 1), adapter(numa, bus + 2))
        ports = [
            port(f"0{at}.1", bus + at, card, ids="1022:14ab", link=GEN5)
            for at, card in enumerate(cards, 1)
        ]
        return Root(0, bus, numa, tuple(ports))

    memory = numa_nodes(2, 1, 32, 512, {2048: 0, 1048576: 400}, far=32)
    return Machine("epyc", memory, (root(0x01, 0), root(0x81, 1)), Processor(EPYC, sibling=64))


def switch_cpus_off(root: Path, online: Collection[int], as_kernel: bool = True) -> None:
    """Set all other CPUs offline.

    :param as_kernel: as Linux shows it: lists of NUMA nodes and devices have online CPUs only,
        and each CPU keeps a link to its NUMA node. Else as a capture without links, in which
        the devices have their lists from before.
    """
    cpus = root / _CPUS
    everything = cpuset.parse_list((cpus / "online").read_text())
    for node in sorted((root / _NODES).glob("node[0-9]*")):
        there = cpuset.parse_list((node / "cpulist").read_text())
        (node / "cpulist").write_text(f"{listed(sorted(there & {*online}))}\n")
        (node / "cpumap").unlink()
        for cpu in sorted(there) if as_kernel else ():
            (cpus / f"cpu{cpu}" / node.name).symlink_to(f"../../node/{node.name}")
    for cpu in everything - {*online}:
        shutil.rmtree(cpus / f"cpu{cpu}/topology")
        (cpus / f"cpu{cpu}/online").write_text("0\n")
    for cpu in everything & {*online} if as_kernel else ():
        for kind in ("core_cpus", "package_cpus"):
            path = cpus / f"cpu{cpu}/topology/{kind}"
            path.write_text(f"{masked(sorted(cpuset.parse_mask(path.read_text()) & {*online}))}\n")
        path = cpus / f"cpu{cpu}/topology/core_cpus_list"
        path.write_text(f"{listed(sorted(cpuset.parse_list(path.read_text()) & {*online}))}\n")
    for name, members in (
        ("online", everything & {*online}),
        ("present", everything),
        ("offline", everything - {*online}),
    ):
        (cpus / name).write_text(f"{listed(sorted(members))}\n")
    for path in root.glob("sys/devices/pci*/**/local_cpulist") if as_kernel else ():
        near = sorted(cpuset.parse_list(path.read_text()) & {*online})
        path.write_text(f"{listed(near)}\n")
        path.with_name("local_cpus").write_text(f"{masked(near)}\n")
