# SPDX-License-Identifier: Apache-2.0
"""The synthetic nodes, each wired as machines of its kind are.

Classes, ids, kinds of links, NUMA distances and PCI domains are those of real
hardware; bus numbers, GUIDs and serial numbers are made up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tests.nodes.describe import (
    DIRECT,
    GIB,
    MIB,
    OPEN,
    Bar,
    Bridge,
    Endpoint,
    Link,
    Machine,
    Numa,
    Processor,
    Root,
    Vfs,
)
from tests.nodes.parts import (
    DISK,
    EPYC,
    GEN4,
    GEN5,
    GRACE,
    XEON,
    adapter,
    chipset,
    gpu,
    numa_nodes,
    nvme,
    port,
    switch,
)


def _hgx_h100() -> Machine:
    """Eight H100 with NVSwitches; below each of four switches two GPUs, each with its adapter."""

    def leaf(bus: int, number: int) -> Bridge:
        return switch(
            bus + 2,
            adapter(number, bus + 3),
            gpu("10de:2330", "10de:16c1", bus + 4),
            adapter(number + 1, bus + 5),
            gpu("10de:2330", "10de:16c1", bus + 6),
            acs=DIRECT,
        )

    def root(bus: int, numa: int, number: int) -> Root:
        return Root(0, bus, numa, (port("01.0", bus + 1, leaf(bus, number)),))

    links = Link(5.0, 2)
    fabric = switch(
        0x4A,
        *(
            Endpoint(
                "10de:22a3",
                "068000",
                subsystem="10de:1796",
                link=links,
                bars=(Bar(0, 32 * MIB, False),),
                driver="vfio-pci",
                serial=f"48b02dfffe{number:06x}",
            )
            for number in range(4)
        ),
        ids="10b5:8725",
        link=links,
    )
    return Machine(
        "hgx-h100",
        numa_nodes(2, 1, 48, 1024, {2048: 0, 1048576: 900}),
        (
            Root(0, 0x00, 0, chipset()),
            root(0x15, 0, 0),
            root(0x37, 0, 2),
            Root(0, 0x48, 0, (port("01.0", 0x49, fabric, link=links),)),
            Root(0, 0x50, 0, (port("03.0", 0x51, nvme(0)),)),
            root(0x97, 1, 4),
            root(0xB7, 1, 6),
        ),
        Processor(XEON, sibling=96),
    )


def _xeon_snc4() -> Machine:
    """Sub-NUMA clusters of four: every quarter of a socket is a NUMA node of its own."""

    def card(serial: int) -> Endpoint:
        return gpu("10de:2331", "10de:1626", serial)

    return Machine(
        "xeon-snc4",
        numa_nodes(2, 4, 8, 64, {2048: 4096, 1048576: 40}),
        (
            Root(0, 0x00, 0, chipset()),
            # One NUMA node, two host bridges: NODE.
            Root(0, 0x15, 0, (port("01.0", 0x16, card(1)),)),
            Root(0, 0x26, 0, (port("01.0", 0x27, adapter(0, 0x27)),)),
            # A neighbour in the socket.
            Root(0, 0x37, 2, (port("01.0", 0x38, card(2)),)),
            # One host bridge, two ports: PHB.
            Root(0, 0x97, 4, (port("01.0", 0x98, card(3)), port("03.0", 0x99, adapter(1, 0x99)))),
            Root(0, 0xB7, 6, (port("01.0", 0xB8, card(4)),)),
        ),
        Processor(XEON, sibling=64),
    )


def _epyc_nps4() -> Machine:
    """Four NUMA nodes a socket, one GPU on each; adapters beside those of 1 and 5."""
    roots = []
    for number in range(8):
        bus = 0x20 * number + 1
        card = gpu("10de:26b9", "10de:1851", 0x40 + number, GEN4)
        ports = [port("01.1", bus + 1, card, ids="1022:14ab", link=GEN4)]
        if number % 4 == 1:
            nic = adapter(number // 4, bus + 2, link=GEN4, rate="200 Gb/sec (4X HDR)")
            ports.append(port("03.1", bus + 2, nic, ids="1022:14ab", link=GEN4))
        roots.append(Root(0, bus, number, tuple(ports)))
    return Machine(
        "epyc-nps4",
        numa_nodes(2, 4, 24, 96, {2048: 0, 1048576: 80}, far=32),
        tuple(roots),
        Processor(EPYC, sibling=192),
    )


def _gh200() -> Machine:
    """Two Grace Hopper superchips: a PCI domain for each device, NUMA nodes without CPUs."""
    numa = [
        Numa(chip, f"{72 * chip}-{72 * chip + 71}", 480, chip, pages={2048: 0, 524288: 700})
        for chip in range(2)
    ]
    for chip in range(2):
        first = 2 + 8 * chip
        # The GPU's memory is the first of eight nodes, which its instances (MIG) can have.
        numa.append(Numa(first, "", 96, memory_of=f"{0x9 + 0x10 * chip:04x}:01:00.0"))
        numa += [Numa(first + more, "", 0) for more in range(1, 8)]

    def chip_of(one: int) -> int:
        return one if one < 2 else (one - 2) // 8

    def between(one: int, other: int) -> int:
        if chip_of(one) == chip_of(other):
            return 80 if min(one, other) < 2 else 11
        # Of each other's GPUs the chips are as far as both ways together.
        return 40 if max(one, other) < 2 else 120

    table = [
        tuple(10 if one == other else between(one, other) for other in range(18))
        for one in range(18)
    ]
    numa = [
        Numa(each.id, each.cpus, each.memory_gib, each.socket, table[each.id], each.pages,
             each.memory_of)
        for each in numa
    ]  # fmt: skip

    def roots(chip: int) -> list[Root]:
        first = 0x10 * chip
        grace = {"ids": "10de:22b2"}
        hopper = gpu("10de:2342", "10de:16eb", 0x200 + chip, driver="nvgrace_gpu_vfio_pci")
        return [
            Root(first, 0, chip, (port("00.0", 1, adapter(chip, 1, domain=first), **grace),)),
            Root(first + 4, 0, chip, (port("00.0", 1, nvme(chip), **grace),)),
            Root(first + 9, 0, chip, (port("00.0", 1, hopper, ids="10de:22b1"),)),
        ]

    return Machine("gh200", tuple(numa), (*roots(0), *roots(1)), Processor(GRACE))


def _vmd() -> Machine:
    """Disks behind Intel's Volume Management Devices, in PCI domains of their own."""

    def disks(number: int) -> Endpoint:
        first = 2 * number
        inside = Root(
            0x10000 + number,
            0,
            number,  # vmd.c gives its domain the node of its own device
            (
                port("02.0", 1, nvme(first), link=DISK),
                port("04.0", 2, nvme(first + 1), link=DISK),
            ),
        )
        return Endpoint(
            "8086:28c0",
            "010400",
            at="00.5",
            bars=(Bar(0, 32 * MIB), Bar(2, 32 * MIB, False, False), Bar(4, MIB)),
            driver="vmd",
            resets=(),
            express=False,
            behind=inside,
        )

    return Machine(
        "vmd",
        numa_nodes(2, 1, 16, 256, {1048576: 200}),
        (
            Root(0, 0x00, 0, chipset()),
            Root(
                0, 0x16, 0, (disks(0), port("01.0", 0x17, gpu("10de:20b7", "10de:1532", 7, GEN4)))
            ),
            Root(0, 0x64, 1, (disks(1), port("01.0", 0x65, adapter(0, 0x65, link=GEN4)))),
        ),
        Processor(XEON, sibling=32),
    )


