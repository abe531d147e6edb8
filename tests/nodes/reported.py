# SPDX-License-Identifier: Apache-2.0
"""Nodes on which people of other clouds reported what no service had said.

They are not in the catalogue: something is wrong with each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tests.nodes.catalogue import NODES
from tests.nodes.describe import DIRECT, MIB, Bar, Bridge, Endpoint, Machine, Processor, Root, Vfs
from tests.nodes.parts import GEN5, XEON, adapter, gpu, numa_nodes, nvme, port, switch


def _h200() -> Machine:
    """Eight H200 that could have virtual functions, and NVSwitches that nobody runs."""

    def leaf(bus: int, number: int) -> Bridge:
        def card(place: int) -> Endpoint:
            return gpu("10de:2335", "10de:18be", place, vfs=Vfs("2335", 0, 16))

        below = adapter(number, bus + 3), card(bus + 4), adapter(number + 1, bus + 5), card(bus + 6)
        return switch(bus + 2, *below, acs=DIRECT)

    def root(bus: int, numa: int, number: int) -> Root:
        return Root(0, bus, numa, (port("01.0", bus + 1, leaf(bus, number)),))

    fabric = next(each for each in NODES["hgx-h100"].roots if each.bus == 0x48)
    return Machine(
        "h200",
        numa_nodes(2, 1, 56, 1024, {2048: 0, 1048576: 900}),
        (root(0x15, 0, 0), root(0x37, 0, 2), fabric, root(0x97, 1, 4), root(0xB7, 1, 6)),
        Processor(XEON, sibling=112),
    )


def _other_fabrics() -> Machine:
    """A GPU each beside an adapter of Broadcom, HPE (Slingshot), Cornelis and AMD."""

    def nic(ids: str, code: str, bus: int, driver: str, name: str, virtual: str = "") -> Endpoint:
        return Endpoint(
            ids,
            code,
            subsystem="0000:0001",
            link=GEN5,
            bars=(Bar(0, 64 * MIB),),
            driver=driver,
            serial=f"00aabbccdd{bus:06x}",
            vfs=Vfs(virtual, 4, 16) if virtual else None,
            net={name: f"0a:00:00:00:00:{bus:02x}"},
        )

    def root(bus: int, numa: int, *words: str) -> Root:
        ids, code, driver, name, virtual = words
        card = gpu("10de:2330", "10de:16c1", bus + 4)
        below = switch(bus + 2, card, nic(ids, code, bus + 5, driver, name, virtual), acs=DIRECT)
        return Root(0, bus, numa, (port("01.0", bus + 1, below),))

    return Machine(
        "otherfabrics",
        numa_nodes(2, 1, 32, 512, {2048: 0, 1048576: 400}),
        (
            root(0x15, 0, "14e4:1760", "020000", "bnxt_en", "enp26s0np0", "1819"),
            root(0x37, 0, "17db:0501", "020000", "cxi_core", "hsn0", ""),
            root(0x97, 1, "434e:0001", "020800", "hfi1", "ibp156s0", ""),
            root(0xB7, 1, "1dd8:1002", "020000", "ionic", "enp188s0", "1003"),
            Root(0, 0xD0, 1, (port("01.0", 0xD1, nvme(1)), port("02.0", 0xD2, nvme(2)))),
        ),
        Processor(XEON, sibling=64),
    )


def _no_numa() -> Machine:
    """The machine of the catalogue with a firmware that names no NUMA node."""
    found = NODES["hgx-h100"]
    roots = tuple(replace(each, numa=-1) for each in found.roots)
    return replace(found, name="no-numa", roots=roots)


REPORTED: Final[Mapping[str, Machine]] = {
    machine.name: machine for machine in (_h200(), _other_fabrics(), _no_numa())
}
