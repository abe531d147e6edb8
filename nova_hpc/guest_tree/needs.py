# SPDX-License-Identifier: Apache-2.0
"""libvirt versions that the guests' trees need, beyond Nova's own minimum. Pure.

The driver refuses a server if libvirt is older, and ``nova-hpc doctor`` reports it in advance.
QEMU needs nothing beyond Nova's minimum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nova_hpc.topology import classes
from nova_hpc.topology.model import PciFunction

#: Major, minor and release, in Nova's form.
Version = tuple[int, int, int]

#: ``<qemu:override>``, through which a device shows its clique.
OVERRIDE: Final[Version] = (8, 2, 0)
#: ``<maxphysaddr>`` of a guest's processor; Nova's MIN_LIBVIRT_MAXPHYSADDR
#: (nova/virt/libvirt/driver.py of 32 to 34).
MAXPHYSADDR: Final[Version] = (8, 7, 0)

#: QEMU accepts cliques for GPUs of this vendor only.
CLIQUE_VENDOR: Final = "10de"


def has_clique(function: PciFunction) -> bool:
    """Whether QEMU accepts a GPUDirect clique for this device: an NVIDIA display controller."""
    return classes.is_display(function.class_code) and function.vendor_id == CLIQUE_VENDOR


def format_dotted_version(version: Iterable[int]) -> str:
    """Return a version in its usual form, ``8.7.0``."""
    return ".".join(map(str, version))