def _mi300x() -> Machine:
    """Eight MI300X, each behind a switch of its own; two and an adapter below another."""

    def package(bus: int, serial: int) -> Bridge:
        accelerator = Endpoint(
            "1002:74a1",
            "120000",
            subsystem="1002:74a1",
            link=GEN5,
            bars=(Bar(0, 256 * GIB), Bar(2, 2 * MIB), Bar(5, MIB, False, False)),
            driver="vfio-pci",
            serial=f"0002bf{serial:010x}",
            ats=True,
            # It could have virtual functions, and has none: it is given whole.
            vfs=Vfs("74b5", 0, 8),
        )
        inner = Bridge("downstream", "1002:1501", bus + 1, (accelerator,), "00.0", GEN5)
        return Bridge("upstream", "1002:1500", bus, (inner,), "00.0", GEN5, None)

    def root(bus: int, numa: int, number: int) -> Root:
        ids = "1000:c030"
        below = (
            Bridge("downstream", ids, bus + 3, (package(bus + 4, bus),), "00.0", GEN5),
            Bridge("downstream", ids, bus + 6, (package(bus + 7, bus + 1),), "01.0", GEN5),
            Bridge("downstream", ids, bus + 9, (adapter(number, bus + 9),), "02.0", GEN5),
        )
        upstream = Bridge("upstream", ids, bus + 2, below, "00.0", GEN5, None)
        return Root(0, bus, numa, (port("01.1", bus + 1, upstream, ids="1022:14ab"),))

    return Machine(
        "mi300x",
        numa_nodes(2, 1, 96, 1152, {2048: 0, 1048576: 1000}, far=32),
        (root(0x01, 0, 0), root(0x21, 0, 1), root(0x81, 1, 2), root(0xA1, 1, 3)),
        Processor(EPYC, sibling=192),
    )


