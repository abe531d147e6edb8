# SPDX-License-Identifier: Apache-2.0
"""The kernel's news that a PCI device has left the host, so that a look need not wait.

The kernel sends each change of a device to the group 1 of its netlink family for such events
(``lib/kobject_uevent.c``): ``remove@/devices/pci0000:40/0000:40:00.0`` and its variables, with
zeros in between. pyudev is no help here: it waits with ``select.poll``, which eventlet takes out
of Nova's process, and its only receiver that does not wait is private. News only brings a look
forward. So a message that was lost, or that another process has made up, does no harm.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from nova_hpc.topology.model import try_normalise_address

_FAMILY: Final = 15  # NETLINK_KOBJECT_UEVENT
_KERNEL: Final = 1
_LONGEST: Final = 8192
#: Messages that are read at once; a busy host's others wait for the next call.
_MOST: Final = 256


class RemovedDevices:
    """The news since the last call; without access to the kernel's news it has none."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self) -> str:
        """Begin to listen; return why that is impossible, or ""."""
        self.close()
        try:
            listener = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _FAMILY)
        except (AttributeError, OSError) as error:
            return str(error)
        try:
            listener.setblocking(False)
            listener.bind((0, _KERNEL))
        except OSError as error:
            listener.close()
            return str(error)
        self._socket = listener
        return ""

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def read(self) -> frozenset[str]:
        """Return the addresses of devices that have left the host. Never waits, never raises."""
        addresses: set[str] = set()
        listener = self._socket
        if listener is None:
            return frozenset()
        with contextlib.suppress(OSError):  # nothing to read, or more than the buffer could hold
            for _ in range(_MOST):
                address = removed_address_of(listener.recv(_LONGEST))
                if address is not None:
                    addresses.add(address)
        return frozenset(addresses)


def removed_address_of(datagram: bytes) -> str | None:
    """Return the PCI address that a message reports as removed; None for any other message."""
    head, *variables = datagram.split(b"\0")
    action, _, path = head.partition(b"@")
    if action != b"remove" or b"SUBSYSTEM=pci" not in variables:
        return None
    return try_normalise_address(path.rpartition(b"/")[2].decode("ascii", "replace"))
