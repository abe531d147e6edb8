# SPDX-License-Identifier: Apache-2.0
"""Open file handles for privileged writes, so that another user's link cannot redirect them.

The kernel looks a path up again at each use, and a user who may write to one of its folders
can change its target in between. So the path is walked step by step, each step from the
handle of the one before. Each part is held by a handle that reads and writes nothing
(``O_PATH``) and is checked. :func:`path_of_handle` then opens exactly that object.

Below ``/sys`` the kernel's own links are followed, and the path must end there. On a running
machine it must end in a file of sysfs itself, not in a file system mounted below it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from nova_hpc.topology.files import MOST_LINKS, FileError, FileTree, describe_file_error

#: Type of sysfs in statfs(2) (linux/magic.h).
SYSFS_MAGIC: Final = 0x62656572

_SYS: Final = "/sys/"
_STEP: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Longer than ``struct statfs``; its first field is the type.
_STATFS: Final = 256


def path_of_handle(handle: int) -> str:
    """Return the path ``/proc/self/fd/N``, to open the same object as the descriptor *handle*."""
    return f"/proc/self/fd/{handle}"


# -- the kernel's files -----------------------------------------------------------------


def kernel_file(root: Path, path: str) -> AbstractContextManager[int | None]:
    """Hold a descriptor of a file below ``/sys`` without opening it for reading.

    The context yields None if there is no such file.

    :param root: the directory that contains ``sys``; ``/`` is this machine.
    :param path: absolute, as on the machine itself.
    :raises FileError: it leads out of ``/sys``, or is not a file of the kernel.
    """
    return _hold_kernel_path(root, path, False)


def kernel_folder(root: Path, path: str) -> AbstractContextManager[int | None]:
    """Hold a descriptor of a directory below ``/sys``, like :func:`kernel_file`."""
    return _hold_kernel_path(root, path, True)


@contextlib.contextmanager
def _hold_kernel_path(root: Path, path: str, is_folder: bool) -> Iterator[int | None]:
    """Hold a file or directory below ``/sys``; see :func:`kernel_file`.

    The links are resolved first. The resolved path is then opened part by part without following
    links, so a link that appears in between makes the open fail.
    """
    resolved = FileTree(root).resolve(path)
    if resolved is None:
        yield None
        return
    if not resolved.startswith(_SYS):
        raise FileError(f"{path}: it leads to {resolved}, out of /sys")
    with contextlib.ExitStack() as stack:
        base = os.path.realpath(root)
        handle: int | None
        try:
            step = _open_on_stack(stack, base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in resolved.strip("/").split("/"):
                step = _open_on_stack(stack, part, _STEP, step)
            _expect_kernels(step, path, base == "/", is_folder)
            handle = step
        except (FileNotFoundError, NotADirectoryError):
            handle = None
        except (OSError, ValueError) as error:
            raise FileError(f"{path}: {describe_file_error(error)}") from error
        yield handle


@contextlib.contextmanager
def device_file(root: Path, folder: str, name: str) -> Iterator[int | None]:
    """Hold a descriptor of a file below the sysfs directory of a device; None if it is missing.

    :param folder: the directory of the device, as for :func:`kernel_folder`.
    :param name: the path below it. No part of it may be a link: ``physfn`` and ``driver`` lead
        to other devices.
    :raises FileError: a part leads elsewhere, or the last one is no file of the kernel.
    """
    path = f"{folder}/{name}"
    with kernel_folder(root, folder) as above, contextlib.ExitStack() as stack:
        handle = above
        try:
            for part in name.split("/") if above is not None else ():
                if part in ("", ".", ".."):
                    raise FileError(f"{path}: it leads out of the device's directory")
                handle = _open_on_stack(stack, part, _STEP, handle)
                if stat.S_ISLNK(os.fstat(handle).st_mode):
                    raise FileError(f"{path}: {part} is a link, which may lead to another device")
            if handle is not None:
                _expect_kernels(handle, path, os.path.realpath(root) == "/", False)
        except (FileNotFoundError, NotADirectoryError):
            handle = None
        except (OSError, ValueError) as error:
            raise FileError(f"{path}: {describe_file_error(error)}") from error
        yield handle


def _expect_kernels(handle: int, path: str, live: bool, is_folder: bool) -> None:
    """Refuse a handle that is not a file, or a directory, of sysfs.

    :param live: whether it is on the running machine; captures are on other file systems.
    :raises FileError: it is of another type.
    """
    mode = os.fstat(handle).st_mode
    if is_folder:
        if not stat.S_ISDIR(mode):
            raise FileError(f"{path}: not a directory")
    # Tests use a pipe in place of a file.
    elif not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise FileError(f"{path}: not a file")
    if live and _type_of(handle) != SYSFS_MAGIC:
        raise FileError(f"{path}: it is no file of the kernel's sysfs")


def _type_of(handle: int) -> int:
    """Return the number of the file system's type that *handle* is on, as statfs(2).

    :raises FileError: it cannot be read.
    """
    buffer = ctypes.create_string_buffer(_STATFS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(handle, buffer) != 0:
        number = ctypes.get_errno()
        raise FileError(f"its file system is not known: {os.strerror(number).lower()}")
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF


def read_held_file(handle: int, limit: int) -> bytes:
    """Read the first *limit* bytes of a file whose descriptor is held.

    :raises OSError: it cannot be read.
    """
    opened = os.open(path_of_handle(handle), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < limit and (piece := os.read(opened, limit - len(data))):
            data += piece
        return data
    finally:
        os.close(opened)


# -- programs of root -------------------------------------------------------------------


def expect_program_of_root(path: str) -> None:
    """Check that only root can change or replace the program at *path*.

    Each directory and link on the way, and the program itself, belongs to root. No other user
    may write there; in a directory with the sticky bit, as ``/tmp``, other users cannot replace
    a file of root.

    :param path: absolute.
    :raises FileError: another user may change it, or it is missing or no program.
    """
    try:
        with contextlib.ExitStack() as stack:
            held = _walk_as_root(stack, path)
            mode = os.fstat(held).st_mode
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {describe_file_error(error)}") from error
    if not stat.S_ISREG(mode) or not mode & 0o111:
        raise FileError(f"{path}: it is no program")


def _walk_as_root(stack: contextlib.ExitStack, path: str) -> int:
    """Open *path* part by part; return its descriptor. See :func:`expect_program_of_root`."""
    top = _open_on_stack(stack, "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    left = path.split("/")[::-1]
    held, links = top, 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        step = _open_on_stack(stack, part, _STEP, held)
        status = os.fstat(step)
        if status.st_uid != 0:
            raise FileError(f"{path}: {part} does not belong to root")
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise FileError(f"{path}: a loop of symbolic links")
            target = os.readlink("", dir_fd=step)
            held = top if target.startswith("/") else held
            left.extend(target.split("/")[::-1])
            continue
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
            raise FileError(f"{path}: others than root may write {part}")
        held = step
    return held


# -- folders of the service -------------------------------------------------------------


@contextlib.contextmanager
def hold_folder(path: Path, make: bool = False) -> Iterator[int]:
    """Yield an open descriptor of a directory of the service, whose last part must not be a link.

    A link above it is followed if the link and its directory belong to root or to this user,
    and if other users cannot write there. So an operator may put the directory elsewhere, and
    the service cannot redirect a process of root.

    :param make: create it if it is missing, with the owner of the directory above.
    :raises OSError: it is missing, is no directory, or a link leads to it that others can change.
    """
    with contextlib.ExitStack() as stack:
        above, name = _walk_to_parent(stack, os.path.abspath(path))  # noqa: PTH100
        made = False
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=above)
                made = True
        handle = _open_on_stack(stack, name, _FOLDER, above)
        if made:
            give_to_owner_above(handle, above)
        yield handle


def give_to_owner_above(handle: int, above: int) -> None:
    """Give an object that this process has just made as root to the owner of the directory above.

    A file that another user owns, or that has a second hard link, is not touched: another
    user may have put it there.

    :raises OSError: the owner cannot be changed.
    """
    owner, own_status = os.fstat(above), os.fstat(handle)
    single = stat.S_ISDIR(own_status.st_mode) or own_status.st_nlink == 1
    if os.geteuid() == 0 and owner.st_uid != 0 and own_status.st_uid == 0 and single:
        os.fchown(handle, owner.st_uid, owner.st_gid)


def _walk_to_parent(stack: contextlib.ExitStack, path: str) -> tuple[int, str]:
    """Open the directory that contains *path*; return its descriptor, and the name in it.

    Each part is opened without following links. A trusted link is then read through its handle, and
    its target is walked like the other parts. The last part is not opened here.

    :raises PermissionError: a link on the way is not trusted.
    """
    left = [name for name in path.split("/") if name][::-1]
    if not left:
        raise ValueError("the root directory is no directory of the service's")
    held = _open_on_stack(stack, "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    links = 0
    while len(left) > 1:
        part = left.pop()
        step = _open_on_stack(stack, part, _STEP, held)
        if not stat.S_ISLNK(os.fstat(step).st_mode):
            held = step  # the next step fails if it is not a directory
            continue
        links += 1
        if links > MOST_LINKS or not _is_trusted_link(held, step):
            reason = f"the link {part} in it belongs to a user who may not redirect this process"
            raise PermissionError(errno.EPERM, reason, path)
        target = os.readlink("", dir_fd=step)
        if target.startswith("/"):
            held = _open_on_stack(stack, "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        left.extend(name for name in target.split("/")[::-1] if name not in ("", "."))
    return held, left[0]


def _is_trusted_link(above: int, link: int) -> bool:
    """Whether only root and this user can have made the link, or could replace it."""
    trusted = {0, os.geteuid()}
    folder, link_status = os.fstat(above), os.fstat(link)
    return (
        folder.st_uid in trusted
        and link_status.st_uid in trusted
        and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _open_on_stack(
    stack: contextlib.ExitStack, name: str, flags: int, above: int | None = None
) -> int:
    handle = os.open(name, flags, dir_fd=above)
    stack.callback(os.close, handle)
    return handle
