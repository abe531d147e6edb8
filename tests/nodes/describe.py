# SPDX-License-Identifier: Apache-2.0
"""The words in which a synthetic node is described. Data only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20

#: ACS capability and control registers (PCIe 7.7.11). ISOLATING is what Linux
#: sets where an IOMMU is on: source validation, request and completion
#: redirect, upstream forwarding.
ISOLATING: Final = (0x5F, 0x1D)
#: The same, and translated requests may go straight to a neighbour.
DIRECT: Final = (0x5F, 0x5D)
#: The capability is there, and nothing is switched on (``pcie_acs_override``
#: the other way round: what operators do for peer-to-peer without an IOMMU).
OPEN: Final = (0x5F, 0x00)


@dataclass(frozen=True)
class Numa:
    """One NUMA node."""

    id: int
    #: In the kernel's notation; "" for a node that is memory only.
    cpus: str = ""
    memory_gib: int = 0
    socket: int | None = None
    #: Distances to all nodes, in the order of their ids (ACPI SLIT).
    distances: tuple[int, ...] = ()
    #: Size of a page in KiB -> pages of that size, all of them free.
    pages: Mapping[int, int] = field(default_factory=dict)
    #: Address of the GPU whose memory this node is.
    memory_of: str | None = None


@dataclass(frozen=True)
class Processor:
    """What ``/proc/cpuinfo`` says of each CPU."""

    lines: Mapping[str, str]
    #: CPU n and CPU n + this many are two threads of one core; None: one thread each.
    sibling: int | None = None


@dataclass(frozen=True)
class Bar:
    """One base address register: 0 to 5, 6 the ROM, 7 to 12 those of the VFs."""

    index: int
    size: int
    prefetch: bool = True
    wide: bool = True


@dataclass(frozen=True)
class Link:
    """A PCIe link in GT/s per lane and lanes; *now* where it is not at its best."""

    speed: float
    width: int
    now: tuple[float, int] | None = None


@dataclass(frozen=True)
class Rdma:
    """An RDMA device with one port."""

    name: str
    guid: str  # 946d:ae03:00aa:0001
    layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    state: str = "4: ACTIVE"
    prefix: str = "fe80:0000:0000:0000"


@dataclass(frozen=True)
class Vfs:
    """Virtual functions that are switched on."""

    product: str
    count: int
    total: int
    offset: int = 1  # of the first, and from one to the next, in routing ids
    stride: int = 1
    driver: str | None = "vfio-pci"
    ats: bool = True


@dataclass(frozen=True)
class Endpoint:
    """A PCI function that is no bridge."""

    ids: str  # vendor:product
    code: str  # class, six hex digits
    at: str = "00.0"  # device.function
    subsystem: str = "0000:0000"
    link: Link | None = None
    bars: Sequence[Bar] = ()
    driver: str | None = None
    #: Device serial number capability, 16 hex digits.
    serial: str | None = None
    vfs: Vfs | None = None
    ats: bool = False
    acs: tuple[int, int] | None = None
    resets: tuple[str, ...] = ("flr", "bus")
    net: Mapping[str, str] = field(default_factory=dict)  # name -> MAC
    rdma: Rdma | None = None
    #: Other kernel devices: class -> name.
    devices: Mapping[str, str] = field(default_factory=dict)
    express: bool = True
    #: A host bridge of its own behind it, as behind Intel's VMD.
    behind: Root | None = None


@dataclass(frozen=True)
class Bridge:
    """A root port, or a port of a switch."""

    kind: str  # root, upstream, downstream, pci
    ids: str
    bus: int  # right below it
    below: Sequence[Bridge | Endpoint] = ()
    at: str = "00.0"
    link: Link | None = None
    acs: tuple[int, int] | None = ISOLATING


@dataclass(frozen=True)
class Root:
    """A host bridge; *numa* -1 where the firmware names no node."""

    domain: int
    bus: int
    numa: int
    below: Sequence[Bridge | Endpoint] = ()


@dataclass(frozen=True)
class Machine:
    """A node."""

    name: str
    numa: Sequence[Numa]
    roots: Sequence[Root]
    processor: Processor
    #: An IOMMU is on, so there are IOMMU groups.
    iommu: bool = True
    #: Drivers that speak VFIO, where the kernel says so (Linux 6.1 and later); (): it does not.
    vfio: Sequence[str] = ()
    #: Its release, and the lines of its ``modules.alias`` that name VFIO drivers.
    release: str | None = None
    aliases: Sequence[str] = ()
    #: What the operator writes into nova.conf, as no reader can know it.
    nvlink_set: Sequence[str] = ()


def cpu_ids(text: str) -> list[int]:
    """The CPUs of ``0-3,8``."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def every(below: Sequence[Bridge | Endpoint]) -> Iterator[Bridge | Endpoint]:
    """All of them and what is below."""
    for part in below:
        yield part
        if isinstance(part, Bridge):
            yield from every(part.below)
