# SPDX-License-Identifier: Apache-2.0
"""Finds the devices that a process or the host itself uses now, from the kernel's own answer.

``/proc`` does not show the open files of a process in another container. But the kernel
allows one open of a VFIO group at a time. A process that can open it is the only user of
its devices, and excludes all others while it holds the group
(:mod:`~nova_hpc.tenancy.hygiene.reset` does so during a reset). Kernels with only IOMMUFD have no
groups there: the device itself is bound, also once at a time. A missing answer never means that
the device is free.

A function with a driver of the host is judged by the users of that driver's interfaces and
disks. A function without any driver is free.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy import open_files
from nova_hpc.topology import block_devices, vfio
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import AddressError, normalise_address

#: ``VFIO_DEVICE_BIND_IOMMUFD`` and its argument (include/uapi/linux/vfio.h): size, flags,
#: the descriptor of /dev/iommu, and the device number that the kernel returns.
BIND: Final = ord(";") << 8 | 118
BIND_ARGUMENT: Final = "=IIiI"

_BLOCK: Final = "/sys/class/block"
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
_LOOK: Final = os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_UP: Final = 1  # IFF_UP
_INFINIBAND: Final = "32"  # ARPHRD_INFINIBAND
#: Prefixes of an interface's links to an interface above it: a bond, a bridge, a VLAN.
_ABOVE: Final = ("upper_", "master")
_ROUTES: Final = "/proc/net/route"
_ADDRESSES: Final = "/proc/net/if_inet6"
_GLOBAL: Final = "00"
#: Mounts of the host itself, also from within a container.
_MOUNTS: Final = "/proc/1/mountinfo"
_SWAPS: Final = "/proc/swaps"
#: Drivers that give a device to any process that opens their file, without limit.
_UIO: Final = ("uio_pci_generic", "igb_uio")
#: The driver of CXL memory; the kernel may have added this memory to the host's.
_CXL: Final = "cxl_pci"
#: Seconds to retry: other processes of this project open the same group briefly.
_PATIENCE: Final = 0.3
_PAUSE: Final = 0.01


@attrs.frozen
class KernelHolder:
    """The reason why a device does not count as free, and whether it is certain."""

    #: For operators: the observation, and the cure.
    text: str
    #: Whether a user is certain; False if the kernel gives no answer.
    certain: bool = True


@attrs.frozen
class VfioDoor:
    """The file that gives access to a function on a VFIO driver; opening it excludes others."""

    #: File of the group, or of the device if *iommu* is given; below the root.
    path: str
    #: ``/dev/iommu``, to which the device has to be bound; None if the path is a group's.
    iommu: str | None = None


def find_vfio_door(tree: FileTree, root: Path, address: str) -> VfioDoor | None:
    """Return the door to a function; None if it is not on a VFIO driver.

    :raises FileError: there should be a door, but it is missing or unreadable.
    """
    driver = _last_path_part(tree.target(f"{DEVICES}/{address}/driver"))
    names = tree.names(f"{DEVICES}/{address}/vfio-dev")
    if vfio.vfio_of_driver(tree, driver, names, None) is vfio.Vfio.NO:
        return None
    group = _last_path_part(tree.target(f"{DEVICES}/{address}/iommu_group"))
    if group is None or not group.isascii() or not group.isdigit():
        raise FileError(f"it is bound to {driver} and in no IOMMU group")
    base = os.path.realpath(root).rstrip("/")
    path = f"{base}/dev/vfio/{group}"
    if os.path.lexists(path):
        return VfioDoor(path)
    for name in names:
        own = f"{base}/dev/vfio/devices/{name}"
        if os.path.lexists(own):
            return VfioDoor(own, f"{base}/dev/iommu")
    raise FileError(
        f"it is bound to {driver} and there is no {path}; a container of nova-compute needs the "
        "host's /dev/vfio"
    )


def open_vfio_door(there: VfioDoor) -> list[int]:
    """Open a door and exclude all other processes.

    :returns: handles that the caller has to close.
    :raises OSError: ``EBUSY``, or for a device ``EINVAL``: another process has it open.
    """
    handles: list[int] = []
    try:
        if there.iommu is not None:
            handles.append(os.open(there.iommu, _FLAGS))
        handles.append(os.open(there.path, _FLAGS))
        if there.iommu is not None:
            argument = struct.pack(BIND_ARGUMENT, struct.calcsize(BIND_ARGUMENT), 0, handles[0], 0)
            fcntl.ioctl(handles[1], BIND, argument)
    except OSError:
        _close_handles(handles)
        raise
    return handles


def is_door_held(number: int | None, bound: bool) -> bool:
    """Whether an error of :func:`open_vfio_door` means that another process has it open.

    :param bound: whether the door is a device's.
    """
    return number == errno.EBUSY or (bound and number == errno.EINVAL)


def explain_closed_door(there: VfioDoor, number: int | None) -> KernelHolder:
    """Explain an error number of :func:`open_vfio_door`: the device's user, if known."""
    place = there.path[there.path.rindex("/dev/") :]
    if is_door_held(number, there.iommu is not None):
        return KernelHolder(
            f"a process of this host has {place} open; fuser -v {place} on the host names it, if "
            "no container hides it"
        )
    reason = os.strerror(number).lower() if number else "no reason given"
    return KernelHolder(
        f"{place} cannot be opened to see whether anybody has it ({reason})", certain=False
    )


