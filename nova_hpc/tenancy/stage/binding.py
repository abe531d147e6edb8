# SPDX-License-Identifier: Apache-2.0
"""Binds a device to another driver without blocking this process.

The kernel runs a driver's probe and remove functions during the write. A device that
does not answer can block them forever. So a separate process makes the write, and is left
behind when its time is up, as with a reset.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Final

from nova_hpc.tenancy import holders
from nova_hpc.tenancy.hygiene import reset
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.topology import device as topology_device
from nova_hpc.topology import handles
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import normalise_address
from nova_hpc.topology.vfio import GENERIC

#: A module's name; it becomes the text of a file and a part of a path.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", re.ASCII)
_PROBE: Final = "/sys/bus/pci/drivers_probe"
#: All files arrive as open handles: no path is looked up again. Only the link to the driver
#: changes during the write, and the process reads it.
_WRITER: Final = """\
import os, sys
device, override, unbind, probe, driver, address = sys.argv[1:]
def write(path, text):
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
def bound():
    try:
        return os.path.basename(os.readlink("driver", dir_fd=int(device)))
    except FileNotFoundError:
        return ""
what = "driver_override"
try:
    write(override, driver + "\\n")
    what = "unbind"
    if unbind:
        write(unbind, address)
    what = "drivers_probe"
    write(probe, address)
    if bound() != driver:
        os.write(1, ("it is bound to " + (bound() or "no driver")).encode())
        os._exit(1)
except OSError as error:
    os.write(1, (what + ": " + os.strerror(error.errno or 0).lower()).encode())
    os._exit(1)
os._exit(0)
"""

#: Devices that this process has bound to a driver of the host. They may be taken from this driver
#: again, whatever the host has started with them since, such as bringing up an interface.
_lent: Final[set[str]] = set()


class BindError(Exception):
    """A PCI device is not bound to the requested driver."""


def driver_for_guests(root: Path, address: str) -> str:
    """Return the VFIO driver for a device's return: a variant for its ids, else vfio-pci.

    Its present driver is kept if that supports VFIO.
    """
    return topology_device.read_pci_function(
        FileTree(root), normalise_address(address)
    ).function.guest_driver


def drivers_for_guests(tree: FileTree, address: str) -> frozenset[str]:
    """Return the VFIO drivers that may have the function at a normalised *address*."""
    function = topology_device.read_pci_function(tree, address).function
    drivers = {GENERIC, function.guest_driver, function.vfio_variant or GENERIC}
    # A module's name has no hyphens; the name of its driver may have them.
    return frozenset(drivers | {driver.replace("_", "-") for driver in drivers})


def bind_device(root: Path, address: str, driver: str, timeout: float) -> None:
    """Bind an unused device to a driver; do nothing if it is already bound to it.

    :param root: the folder that contains ``sys``.
    :param timeout: seconds.
    :raises BindError: it is not bound to the driver then, or its state is unknown.
    """
    if _NAME.fullmatch(driver) is None:
        raise BindError(f"{driver[:40]!r} is no name of a driver")
    address = normalise_address(address)
    tree = FileTree(root)
    base = f"{DEVICES}/{address}"
    try:
        with contextlib.ExitStack() as stack:
            before = driver_of(tree, address)
            if before == driver:
                return
            if address not in _lent or holders.find_vfio_door(tree, root, address) is not None:
                if (user := holders.find_kernel_holders(root, [address]).get(address)) is not None:
                    raise BindError(f"it cannot be bound to {driver}: {user.text}")
                _lent.add(address)
            device = stack.enter_context(handles.kernel_folder(root, base))
            places = (f"{base}/driver_override", f"{base}/driver/unbind", _PROBE)
            files = [stack.enter_context(handles.kernel_file(root, place)) for place in places]
            for place, file in zip(places, files, strict=True):
                if file is None and (before is not None or not place.endswith("/unbind")):
                    raise BindError(f"it cannot be bound to {driver}: there is no {place}")
            paths = ["" if file is None else handles.path_of_handle(file) for file in files]
            argv = [sys.executable, "-I", "-S", "-c", _WRITER, str(device), *paths]
            passed = [handle for handle in (device, *files) if handle is not None]
            status, output = reset.run_with_deadline([*argv, driver, address], timeout, passed)
    except (FileError, ResetError) as error:
        raise BindError(f"it cannot be bound to {driver}: {error}") from error
    if status:
        raise BindError(f"it cannot be bound to {driver}: {output[:200] or status}")


def driver_of(tree: FileTree, address: str) -> str | None:
    """Return the driver that a device is bound to; None if there is none.

    :raises FileError: the link cannot be read.
    """
    target = tree.target(f"{DEVICES}/{address}/driver")
    return None if target is None else target.rpartition("/")[2]
