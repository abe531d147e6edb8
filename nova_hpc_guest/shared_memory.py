# SPDX-License-Identifier: Apache-2.0
"""The files of ``install --shared-memory``, so that programs can use the segment.

The device for a group of users, a lock and a directory of this machine, and the variables of
MPI. Everything is below ``/run`` and ``/dev``, and so never older than the boot. The variables
come last: if a part is missing they are not written, and jobs use the network.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from typing import Final

from .document import STATE, GuestDocument, SharedMemory
from .files import GuestFileError, Root, describe_error
from .rdma_devices import list_rdma_devices
from .segment import PART, SegmentView, SharedDevice
from .shared_settings import (
    NetworkDevices,
    build_shared_settings,
    describe_small_part,
    format_environment,
    format_shell_environment,
    format_version,
)

DEVICE: Final = "/dev/nova-hpc-shared"
FOLDER: Final = f"{STATE}/shared"
LOCK: Final = f"{STATE}/shared.lock"
#: The variables of MPI, as systemd and Docker read them; and the same for shells.
SHARED_ENVIRONMENT: Final = f"{STATE}/shared-memory.env"
SHARED_SHELL: Final = f"{STATE}/shared-memory.sh"
RULE: Final = "/run/udev/rules.d/60-nova-hpc-shared-memory.rules"
#: Users of this group can use the memory.
GROUP: Final = "hpc"
LIBRARY: Final = "libnova-hpc-shm.so"

_LIBRARY_FOLDERS: Final = (
    *("/usr/local/lib", f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib"),
)
_NETWORK: Final = "/sys/class/net"
_RDMA: Final = "/sys/class/infiniband"
_COPIERS: Final = ("xpmem", "knem")
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)
_MOUNT_FLAGS: Final = 2 | 4 | 8  # nosuid, nodev, noexec
#: From release 1.14 on UCX uses no directory with less than 16 MB left (UCX_POSIX_SHM_MIN_SIZE).
#: The space is only used when a user without access to the device writes there.
_LEAST_FOLDER: Final = 17 << 20
#: Seconds for the version of a library.
_PATIENCE: Final = 20
_ASK_UCX: Final = (
    "import ctypes, sys\nnumbers = [ctypes.c_uint() for _ in range(3)]\n"
    "ctypes.CDLL(sys.argv[1]).ucp_get_version(*map(ctypes.byref, numbers))\n"
    "print(*(number.value for number in numbers))\n"
)


class SharedMemoryError(Exception):
    """The memory cannot be used; the text gives the reason and the cure."""


def install_shared_memory(
    root: Root, promise: GuestDocument, view: SegmentView | None
) -> list[str]:
    """Make the memory usable; returns lines on the changes, or the reason if it is not usable.

    :raises GuestFileError: something cannot be written.
    """
    if promise.shared_memory is None:
        forget_shared_memory(root)
        return []
    try:
        device = _require_device(view)
        library = find_library(root)
        if library is None:
            raise SharedMemoryError(f"{LIBRARY} is not there: install the package nova-hpc-shm")
    except SharedMemoryError as error:
        forget_shared_memory(root)
        return [f"no shared memory for programs: {error}"]
    return _install_for_programs(root, promise.shared_memory, device, library)


def _install_for_programs(
    root: Root, promise: SharedMemory, device: SharedDevice, library: str
) -> list[str]:
    """Write the files that programs need for the shared memory; return lines on the changes.

    The file with the variables is the last one. Without the group only root can use the memory, and
    the report names the cure.
    """
    group = find_group(root, GROUP)
    report = []
    if group is None:
        report.append(
            f"there is no group {GROUP}: root alone can use the memory (groupadd --system {GROUP})"
        )
    mode = 0o600 if group is None else 0o660
    root.give_to_group(device.path, group or 0, mode)
    if root.point(DEVICE, device.name):
        report.append(f"{DEVICE} is {device.name}")
    if root.exists("/run/udev") and root.write(RULE, _format_rule(device, group, mode).encode()):
        report.append(f"wrote {RULE}")
    root.make_file(LOCK)
    root.give_to_group(LOCK, group or 0, mode)
    if root.write(PART, f"{promise.part}\n".encode()):
        report.append(f"wrote {PART}")
    if mount_folder(root, promise.part_bytes):
        report.append(f"mounted {FOLDER}")
    ucx = find_ucx_version(root)
    settings = build_shared_settings(library, FOLDER, ucx, list_network_devices(root))
    hint = describe_small_part(promise.part_bytes, os.cpu_count() or 1)
    if root.write(SHARED_SHELL, format_shell_environment(settings).encode()):
        report.append(f"wrote {SHARED_SHELL}")
    if root.write(SHARED_ENVIRONMENT, format_environment(settings, ucx, hint).encode()):
        shown = "UCX not found" if ucx is None else f"UCX {format_version(ucx)}"
        report.append(f"wrote {SHARED_ENVIRONMENT} ({shown})")
    return report


def forget_shared_memory(root: Root) -> None:
    """Have the jobs that start from now on use the network."""
    for path in (SHARED_ENVIRONMENT, SHARED_SHELL, PART, RULE):
        root.remove(path)


def find_library(root: Root) -> str | None:
    """Return the path of the preload library; None if it is not installed."""
    paths = [f"{folder}/nova-hpc/{LIBRARY}" for folder in _LIBRARY_FOLDERS]
    return next((path for path in paths if root.exists(path)), None)


def find_group(root: Root, name: str) -> int | None:
    """Return the number of a group of this machine; None if no group has that name."""
    if not root.folder:
        import grp

        try:
            return grp.getgrnam(name).gr_gid
        except KeyError:
            return None
    match = re.search(rf"^{name}:[^:\n]*:(\d{{1,9}}):", root.text("/etc/group") or "", re.MULTILINE)
    return int(match[1]) if match else None


def find_ucx_version(root: Root) -> tuple[int, int] | None:
    """Return major and minor version of the machine's own UCX; None without one, or if unknown.

    A process of its own loads the library, since a library may end the process that loads it.
    """
    name = "libucp.so.0"
    if root.folder:
        paths = [f"{folder}/{name}" for folder in _LIBRARY_FOLDERS]
        path = next((path for path in paths if root.exists(path)), "")
        if not path:
            return None
        name = root.place(path)
    try:
        done = subprocess.run(
            [sys.executable or "/usr/bin/python3", "-I", "-S", "-c", _ASK_UCX, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    match = re.fullmatch(rb"(\d{1,4}) (\d{1,4}) \d{1,4}\n", done.stdout)
    return (int(match[1]), int(match[2])) if match and done.returncode == 0 else None


def list_network_devices(root: Root) -> NetworkDevices:
    """List the devices for UCX beside the memory: hardware and bonds, not their parts."""
    interfaces = []
    for name in root.names(_NETWORK):
        folder = f"{_NETWORK}/{name}"
        real = root.exists(f"{folder}/device") or root.exists(f"{folder}/bonding")
        if _WORD.fullmatch(name) and real and not root.exists(f"{folder}/master"):
            interfaces.append(name)
    ports = [
        f"{name}:{port}"
        for name in list_rdma_devices(root)
        if _WORD.fullmatch(name)
        for port in root.names(f"{_RDMA}/{name}/ports")
        if port.isdigit()
    ]
    copiers = tuple(name for name in _COPIERS if root.exists(f"/dev/{name}"))
    return NetworkDevices(tuple(interfaces), tuple(ports), copiers)


def mount_folder(root: Root, size: int) -> bool:
    """Mount the directory of UCX's files, for all users, unless it is mounted.

        The files are in the shared memory. For users without access to it, UCX makes them here.

    :returns: whether it was mounted just now.
    :raises GuestFileError: it cannot be.
    """
    root.make_folder(FOLDER)
    place = root.place(FOLDER)
    if os.path.ismount(place):
        return False
    import ctypes  # only here: units may forbid system calls that some releases need

    libc = ctypes.CDLL(None, use_errno=True)
    data = f"size={max(size, _LEAST_FOLDER)},mode=1777".encode()
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", _MOUNT_FLAGS, data):
        error = OSError(ctypes.get_errno(), "")
        raise GuestFileError(f"{FOLDER}: a tmpfs cannot be mounted: {describe_error(error)}")
    return True


def _require_device(view: SegmentView | None) -> SharedDevice:
    if view is None or view.device is None:
        raise SharedMemoryError("this kernel has made no device of it (nova-hpc-guest check)")
    if view.head is None:
        raise SharedMemoryError(f"{view.device.path}: {view.problem}")
    return view.device


def _format_rule(device: SharedDevice, group: int | None, mode: int) -> str:
    """Format the udev rule that gives the device to a group at udev's next look at it."""
    owner = "" if group is None else f'GROUP="{GROUP}", '
    return (
        "# Written by nova-hpc-guest install --shared-memory.\n"
        f'SUBSYSTEM=="dax", KERNEL=="{device.name}", ATTR{{size}}=="{device.size}", '
        f'{owner}MODE="{mode:04o}", SYMLINK+="{DEVICE.rpartition("/")[2]}"\n'
    )
