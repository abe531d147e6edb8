# SPDX-License-Identifier: Apache-2.0
"""Address space for the devices' memory in a guest's domain, if QEMU's default is too small.

A guest whose firmware finds no room for a GPU's memory does not see the GPU, or halts.
"""

from __future__ import annotations

from typing import Final

from lxml import etree

from nova_hpc.guest_tree import windows
from nova_hpc.guest_tree.windows import Span
from virt_driver_patches.domain.guest_domain import QEMU, GuestDomainXml

#: Machine type of x86 with PCI Express.
MACHINE: Final = "q35"

_MIB: Final = 1 << 20
_UNITS: Final = {
    **{"b": 1, "KiB": 1 << 10, "k": 1 << 10, "MiB": 1 << 20, "M": 1 << 20},
    **{"GiB": 1 << 30, "G": 1 << 30, "TiB": 1 << 40, "T": 1 << 40},
}


def is_x86(machine: str | None) -> bool:
    """Whether a machine type has the windows that this module changes.

    :param machine: ``pc-q35-9.2``, ``pc``, ``virt``, ...; None for QEMU's default, ``pc``.
    """
    words = (machine or "pc").split("-")
    return words[0] in ("pc", MACHINE) or MACHINE in words


def widen_address_space(domain: GuestDomainXml, needed: Span) -> None:
    """Make room for *needed*; a domain with enough room is not changed."""
    size = windows.window_size_of(needed)
    if size <= windows.DEFAULT_WINDOW:
        return
    root = domain.edit()
    _set_pci_hole(domain.devices, size, MACHINE in (domain.machine or ""))
    if _is_uefi(root):
        domain.declare_qemu()
        _tell_ovmf(domain.root, size)
    bits = windows.address_bits_of(most_memory_of(domain.root), size)
    if bits > windows.DEFAULT_BITS:
        _set_address_bits(domain.root, bits)


def _set_pci_hole(devices: etree._Element, size: int, express: bool) -> None:
    """Set the size of the 64-bit window at the guest's own root complex."""
    model = "pcie-root" if express else "pci-root"
    root = devices.find(f"controller[@type='pci'][@model='{model}']")
    if root is None:
        root = etree.Element("controller", type="pci", index="0", model=model)
        devices.insert(0, root)
    for child in root.findall("pcihole64"):
        root.remove(child)
    etree.SubElement(root, "pcihole64", unit="KiB").text = str(size >> 10)


def _is_uefi(root: etree._Element) -> bool:
    return (
        root.find("os[@firmware='efi']") is not None
        or root.find("os/loader[@type='pflash']") is not None
    )


def _tell_ovmf(root: etree._Element, size: int) -> None:
    """Set OVMF's option: OVMF ignores QEMU's window and, before 2023, the CPU's address width."""
    line = root.find(f"{{{QEMU}}}commandline")
    if line is None:
        line = etree.SubElement(root, f"{{{QEMU}}}commandline")
    # Libvirt's own element for such files rejects names below opt/ovmf/.
    for value in ("-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={size // _MIB}"):
        etree.SubElement(line, f"{{{QEMU}}}arg", value=value)


def _set_address_bits(root: etree._Element, bits: int) -> None:
    """Let the guest's CPUs address all of it, unless the flavor sets their address bits."""
    cpu = root.find("cpu")
    if cpu is None or cpu.find("maxphysaddr") is not None:
        return
    if root.get("type") == "kvm":
        etree.SubElement(cpu, "maxphysaddr", mode="passthrough")
    else:
        most = min(bits, windows.MOST_BITS)
        etree.SubElement(cpu, "maxphysaddr", mode="emulate", bits=str(most))


def most_memory_of(root: etree._Element) -> int:
    """Return the most memory that the guest can have, in bytes."""
    sizes = [0]
    for tag in ("memory", "maxMemory"):
        element = root.find(tag)
        if element is not None and element.text:
            unit = _UNITS.get(element.get("unit", "KiB"), 1 << 10)
            sizes.append(int(element.text) * unit)
    return max(sizes)
