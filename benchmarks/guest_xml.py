# SPDX-License-Identifier: Apache-2.0
"""The time for the guest's PCIe tree, beside the time in which Nova writes the domain."""

from __future__ import annotations

from collections.abc import Iterator

from nova.virt.libvirt import config as vconfig

from benchmarks import measure
from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice, plan_guest_pci_tree, windows
from nova_hpc.topology.model import Bar
from nova_hpc_common.level import Location
from virt_driver_patches.domain import pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomainXml

PART = "guest tree"
_RULES = Abi(TopologyMode.MIRROR)
_CELLS = {0: 0, 1: 1}
_GPU = (
    Bar(1, 128 * windows.GIB, prefetchable=True, wide=True),
    Bar(3, 32 << 20, prefetchable=True, wide=True),
)


def devices() -> list[TreeDevice]:
    """Eight GPUs and eight VFs: two of each below each of four switches."""
    found = []
    for switch in range(4):
        place = Location(
            numa=switch // 2,
            root=f"pci0000:{0x10 * (switch + 1):02x}",
            switches=(f"0000:{0x10 * (switch + 1) + 1:02x}:00.0",),
        )
        for number in range(4):
            address = f"0000:{0x10 * (switch + 1) + 3 + number:02x}:00.0"
            span = windows.span_of_bars(_GPU if number < 2 else ())
            found.append(TreeDevice(address, place, span, clique=number < 2))
    return found


def stock(found: list[TreeDevice]) -> str:
    """The domain as Nova's classes write it: devices, cells and a few other elements."""
    guest = vconfig.LibvirtConfigGuest()
    guest.virt_type, guest.name, guest.memory, guest.vcpus = "kvm", "instance-1", 8 << 20, 4
    guest.uuid = "f4ad7d9e-5c0e-4c7c-9a4c-0d1a5f3f1a11"
    guest.os_type, guest.os_mach_type, guest.os_arch = "hvm", "q35", "x86_64"
    guest.cpu = vconfig.LibvirtConfigGuestCPU()
    guest.cpu.mode, guest.cpu.numa = "host-passthrough", vconfig.LibvirtConfigGuestCPUNUMA()
    for number in range(2):
        cell = vconfig.LibvirtConfigGuestCPUNUMACell()
        cell.id, cell.cpus, cell.memory = number, {2 * number, 2 * number + 1}, 4 << 20
        guest.cpu.numa.cells.append(cell)
    for device in found:
        host = vconfig.LibvirtConfigGuestHostdevPCI()
        text = device.address
        host.domain, host.bus, host.slot, host.function = text[:4], text[5:7], text[8:10], text[11]
        guest.add_device(host)
    return str(guest.to_xml())


def transform(xml: str, found: list[TreeDevice]) -> str:
    """The same domain with its PCIe tree."""
    domain = GuestDomainXml(xml)
    pcie_tree.arrange_pcie_tree(domain, plan_guest_pci_tree(found, _CELLS, _RULES), _RULES)
    return domain.text()


def run(rounds: int) -> Iterator[measure.Row]:
    """The rows of 8 GPUs and 8 VFs.

    :param rounds: number of measurements of each side, in turn.
    """
    found = devices()
    xml = stock(found)
    sides = {
        "tree": lambda: measure.timed(transform, xml, found),
        "nova": lambda: measure.timed(stock, found),
    }
    times = measure.interleave(sides, rounds)
    yield measure.row(
        PART,
        "plan and transform, 8 GPUs and 8 VFs",
        "ms",
        [1000 * each for each in times["tree"]],
        goal="50 ms beside device resets",
        below=50,
    )
    yield measure.row(
        PART,
        "as a multiple of Nova's own writing of such a domain",
        "times",
        measure.ratios(times["tree"], times["nova"]),
        note="only the writing: the rest of Nova's _get_guest_xml is not in it",
    )
