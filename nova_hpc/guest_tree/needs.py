# SPDX-License-Identifier: Apache-2.0
"""Which libvirt the guests' trees need, beyond Nova's own minimum. Pure.

The driver refuses a server by these numbers, and ``nova-hpc doctor`` says beforehand that it
would. QEMU needs nothing beyond Nova's minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from nova_hpc.guest_tree import windows
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


@attrs.frozen
class LibvirtNeed:
    """Something that is configured or offered, and the libvirt that it needs."""

    #: A part of a sentence: who is refused.
    what: str
    least: Version
    #: What can be done without another libvirt; a sentence without its full stop.
    otherwise: str


def has_clique(function: PciFunction) -> bool:
    """Whether QEMU lets a device like this one show a clique."""
    return classes.is_display(function.class_code) and function.vendor_id == CLIQUE_VENDOR


def libvirt_needs_of(
    offered: Iterable[PciFunction], memory: int, clique: bool
) -> Iterator[LibvirtNeed]:
    """The most that servers of a node need.

    :param offered: the devices that servers can be given.
    :param memory: of the node, in bytes.
    :param clique: ``[hpc]gpudirect_clique``.
    """
    devices = tuple(offered)
    room = windows.window_size_of(
        windows.pack_spans(windows.span_of_bars(device.bars) for device in devices)
    )
    if (
        room > windows.DEFAULT_WINDOW
        and windows.address_bits_of(memory, room) > windows.DEFAULT_BITS
    ):
        yield LibvirtNeed(
            f"servers with all {len(devices)} devices, whose memory takes {room >> 30} GiB",
            MAXPHYSADDR,
            "offer flavors with fewer devices",
        )
    if clique and any(map(has_clique, devices)):
        yield LibvirtNeed(
            "servers whose GPUs show their GPUDirect cliques",
            OVERRIDE,
            "set [hpc]gpudirect_clique = false",
        )


def format_dotted_version(version: Iterable[int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))
