# SPDX-License-Identifier: Apache-2.0
"""The meaning of a PCI function's class: the one table of device classes.

Roles, peer-to-peer, the file for NCCL and RCCL, the guest document and the printed
tree all ask here. Class codes are lower-case hex digits, four (without the
programming interface, as lstopo has them) or six (as sysfs has them); codes and names
are those of the PCI Code and ID Assignment Specification.
"""

from __future__ import annotations

from typing import Final

#: Display controllers; processing accelerators, as MI300X and Gaudi say they are.
_GPUS: Final = ("03", "12")
_DISPLAY: Final = "03"
_ADAPTERS: Final = ("02",)

#: What the chipset and the processor bring along and no guest ever gets.
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


def is_gpu(class_code: str | None) -> bool:
    """Whether a function of this class computes."""
    return (class_code or "").startswith(_GPUS)


def is_display(class_code: str | None) -> bool:
    """Whether a function of this class is a display controller, as all GPUs of NVIDIA are."""
    return (class_code or "").startswith(_DISPLAY)


def is_adapter(class_code: str | None) -> bool:
    """Whether a function of this class is a network's."""
    return (class_code or "").startswith(_ADAPTERS)


def is_chipset(class_code: str | None) -> bool:
    """Whether a function of this class, directly at a root, is furniture."""
    return (class_code or "").startswith(_CHIPSET)


def class_name_of(class_code: str | None) -> str:
    """The name of a class; ``class 1300`` for one without a name.

    :param class_code: None when it is unknown.
    """
    if class_code is None:
        return "unknown class"
    short = class_code[:4]
    return _SUBCLASSES.get(short) or _CLASSES.get(short[:2]) or f"class {short}"
