# SPDX-License-Identifier: Apache-2.0
"""The libvirt that the guests' trees need, beyond Nova's own minimum. Pure.

The driver refuses a server by these numbers, and ``nova-hpc doctor`` says beforehand that it
would. QEMU needs nothing beyond Nova's minimum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nova_hpc.topology import classes
from nova_hpc.topology.model import PciFunction

#: Major, minor and release, as Nova writes versions.
Version = tuple[int, int, int]

#: ``<qemu:override>``, through which a device shows its clique.
OVERRIDE: Final[Version] = (8, 2, 0)
#: ``<maxphysaddr>`` of a guest's processor; Nova's MIN_LIBVIRT_MAXPHYSADDR
#: (nova/virt/libvirt/driver.py of 32 to 34).
MAXPHYSADDR: Final[Version] = (8, 7, 0)

#: QEMU accepts cliques for GPUs of this vendor only.
CLIQUE_VENDOR: Final = "10de"


def has_clique(function: PciFunction) -> bool:
    """Whether QEMU lets a device like this one show a clique."""
    return classes.is_display(function.class_code) and function.vendor_id == CLIQUE_VENDOR


def format_dotted_version(version: Iterable[int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))
