# SPDX-License-Identifier: Apache-2.0
"""Give a device to another driver without being caught in it.

The kernel runs a driver's probe and remove while it handles the write, and a device that
does not answer can hold that for ever. So it is made by a process of its own that is left
behind when its time is up, as a reset is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from nova_hpc.tenancy.hygiene import reset
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.model import normalise_address

#: The driver by which this project gives devices to guests.
VFIO: Final = "vfio-pci"
#: Nothing is done where the device has the driver already.
_WRITER: Final = """\
import os, sys
root, device, driver, address = sys.argv[1:]
def write(path, text):
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
def bound():
    try:
        return os.path.basename(os.readlink(device + "/driver"))
    except FileNotFoundError:
        return ""
try:
    if bound() != driver:
        write(device + "/driver_override", driver + "\\n")
        if bound():
            write(device + "/driver/unbind", address)
        write(root + "/sys/bus/pci/drivers_probe", address)
    if bound() != driver:
        os.write(1, ("it is bound to " + (bound() or "no driver")).encode())
        os._exit(1)
except OSError as error:
    os.write(1, (os.strerror(error.errno or 0) + ": " + str(error.filename or "")).encode())
    os._exit(1)
os._exit(0)
"""


class BindError(Exception):
    """A device is not with the driver that it should be with."""


def bind(root: Path, address: str, driver: str, timeout: float) -> None:
    """Give a device to a driver.

    :param root: where ``sys`` is.
    :param timeout: seconds.
    :raises BindError: it is not there then, or nobody knows.
    """
    base = os.path.realpath(root).rstrip("/")
    address = normalise_address(address)
    device = f"{base}{DEVICES}/{address}"
    try:
        status, output = reset.run(
            [sys.executable, "-I", "-S", "-c", _WRITER, base, device, driver, address], timeout
        )
    except ResetError as error:
        raise BindError(f"it cannot be bound to {driver}: {error}") from error
    if status:
        raise BindError(f"it cannot be bound to {driver}: {output[:200] or status}")
