# SPDX-License-Identifier: Apache-2.0
"""The libvirt that the servers of a node need, to report it before a server is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from nova_hpc.guest_tree import windows
from nova_hpc.guest_tree.needs import MAXPHYSADDR, OVERRIDE, Version, has_clique
from nova_hpc.topology.model import PciFunction
from nova_hpc_tools.site.cures import DoctorCure, place_option, read_cure


@attrs.frozen
class LibvirtNeed:
    """A feature in use, and the libvirt version that it needs."""

    #: The servers that are refused; a part of a sentence.
    what: str
    least: Version
    #: The cure without another libvirt; a sentence without its full stop.
    otherwise: DoctorCure = attrs.field(converter=read_cure)


def libvirt_needs_of(
    offered: Iterable[PciFunction], memory: int, clique: bool
) -> Iterator[LibvirtNeed]:
    """Yield the libvirt versions that the largest possible servers of a node need.

    :param offered: the devices that servers can get.
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
            DoctorCure.of("set ", place_option("hpc", "gpudirect_clique", "false")),
        )
