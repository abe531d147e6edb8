# SPDX-License-Identifier: Apache-2.0
"""The kernel's messages about devices, and all other bytes."""

from __future__ import annotations

import os
import socket
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.watch import uevents
from nova_hpc.tenancy.watch.uevents import RemovedDevices, removed_address_of

PATH = b"/devices/pci0000:40/0000:40:01.0/0000:41:00.0"
REMOVED = b"\0".join(
    [b"remove@" + PATH, b"ACTION=remove", b"DEVPATH=" + PATH, b"SUBSYSTEM=pci", b"SEQNUM=7", b""]
)


def test_messages() -> None:
    assert removed_address_of(REMOVED) == "0000:41:00.0"
    assert removed_address_of(REMOVED.replace(b"remove", b"add")) is None
    assert removed_address_of(REMOVED.replace(b"=pci\0", b"=pci_bus\0")) is None
    assert removed_address_of(REMOVED.replace(b"0000:41:00.0", b"card0")) is None
    # A port of the device is not the device.
    assert removed_address_of(REMOVED.replace(b"\0ACTION", b"/net/eth0\0ACTION")) is None


@given(st.binary(max_size=200))
def test_other_bytes(message: bytes) -> None:
    removed_address_of(message)
    removed_address_of(b"remove@" + message + b"\0SUBSYSTEM=pci\0")


def test_news_are_read_without_waiting() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    here.setblocking(False)
    removed = RemovedDevices()
    assert removed.read() == frozenset()
    removed._socket = here
    assert removed.read() == frozenset()
    for message in (REMOVED, b"", REMOVED.replace(b"41:", b"42:"), os.urandom(9000)):
        there.send(message)
    assert removed.read() == {"0000:41:00.0", "0000:42:00.0"}
    removed.close()
    removed.close()
    assert removed.read() == frozenset()
    there.close()


def test_the_kernel_s_own_socket_and_a_host_without_it() -> None:
    removed = RemovedDevices()
    assert removed.open() == ""
    assert removed.read() == frozenset()
    removed.close()
    with mock.patch.object(uevents.socket, "socket", side_effect=PermissionError("denied")):
        assert removed.open() == "denied"
    assert removed.read() == frozenset()
