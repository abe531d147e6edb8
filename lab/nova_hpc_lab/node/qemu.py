# SPDX-License-Identifier: Apache-2.0
"""Builds QEMU's command line from a shape. Pure.

Some of these settings were found by experiments:

* The firmware stops with "out of 32bit address space" if the processor has more than 36 address
  bits.
* Multi-threaded emulation sometimes loses a one-shot timer, and then all CPUs sleep forever. So the
  kernel uses a periodic tick.
* With ``pxb-pcie``, every endpoint of the root bus has to name its bus.
* Debian's kernel clears memory when it allocates it, which triples the time to boot with hugepages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab.node.shape import Adapter, Disk, Gpu, Port, Shape, Switch

#: The device ids of the stand-ins, for Nova's ``device_spec`` and aliases.
GPU_IDS: Final = ("1234", "1111")
WIDE_GPU_IDS: Final = ("1af4", "1110")
NVME_IDS: Final = ("1b36", "0010")
PF_IDS: Final = ("8086", "10c9")
VF_IDS: Final = ("8086", "10ca")

GUEST_ADDRESS: Final = "10.0.2.15"
HEARTBEAT_PORT: Final = "nova-hpc.heartbeat"
LOG_PORT: Final = "nova-hpc.log"
CONFIG_SERIAL: Final = "nova-hpc-config"

KERNEL_LINE: Final = (
    "console=ttyS0 quiet loglevel=4 tsc=reliable no_timer_check"
    " nohz=off highres=off nokaslr mitigations=off audit=0 apparmor=0 selinux=0 net.ifnames=0"
    " random.trust_cpu=on init_on_alloc=0 rcupdate.rcu_expedited=1"
    # A node whose kernel continues after an Oops may be stuck without a message.
    " transparent_hugepage=never oops=panic panic=1"
)

# Bus numbers of the expander bridges; the gap between two of them has room for the buses of a
# switch with many ports.
_FIRST_BUS: Final = 0x20
_BUS_STEP: Final = 0x20


@attrs.frozen
class Files:
    """The files and sockets of one run of a node."""

    emulator: Sequence[str]  #: the beginning of the command line
    kernel: Path
    initramfs: Path
    disk: Path  #: qcow2, written to
    config: Path  #: raw, read-only
    serial_log: Path
    heartbeat: Path
    compute_log: Path
    qmp: Path
    #: Words of the kernel's command line of a prepared host (``nova-hpc prepare``); None for
    #: the words that the shape needs.
    host_line: str | None = None


def command(
    name: str,
    number: int,
    shape: Shape,
    files: Files,
    ssh_port: int,
    tsc_khz: int | None = None,
) -> list[str]:
    """Build the command line of QEMU for one node.

    :param name: the node's name.
    :param number: the node's number, which is part of the adapters' MACs.
    :param ssh_port: port of the host's loopback that leads to the node's SSH.
    :param tsc_khz: frequency of the host's time-stamp counter; None if the kernel measures it.
    """
    tsc = f" tsc_early_khz={tsc_khz}" if tsc_khz else ""
    sockets = len({node.socket for node in shape.numa_nodes})
    return [
        *files.emulator,
        *("-name", name, "-nodefaults", "-no-user-config", "-display", "none", "-vga", "none"),
        *("-machine", "q35,usb=off", "-accel", "tcg,thread=multi,tb-size=512"),
        *("-cpu", "max,phys-bits=36", "-no-reboot"),
        *("-smp", f"{shape.cpus},sockets={sockets},cores={shape.cpus // sockets},threads=1"),
        *("-m", f"{shape.memory_mib}M"),
        *_numa(shape),
        # eim: interrupts by x2APIC, whose registers need no writes to memory.
        *("-device", "intel-iommu,intremap=on,eim=on,aw-bits=48"),
        *_services(files, number, ssh_port),
        *_trees(shape, number, files.disk.parent),
        *("-kernel", str(files.kernel), "-initrd", str(files.initramfs)),
        *("-append", f"{KERNEL_LINE}{tsc} {_host_line(shape, files)}"),
    ]


def _escaped(path: Path) -> str:
    # Commas separate QEMU's options, so a comma in a value is written twice.
    return str(path).replace(",", ",,")


def _numa(shape: Shape) -> Iterator[str]:
    first = 0
    for number, node in enumerate(shape.numa_nodes):
        yield from ("-object", f"memory-backend-ram,id=m{number},size={node.memory_mib}M")
        last = first + node.cpus - 1
        yield from ("-numa", f"node,nodeid={number},cpus={first}-{last},memdev=m{number}")
        first = last + 1
    for one, here in enumerate(shape.numa_nodes):
        for two, there in enumerate(shape.numa_nodes):
            if one != two:
                distance = 12 if here.socket == there.socket else 21
                yield from ("-numa", f"dist,src={one},dst={two},val={distance}")


def _services(files: Files, number: int, ssh_port: int) -> Iterator[str]:
    """Yield QEMU options for disks, management network, console, and channels to the supervisor."""
    yield from (
        "-drive",
        f"file={_escaped(files.disk)},format=qcow2,if=none,id=root,cache=unsafe,discard=unmap",
    )
    yield from ("-device", "virtio-blk-pci,drive=root,bus=pcie.0,addr=2")
    yield from (
        "-drive",
        f"file={_escaped(files.config)},format=raw,if=none,id=config,readonly=on",
    )
    yield from ("-device", f"virtio-blk-pci,drive=config,bus=pcie.0,addr=3,serial={CONFIG_SERIAL}")
    yield from (
        "-netdev",
        f"user,id=net,hostfwd=tcp:127.0.0.1:{ssh_port}-{GUEST_ADDRESS}:22",
    )
    yield from (
        "-device",
        f"virtio-net-pci,netdev=net,bus=pcie.0,addr=4,romfile=,mac=52:54:00:ff:ff:{number:02x}",
    )
    yield from ("-chardev", f"file,id=serial,path={_escaped(files.serial_log)},append=on")
    yield from ("-serial", "chardev:serial")
    yield from ("-device", "virtio-serial-pci,bus=pcie.0,addr=5")
    for port, path in ((HEARTBEAT_PORT, files.heartbeat), (LOG_PORT, files.compute_log)):
        tag = port.rpartition(".")[2]
        yield from ("-chardev", f"file,id={tag},path={_escaped(path)},append=on")
        yield from ("-device", f"virtserialport,chardev={tag},name={port}")
    yield from ("-qmp", f"unix:{_escaped(files.qmp)},server=on,wait=off")


def _trees(shape: Shape, number: int, folder: Path) -> Iterator[str]:
    """Yield QEMU's options for one expander bridge for each root complex, and all devices below."""
    tree = _Tree(number, folder)
    count = 0
    for numa, node in enumerate(shape.numa_nodes):
        for root in node.roots:
            bus = f"root{count}"
            where = f"bus_nr={_FIRST_BUS + count * _BUS_STEP:#x},numa_node={numa}"
            yield from ("-device", f"pxb-pcie,id={bus},bus=pcie.0,addr={8 + count:#x},{where}")
            for slot, port in enumerate(root.ports):
                yield from tree.root_port(bus, slot, port)
            count += 1