def _two_socket() -> Machine:
    """A plain server: cards in slots, no switch; one card in a slot that is too narrow."""
    narrow = Link(16.0, 16, now=(16.0, 8))
    display = Endpoint(
        "1a03:2000",
        "030000",
        express=False,
        resets=(),
        driver="ast",
        bars=(Bar(0, 16 * MIB, False, False),),
        devices={"drm": "card0"},
    )
    management = Endpoint(
        "8086:1521",
        "020000",
        link=Link(5.0, 4),
        driver="igb",
        serial="a0369fffff123456",
        net={"eno1": "a0:36:9f:12:34:56"},
        bars=(Bar(0, MIB, False, False),),
    )
    return Machine(
        "two-socket",
        numa_nodes(2, 1, 16, 128, {2048: 16384}),
        (
            Root(
                0,
                0x00,
                0,
                (
                    port(
                        "1c.0",
                        0x01,
                        Bridge("pci", "1a03:1150", 0x02, (display,), link=Link(2.5, 1), acs=None),
                        ids="8086:1bb8",
                        link=Link(2.5, 1),
                        acs=None,
                    ),
                    *chipset(),
                ),
            ),
            Root(
                0,
                0x16,
                0,
                (
                    port("02.0", 0x17, gpu("10de:20b7", "10de:1532", 1, GEN4), link=GEN4),
                    port("04.0", 0x18, management, link=Link(8.0, 4)),
                ),
            ),
            Root(
                0,
                0x30,
                0,
                (port("02.0", 0x31, gpu("10de:20b7", "10de:1532", 2, narrow), link=GEN4),),
            ),
            Root(
                0,
                0xB0,
                1,
                (
                    port(
                        "02.0",
                        0xB1,
                        adapter(0, 0xB1, ids="15b3:101b", virtual="101c", link=GEN4, vfs=4,
                                code="020000", offset=2, rate="200 Gb/sec (4X HDR)"),
                        adapter(1, 0xB1, ids="15b3:101b", virtual="101c", link=GEN4, vfs=0,
                                code="020000", rate="200 Gb/sec (4X HDR)", at="00.1"),
                        link=GEN4,
                    ),
                ),
            ),
        ),
        Processor(XEON | {"model": "106"}, sibling=32),
    )  # fmt: skip


def _a100_bridges() -> Machine:
    """Eight A100 on PCIe, four below a switch; NVLink bridges join them in pairs.

    ACS is off in the switches, so each card shares its IOMMU group with the port above.
    """

    def leaf(bus: int) -> Bridge:
        cards = (gpu("10de:20b5", "10de:1533", bus + number, GEN4) for number in range(4))
        return switch(bus, *cards, ids="10b5:9797", link=GEN4, acs=OPEN)

    def root(bus: int, numa: int) -> Root:
        return Root(
            0, bus, numa, (port("01.1", bus + 1, leaf(bus + 2), ids="1022:1483", link=GEN4),)
        )

    nic = adapter(0, 0x42, ids="15b3:101b", virtual="101c", link=GEN4, rate="200 Gb/sec (4X HDR)")
    pairs = [("23", "24"), ("25", "26"), ("a3", "a4"), ("a5", "a6")]
    return Machine(
        "a100-bridges",
        numa_nodes(2, 1, 64, 512, {1048576: 450}, far=32),
        (
            root(0x20, 0),
            Root(0, 0x40, 0, (port("03.1", 0x42, nic, ids="1022:1483", link=GEN4),)),
            root(0xA0, 1),
        ),
        Processor(EPYC | {"model": "1"}, sibling=128),
        nvlink_set=tuple(
            json.dumps({"name": f"bridge{number}", "devices": [f"0000:{bus}:00.0" for bus in pair]})
            for number, pair in enumerate(pairs)
        ),
    )


