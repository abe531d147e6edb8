"""Where the supported Nova releases differ, and which they are."""

from __future__ import annotations

from collections.abc import Callable

import nova.version
from nova.virt.libvirt.driver import LibvirtDriver

#: Major versions of Nova that this release was tested with.
SUPPORTED = (32, 33, 34)


def nova_release() -> int | None:
    """Major version of the Nova that runs; None: it cannot be told."""
    major = nova.version.version_string().split(".")[0]
    return int(major) if major.isdigit() else None


def fresh_pci_devices() -> Callable[[LibvirtDriver], str]:
    """Nova's reading of the PCI devices, without the cache that 34 has.

    A device that changes while the service runs would never be noticed.
    """
    method = LibvirtDriver._get_pci_passthrough_devices
    return getattr(method, "__wrapped__", method)