def find_kernel_holders(root: Path, addresses: Iterable[str]) -> dict[str, KernelHolder]:
    """Find those of *addresses* that have a user, or may have one. Never raises.

    A missing device has no user.

    :param root: the folder that contains ``sys`` and ``dev``.
    """
    looker = _HolderFinder(root)
    holders_found = {}
    for address in addresses:
        try:
            holder = looker.holder(normalise_address(address))
        except (AddressError, FileError) as error:
            holder = KernelHolder(str(error), certain=False)
        if holder is not None:
            holders_found[address] = holder
    return holders_found


class _HolderFinder:
    """One check of several PCI devices for users: the host's processes, mounts and networks."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tree = FileTree(root)
        self._deadline = time.monotonic() + _PATIENCE
        #: By group: all functions of a group share one answer.
        self._known: dict[str, KernelHolder | None] = {}
        self._disks: dict[str, frozenset[str]] | None = None

    def holder(self, address: str) -> KernelHolder | None:
        """Return the holder of a device; None if it is free.

        :raises FileError: the kernel gives no answer.
        """
        if not self._tree.exists(f"{DEVICES}/{address}"):
            return None
        there = find_vfio_door(self._tree, self._root, address)
        if there is None:
            driver = _last_path_part(self._tree.target(f"{DEVICES}/{address}/driver"))
            return None if driver is None else self._user(address, driver)
        if there.path not in self._known:
            self._known[there.path] = self._behind(there, address)
        return self._known[there.path]

    def _behind(self, there: VfioDoor, address: str) -> KernelHolder | None:
        # Binding a device resets it, which takes a tenth of a second or more. So a device
        # that the kernel has not enabled is not bound. Opening a group has no such effect.
        if there.iommu is not None and self._text(f"{DEVICES}/{address}/enable") == "0":
            return None
        while True:
            try:
                _close_handles(open_vfio_door(there))
            except OSError as error:
                if is_door_held(error.errno, there.iommu is not None) and self._wait():
                    continue
                return explain_closed_door(there, error.errno)
            return None

    def _wait(self) -> bool:
        if time.monotonic() >= self._deadline:
            return False
        time.sleep(_PAUSE)
        return True

    # -- drivers of the host ------------------------------------------------------------

    def _user(self, address: str, driver: str) -> KernelHolder | None:
        """Return the host's use of a device on a driver of the host: network, memory or disk."""
        if driver in _UIO or self._tree.names(f"{DEVICES}/{address}/uio"):
            return KernelHolder(
                f"it is bound to {driver}, which does not say who uses it; bind it to vfio-pci",
                certain=False,
            )
        for name in self._tree.names(f"{DEVICES}/{address}/net"):
            used = self._network(f"{DEVICES}/{address}/net/{name}", name)
            if used is not None:
                how, certain = used
                return KernelHolder(
                    f"the host uses its network interface {name}, which is up and {how}; take it "
                    f"down (ip link set {name} down), or offer it with managed=no",
                    certain,
                )
        if driver == _CXL:
            return KernelHolder(f"it is bound to {driver}, so it may be memory of the host")
        names = [name for name, places in self._blocks().items() if address in places]
        for name in names:
            holder = self._disk(name)
            if holder is not None:
                return holder
        return self._opener({*block_devices.disk_files_of(self._tree, address, names)})

    def _blocks(self) -> dict[str, frozenset[str]]:
        if self._disks is None:
            self._disks = block_devices.read_block_devices(self._tree)
        return self._disks

    def _opener(self, paths: set[str]) -> KernelHolder | None:
        """Find a process that has a disk open without excluding others, as QEMU does.

        udev opens a new disk briefly, so an open file is checked again.
        """
        while paths and (opened := open_files.find_open_files(self._root, paths)[0]):
            if not self._wait():
                return KernelHolder(min(opened.items())[1][0])
        return None

    def _network(self, path: str, name: str) -> tuple[str, bool] | None:
        """Return the host's use of an interface, and whether it is certain; None if unused.

        An interface that is only up is unused, because network managers bring up every interface.
        """
        flags = self._number(f"{path}/flags")
        if not flags & _UP:
            return None
        certain = flags >= 0
        if self._text(f"{path}/type") == _INFINIBAND:
            # The host can use InfiniBand through it without an address, for example for storage.
            return "an InfiniBand interface", certain
        above = [entry for entry in self._tree.names(path) if entry.startswith(_ABOVE)]
        if above:
            return "part of another interface", certain
        routes = self._text(_ROUTES)
        if routes is None:
            return f"perhaps in use ({_ROUTES} cannot be read)", False
        if any(line.split()[:1] == [name] for line in routes.splitlines()):
            return "has a route", certain
        for line in (self._text(_ADDRESSES) or "").splitlines():
            # address, index, length of the prefix, scope, flags, interface
            fields = line.split()
            if len(fields) == 6 and fields[5] == name and fields[3] == _GLOBAL:
                return "has an address", certain
        return None

    def _disk(self, name: str) -> KernelHolder | None:
        """Return the host's use of a disk, from an attempt to open it exclusively.

        If the open fails for another reason, mounts, swap and holders show the use.
        """
        used = f"the host uses its disk {name}: it is mounted, or part of another"
        path = f"{os.path.realpath(self._root).rstrip('/')}/dev/{name}"
        try:
            # An exclusive open fails if the disk is mounted, in any name space, or part of
            # another disk.
            os.close(os.open(path, _LOOK))
        except OSError as error:
            if error.errno == errno.ENOMEDIUM:
                return None
            if error.errno == errno.EBUSY:
                return KernelHolder(used)
            if self._is_mounted(name):
                return KernelHolder(used)
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            text = f"/dev/{name} cannot be opened to see whether the host uses it ({reason})"
            return KernelHolder(text, certain=False)
        return None

    def _is_mounted(self, name: str) -> bool:
        """Whether the host's mounts, its swap or another disk use it; also works on a capture."""
        if self._tree.names(f"{_BLOCK}/{name}/holders"):
            return True
        number = self._text(f"{_BLOCK}/{name}/dev")
        for line in (self._text(_MOUNTS) or "").splitlines():
            # number, parent, major:minor, ... (proc(5))
            if number is not None and line.split()[2:3] == [number]:
                return True
        swaps = (self._text(_SWAPS) or "").splitlines()
        return any(line.split()[:1] == [f"/dev/{name}"] for line in swaps)

    def _text(self, path: str) -> str | None:
        with contextlib.suppress(FileError):
            return self._tree.text(path)
        return None

    def _number(self, path: str) -> int:
        """Return the number in a file; -1, which has all bits set, if there is none."""
        try:
            return int(self._text(path) or "", 0)
        except ValueError:
            return -1


def _last_path_part(path: str | None) -> str | None:
    return None if path is None else path.rpartition("/")[2]


def _close_handles(handles: Iterable[int]) -> None:
    for handle in handles:
        os.close(handle)
