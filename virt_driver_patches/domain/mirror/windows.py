"""Address space for the devices' memory, where QEMU's own is too small."""

from __future__ import annotations

from typing import Final

from lxml import etree

from nova_hpc.guest_tree import windows
from nova_hpc.guest_tree.windows import Span
from virt_driver_patches.domain.mirror.clique import QEMU

_MIB: Final = 1 << 20
_UNITS: Final = {"b": 1, "KiB": 1 << 10, "k": 1 << 10, "MiB": 1 << 20, "M": 1 << 20}
_UNITS_LARGE: Final = {"GiB": 1 << 30, "G": 1 << 30, "TiB": 1 << 40, "T": 1 << 40}


def widen(domain: etree._Element, needed: Span) -> None:
    """Make room for *needed*; a domain whose own room will do stays as it is."""
    size = windows.window(needed)
    if size > windows.DEFAULT_WINDOW:
        _hole(domain, size)
        if _is_uefi(domain):
            _ovmf(domain, size)
    bits = windows.bits(_memory(domain), size)
    if size > windows.DEFAULT_WINDOW and bits > windows.DEFAULT_BITS:
        _address_bits(domain, bits)


def _hole(domain: etree._Element, size: int) -> None:
    devices = domain.find("devices")
    root = devices.find("controller[@type='pci'][@model='pcie-root']")
    if root is None:
        root = etree.Element("controller", type="pci", index="0", model="pcie-root")
        devices.insert(0, root)
    for child in root.findall("pcihole64"):
        root.remove(child)
    etree.SubElement(root, "pcihole64", unit="KiB").text = str(size >> 10)


def _is_uefi(domain: etree._Element) -> bool:
    system = domain.find("os")
    loader = system.find("loader")
    return system.get("firmware") == "efi" or (
        loader is not None and loader.get("type") == "pflash"
    )


def _ovmf(domain: etree._Element, size: int) -> None:
    """Tell OVMF, which looks neither at QEMU's window nor, before 2023, at the CPU."""
    line = domain.find(f"{{{QEMU}}}commandline")
    if line is None:
        line = etree.SubElement(domain, f"{{{QEMU}}}commandline")
    # Libvirt keeps opt/ovmf/ for itself in its own element for such files.
    for value in ("-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={size // _MIB}"):
        etree.SubElement(line, f"{{{QEMU}}}arg", value=value)


def _address_bits(domain: etree._Element, bits: int) -> None:
    """Let the guest's CPUs address it all, unless the flavor says how many bits they have."""
    cpu = domain.find("cpu")
    if cpu is None or cpu.find("maxphysaddr") is not None:
        return
    if domain.get("type") == "kvm":
        etree.SubElement(cpu, "maxphysaddr", mode="passthrough")
    else:
        most = min(bits, windows.MOST_BITS)
        etree.SubElement(cpu, "maxphysaddr", mode="emulate", bits=str(most))


def _memory(domain: etree._Element) -> int:
    """The most memory that the guest can have, in bytes."""
    sizes = [0]
    for tag in ("memory", "maxMemory"):
        element = domain.find(tag)
        if element is not None and element.text:
            unit = (_UNITS | _UNITS_LARGE).get(element.get("unit", "KiB"), 1 << 10)
            sizes.append(int(element.text) * unit)
    return max(sizes)
