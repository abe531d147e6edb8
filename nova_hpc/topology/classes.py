# SPDX-License-Identifier: Apache-2.0
"""The meaning of a PCI function's class: the one table of device classes.

Roles, peer-to-peer, the file for NCCL and RCCL, the guest document and the printed
tree all use this table. Class codes are lower-case hex digits, four (without the
programming interface, as lstopo has them) or six (as sysfs has them); codes and names
come from the PCI Code and ID Assignment Specification.
"""

from __future__ import annotations

from typing import Final

#: Display controllers, and processing accelerators (the class of MI300X and Gaudi).
_GPUS: Final = ("03", "12")
_DISPLAY: Final = "03"
_ADAPTERS: Final = ("02",)
#: Mass storage; RAM, flash and CXL memory. Other memory controllers may be FPGAs.
_STORAGE: Final = ("01", "0500", "0501", "0502")


def is_gpu(class_code: str | None) -> bool:
    """Whether a function of this class is a GPU or another accelerator."""
    return (class_code or "").startswith(_GPUS)


def is_display(class_code: str | None) -> bool:
    """Whether a function of this class is a display controller, as all GPUs of NVIDIA are."""
    return (class_code or "").startswith(_DISPLAY)


def is_adapter(class_code: str | None) -> bool:
    """Whether a function of this class is a network adapter."""
    return (class_code or "").startswith(_ADAPTERS)


def stays_with_host(class_code: str | None) -> bool:
    """Whether the host may use a function of this class itself (a network adapter or a disk).

    Other functions of a card are companions that follow the card to a guest.
    """
    return is_adapter(class_code) or is_storage(class_code)


def is_storage(class_code: str | None) -> bool:
    """Whether a function of this class stores data: an NVMe disk, or CXL memory."""
    return (class_code or "").startswith(_STORAGE)
