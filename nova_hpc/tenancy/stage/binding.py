# SPDX-License-Identifier: Apache-2.0
"""Give a device to another driver without being caught in it.

The kernel runs a driver's probe and remove while it handles the write, and a device that
does not answer can hold that for ever. So it is made by a process of its own that is left
behind when its time is up, as a reset is.
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

#: As modules are called; it becomes the text of a file and a part of a path.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", re.ASCII)
_PROBE: Final = "/sys/bus/pci/drivers_probe"
#: What it opens it gets as handles: no path is looked up again. Only the link to the driver
#: changes meanwhile, and that is read.
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

#: What this process has given to a driver: it may be taken from that again, whatever the
#: host has begun with it in the meantime, as bringing up its interface.
_lent: Final[set[str]] = set()


class BindError(Exception):
    """A device is not with the driver that it should be with."""


def driver_for_guests(root: Path, address: str) -> str:
    """The VFIO driver that a device goes back to: a variant for its ids, else vfio-pci.

    What it has now is kept where that speaks VFIO.
    """
    return topology_device.read_pci_function(
        FileTree(root), normalise_address(address)
    ).function.guest_driver


def drivers_for_guests(tree: FileTree, address: str) -> frozenset[str]:
    """The VFIO drivers that may have the function at a normalised *address*."""
    function = topology_device.read_pci_function(tree, address).function
    drivers = {GENERIC, function.guest_driver, function.vfio_variant or GENERIC}
    # A module's name has no hyphens; the name of its driver may have them.
    return frozenset(drivers | {driver.replace("_", "-") for driver in drivers})


def bind_device(root: Path, address: str, driver: str, timeout: float) -> None:
    """Give a device that nobody has to a driver; nothing is done where it is there already.

    :param root: where ``sys`` is.
    :param timeout: seconds.
    :raises BindError: it is not there then, or that is unknown.
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
    """The driver that a device is bound to; None: to none.

    :raises FileError: it cannot be told.
    """
    target = tree.target(f"{DEVICES}/{address}/driver")
    return None if target is None else target.rpartition("/")[2]