#: Of Linux 6.8 with the packages of Ubuntu: what its variants are for.
_ALIASES: Final = (
    "# Aliases extracted from modules themselves.",
    "alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia",
    "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci",
    "alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci",
    "alias vfio_pci:v000010DEd00002345sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci",
    "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci",
)


def _gh200_host() -> Machine:
    """Two Grace Hopper superchips as they are delivered: NVIDIA's driver has the GPUs.

    Their memory reaches a guest by the variant driver alone, which the kernel has.
    """
    delivered = _gh200()

    def with_driver(root: Root) -> Root:
        ports = []
        for each in root.below:
            assert isinstance(each, Bridge)
            (part,) = each.below
            assert isinstance(part, Endpoint)
            if part.code == "030200":
                part = replace(part, driver="nvidia")
            ports.append(replace(each, below=(part,)))
        return replace(root, below=tuple(ports))

    return replace(
        delivered,
        name="gh200-host",
        roots=tuple(map(with_driver, delivered.roots)),
        vfio=("vfio-pci", "nvgrace_gpu_vfio_pci", "mlx5_vfio_pci"),
        release="6.8.0-1010-nvidia-64k",
        aliases=_ALIASES,
    )


def _vgpu() -> Machine:
    """Two L40S: the virtual functions of the first are vGPUs, without mediated devices.

    NVIDIA's driver has both its physical and its virtual functions, and speaks VFIO for the
    latter (nova/conf/pci.py, the example of ``managed: no``). The second is given whole.
    """

    def card(bus: int, **more: object) -> Endpoint:
        return gpu("10de:26b9", "10de:1851", bus, GEN4, **more)

    shared = card(
        0x17,
        driver="nvidia",
        vfs=Vfs("26b9", 4, 32, offset=4, driver="nvidia"),
        bars=(Bar(0, 16 * MIB, False, False), Bar(2, 64 * GIB), Bar(7, 16 * MIB)),
    )
    return Machine(
        "vgpu",
        numa_nodes(2, 1, 16, 256, {2048: 0, 1048576: 200}),
        (
            Root(0, 0x00, 0, chipset()),
            Root(0, 0x16, 0, (port("01.0", 0x17, shared, link=GEN4),)),
            Root(0, 0x64, 1, (port("01.0", 0x65, card(0x65), link=GEN4),)),
            Root(0, 0x80, 1, (port("01.0", 0x81, adapter(0, 0x81, link=GEN4), link=GEN4),)),
        ),
        Processor(XEON, sibling=32),
        vfio=("vfio-pci", "nvidia"),
        release="6.8.0-45-generic",
        aliases=_ALIASES,
    )


def _bare() -> Machine:
    """Nothing for guests: one NUMA node, no IOMMU, no huge pages, an onboard adapter."""
    onboard = Endpoint(
        "8086:15b8",
        "020000",
        at="1f.6",
        express=False,
        resets=(),
        driver="e1000e",
        net={"eno1": "a0:36:9f:65:43:21"},
        bars=(Bar(0, 131072, False, False),),
    )
    return Machine(
        "bare",
        (Numa(0, "0-3", 8, 0, (10,)),),
        (Root(0, 0, -1, (*chipset(), onboard)),),
        Processor(XEON | {"model": "158"}),
        iommu=False,
    )


#: Every synthetic node by its name.
NODES: Final[Mapping[str, Machine]] = {
    machine.name: machine
    for machine in (
        _hgx_h100(),
        _xeon_snc4(),
        _epyc_nps4(),
        _gh200(),
        _vmd(),
        _mi300x(),
        _two_socket(),
        _a100_bridges(),
        _bare(),
        _gh200_host(),
        _vgpu(),
    )
}
