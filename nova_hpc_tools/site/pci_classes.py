# SPDX-License-Identifier: Apache-2.0
"""Names of device classes for people: the PCI Code and ID Assignment Specification."""

from __future__ import annotations

from typing import Final

#: Classes of functions of the chipset and the processor, which no guest ever gets.
_CHIPSET: Final = ("05", "06", "07", "08", "0a", "0c05", "11")
_SUBCLASSES: Final = {
    "0100": "SCSI",
    "0101": "IDE",
    "0104": "RAID",
    "0106": "SATA",
    "0107": "SAS",
    "0108": "NVMe",
    "0200": "Ethernet",
    "0207": "InfiniBand",
    "0208": "Fabric",
    "0300": "VGA",
    "0302": "3D controller",
    "0380": "Display",
    "0403": "Audio",
    "0500": "RAM",
    "0502": "CXL memory",
    "0600": "Host bridge",
    "0601": "ISA bridge",
    "0604": "PCI bridge",
    "0680": "Bridge device",
    "0700": "Serial port",
    "0800": "Interrupt controller",
    "0801": "DMA engine",
    "0806": "IOMMU",
    "0b40": "Co-processor",
    "0c03": "USB",
    "0c04": "Fibre Channel",
    "0c05": "SMBus",
    "0c06": "InfiniBand",
    "1200": "Accelerator",
}
_CLASSES: Final = {
    "00": "Unclassified",
    "01": "Storage",
    "02": "Network",
    "03": "Display",
    "04": "Multimedia",
    "05": "Memory",
    "06": "Bridge",
    "07": "Communication",
    "08": "System",
    "09": "Input",
    "0a": "Docking station",
    "0b": "Processor",
    "0c": "Serial bus",
    "0d": "Wireless",
    "0e": "Intelligent I/O",
    "0f": "Satellite",
    "10": "Encryption",
    "11": "Signal processing",
    "12": "Accelerator",
    "13": "Instrumentation",
    "40": "Co-processor",
    "ff": "Unassigned class",
}


def is_chipset(class_code: str | None) -> bool:
    """Whether a function of this class, directly at a root, belongs to the chipset."""
    return (class_code or "").startswith(_CHIPSET)


def class_name_of(class_code: str | None) -> str:
    """Return the name of a PCI class; ``class 1300`` for one without a name.

    :param class_code: the class in hexadecimal digits; None if unknown.
    """
    if class_code is None:
        return "unknown class"
    short = class_code[:4]
    return _SUBCLASSES.get(short) or _CLASSES.get(short[:2]) or f"class {short}"
