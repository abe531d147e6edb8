# SPDX-License-Identifier: Apache-2.0
"""What synthetic nodes are made of: ports, switches, GPUs, adapters, NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.nodes.describe import (
    GIB,
    MIB,
    Bar,
    Bridge,
    Endpoint,
    Link,
    Numa,
    Rdma,
    Vfs,
)

GEN4, GEN5 = Link(16.0, 16), Link(32.0, 16)
DISK: Final = Link(16.0, 4)

XEON: Final = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "143"}
EPYC: Final = {"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "17"}
GRACE: Final = {"CPU implementer": "0x41", "CPU architecture": "8", "CPU part": "0xd4f"}


def port(
    at: str,
    bus: int,
    *below: Bridge | Endpoint,
    ids: str = "8086:352a",
    link: Link = GEN5,
    acs: tuple[int, int] | None = (0x5F, 0x1D),
) -> Bridge:
    """A root port."""
    return Bridge("root", ids, bus, below, at, link, acs)


def switch(
    bus: int,
    *below: Bridge | Endpoint,
    ids: str = "1000:c030",
    link: Link = GEN5,
    acs: tuple[int, int] | None = (0x5F, 0x1D),
) -> Bridge:
    """A switch; its ports are on *bus*, each with one device on a bus that follows."""
    ports = tuple(
        Bridge("downstream", ids, bus + 1 + index, (each,), f"{index:02x}.0", link, acs)
        for index, each in enumerate(below)
    )
    return Bridge("upstream", ids, bus, ports, "00.0", link, None)


def gpu(ids: str, subsystem: str, serial: int, link: Link = GEN5, **more: object) -> Endpoint:
    """A GPU of NVIDIA, bound for guests."""
    fields: dict[str, object] = {
        "bars": (Bar(0, 16 * MIB, False, False), Bar(2, 128 * GIB), Bar(4, 32 * MIB)),
        "driver": "vfio-pci",
        "ats": True,
        "serial": f"48b02dffff{serial:06x}",
    } | more
    return Endpoint(ids, "030200", subsystem=subsystem, link=link, **fields)  # type: ignore[arg-type]


def adapter(
    number: int,
    bus: int,
    *,
    ids: str = "15b3:1021",
    code: str = "020700",
    virtual: str = "101e",
    vfs: int = 8,
    link: Link = GEN5,
    rate: str = "400 Gb/sec (4X NDR)",
    domain: int = 0,
    at: str = "00.0",
    offset: int = 1,
) -> Endpoint:
    """An adapter of NVIDIA Networking, by its number and the bus that it is on.

    :param offset: of its first virtual function; 2 where it has two ports.
    """
    guid = f"946dae0300{number + 0xA1:02x}{bus:02x}0{at[-1]}"
    ethernet = code == "020000"
    # As systemd calls it: by its place.
    name = f"{'en' if ethernet else 'ib'}{f'P{domain}' if domain else ''}p{bus}s0"
    name += f"f{at[-1]}" if ethernet else ""
    mac = [guid[index : index + 2] for index in (0, 2, 4, 10, 12, 14)]
    address = [guid[index : index + 2] for index in range(0, 16, 2)]
    hardware = ":".join(
        mac if ethernet else ["00", "00", "10", "29", "fe", "80", *["00"] * 6, *address]
    )
    return Endpoint(
        ids,
        code,
        at=at,
        subsystem="15b3:0041",
        link=link,
        bars=(Bar(0, 32 * MIB), *((Bar(7, 16 * MIB),) if vfs else ())),
        driver="mlx5_core",
        serial=f"946dae0300{number + 0xA1:02x}{bus:02x}ff",
        vfs=Vfs(virtual, vfs, 16, offset) if vfs else None,
        ats=True,
        acs=(0, 0) if at[-1] != "0" else None,
        net={name: hardware},
        rdma=Rdma(
            f"mlx5_{number}",
            ":".join(guid[index : index + 4] for index in range(0, 16, 4)),
            layer="Ethernet" if ethernet else "InfiniBand",
            rate=rate,
        ),
    )


def nvme(number: int) -> Endpoint:
    """An NVMe disk of the host."""
    return Endpoint(
        "144d:a80a",
        "010802",
        link=DISK,
        bars=(Bar(0, 16384, False),),
        driver="nvme",
        serial=f"002538b1{number:08x}",
        devices={"nvme": f"nvme{number}"},
    )


def chipset() -> Sequence[Endpoint]:
    """What every server of Intel has on its first bus: functions of one slot, without ACS."""
    return (
        Endpoint("8086:1b81", "060100", at="1f.0", express=False, resets=()),
        Endpoint("8086:1bc9", "0c0500", at="1f.4", express=False, resets=(), driver="i801_smbus"),
    )


def distances(sockets: int, nodes: int, near: int, far: int) -> list[tuple[int, ...]]:
    """The SLIT of a machine with *nodes* NUMA nodes in each socket."""
    home = [node // nodes for node in range(sockets * nodes)]
    return [
        tuple(
            10 if one == other else near if home[one] == home[other] else far
            for other in range(len(home))
        )
        for one in range(len(home))
    ]


def numa_nodes(
    sockets: int,
    nodes: int,
    cores: int,
    memory_gib: int,
    pages: Mapping[int, int],
    near: int = 12,
    far: int = 21,
) -> tuple[Numa, ...]:
    """*nodes* a socket with *cores* cores of two threads each."""
    total = sockets * nodes * cores
    table = distances(sockets, nodes, near, far)
    return tuple(
        Numa(
            number,
            cpus=f"{number * cores}-{number * cores + cores - 1},"
            f"{total + number * cores}-{total + number * cores + cores - 1}",
            memory_gib=memory_gib,
            socket=number // nodes,
            distances=table[number],
            pages=pages,
        )
        for number in range(sockets * nodes)
    )