@attrs.define
class _Tree:
    """Numbers the ports, because each port needs its own chassis number."""

    number: int
    #: The node's folder, for files with the memory of devices.
    folder: Path
    _chassis: int = 0

    def root_port(self, bus: str, slot: int, port: Port) -> Iterator[str]:
        name = f"{bus}p{slot}"
        yield from (
            "-device",
            f"pcie-root-port,id={name},bus={bus},addr={slot:#x},chassis={self._next()},slot={slot}",
        )
        yield from self.below(name, port)

    def below(self, bus: str, port: Port) -> Iterator[str]:
        if isinstance(port, Gpu) and port.wide:
            # A sparse file: guests write only a few pages of it.
            path = _escaped(self.folder / f"{port.name}.memory")
            yield from (
                "-object",
                f"memory-backend-file,id=memory-{port.name},share=on,size={port.memory_mib}M,"
                f"mem-path={path}",
            )
            yield from (
                "-device",
                f"ivshmem-plain,id={port.name},bus={bus},memdev=memory-{port.name}",
            )
        elif isinstance(port, Gpu):
            yield from (
                "-device",
                f"bochs-display,id={port.name},bus={bus},vgamem={port.memory_mib}M",
            )
        elif isinstance(port, Disk):
            path = _escaped(self.folder / port.file_name)
            yield from ("-drive", f"file={path},format=raw,if=none,id=blocks-{port.name}")
            yield from (
                "-device",
                f"nvme,id={port.name},bus={bus},drive=blocks-{port.name},serial={port.name}",
            )
        elif isinstance(port, Adapter):
            yield from ("-netdev", f"hubport,hubid={port.number + 1},id=net-{port.name}")
            yield from (
                "-device",
                f"igb,id={port.name},bus={bus},netdev=net-{port.name},romfile=,"
                f"mac={port.pf_mac(self.number)}",
            )
        else:
            yield from self._switch(bus, port)

    def _switch(self, bus: str, switch: Switch) -> Iterator[str]:
        # QEMU's downstream port has no ACS. Its root port has ACS, and Linux accepts a root port
        # below an upstream port ("VIA has a strange chipset" in aspm.c).
        model = "pcie-root-port" if switch.acs else "xio3130-downstream"
        yield from ("-device", f"x3130-upstream,id={bus}u,bus={bus}")
        for slot, port in enumerate(switch.ports):
            name = f"{bus}d{slot}"
            yield from (
                "-device",
                f"{model},id={name},bus={bus}u,addr={slot:#x},chassis={self._next()},slot={slot}",
            )
            yield from self.below(name, port)

    def _next(self) -> int:
        self._chassis += 1
        return self._chassis


def _host_line(shape: Shape, files: Files) -> str:
    if files.host_line is not None:
        return files.host_line
    counts = [f"{number}:{node.hugepages}" for number, node in enumerate(shape.numa_nodes)]
    return f"intel_iommu=on iommu=pt hugepagesz=2M hugepages={','.join(counts)}"
