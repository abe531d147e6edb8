"""The tenant's guest: a Debian kernel and an initramfs that reports what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.lab.node.contract import NodePaths

#: Kernel command line for Glance's ``os_command_line`` property.
COMMAND_LINE: Final = (
    "quiet loglevel=4 tsc=reliable no_timer_check nokaslr nohz=off highres=off nopvspin"
    " console=ttyS0"
)


@attrs.frozen
class GuestFunction:
    """One PCI function as the guest sees it."""

    address: str  #: "0000:00:05.0"
    ids: str  #: "8086:10ca"
    device_class: str  #: six hex digits, "020000"
    driver: str | None
    numa_node: int  #: -1 where the guest was told nothing
    bars: tuple[int, ...]  #: sizes in bytes, those that exist
    macs: tuple[str, ...]  #: of the network devices of this function


@attrs.frozen
class GuestReport:
    """The latest complete report in a guest's console."""

    functions: tuple[GuestFunction, ...]
    cpus: int  #: online
    memory_kib: int  #: MemTotal
    kernel: str
    extra: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def macs(self) -> frozenset[str]:
        """MAC addresses of all adapters, lower case."""
        return frozenset(mac for function in self.functions for mac in function.macs)


def guest_image(paths: NodePaths) -> tuple[Path, Path]:
    """The kernel and the initramfs that servers boot (Glance ``kernel_id``, ``ramdisk_id``).

    Both are made from the node's image, so :func:`prepare_image` comes first;
    cached and checked as it is.
    """
    raise NotImplementedError


def parse_report(console: str) -> GuestReport | None:
    """The last complete report in the text of a guest's console, or None.

    Broken or cut reports are passed over.
    """
    raise NotImplementedError
