# SPDX-License-Identifier: Apache-2.0
"""Files of segments: created, listed, marked with names, removed.

A file is always new, so its content is the kernel's zeros. It is bound to one NUMA
node and fully allocated before a guest has it. Names are never followed out of the
directory, and the content of a file is never read, because guests write to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.placement.segment_shape import MIB
from nova_hpc.tenancy.segments import label, segment_record
from nova_hpc.tenancy.segments.segment_record import SegmentFileName

#: Others may traverse the directory (QEMU runs as another user), but not list it.
_FOLDER_MODE: Final = 0o711
_FILE_MODE: Final = 0o600
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
#: Step of the allocation; other threads of the service run between two steps.
_STEP: Final = 64 * MIB
#: ``mbind`` in the kernel's tables of system calls.
_MBIND: Final = {"x86_64": 237, "aarch64": 235}
_MPOL_BIND: Final = 2
_MOST_NODES: Final = 1024
_WORD: Final = 8 * ctypes.sizeof(ctypes.c_ulong)

#: Binds memory to a NUMA node: an open file, its size in bytes, the node.
Bind = Callable[[int, int, int], None]


class SegmentError(Exception):
    """A file cannot be created or found; the text is for operators, with the cure."""


@attrs.frozen
class FolderListing:
    """The files of segments in the directory: usable ones, damaged ones, and problems as text."""

    #: Usable files of segments.
    usable: frozenset[SegmentFileName] = frozenset()
    #: Files of segments that were changed after their creation; no other server gets them.
    damaged: frozenset[SegmentFileName] = frozenset()
    #: One sentence for each problem, for operators.
    problems: tuple[str, ...] = ()


@attrs.frozen
class SegmentFolder:
    """The directory ``[hpc]shared_memory_dir``, with the files of the host's segments."""

    path: Path
    #: The folder that contains ``proc`` and ``sys``.
    root: Path = Path("/")
    bind: Bind = attrs.Factory(lambda: bind_to_node)
    #: Required owner of the directory; None for this process's user.
    owner: int | None = None

    def list_files(self) -> FolderListing:
        """List the directory; empty if it does not exist.

        :raises SegmentError: it cannot be trusted, or read.
        """
        with self._open_folder(make=False) as folder:
            if folder is None:
                return FolderListing()
            try:
                names = sorted(os.listdir(folder))  # noqa: PTH208  an open folder
            except OSError as error:
                raise self._error(error) from error
            usable: set[SegmentFileName] = set()
            damaged: set[SegmentFileName] = set()
            problems: list[str] = []
            for text in names:
                name = segment_record.parse_file_name(text)
                problem = self._problem_of(folder, text, name)
                if problem is not None:
                    problems.append(problem)
                if name is not None:
                    (usable if problem is None else damaged).add(name)
        return FolderListing(frozenset(usable), frozenset(damaged), tuple(problems))

    def _problem_of(self, folder: int, text: str, name: SegmentFileName | None) -> str | None:
        """Return why an entry of the directory is unusable, with the cure; None if it is usable."""
        shown = f"{self.path}/{text if text.isprintable() else repr(text)}"
        if name is None:
            return f"{shown} is no file of nova-hpc's: move it elsewhere"
        try:
            state = os.stat(text, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            return f"{shown}: {error.strerror}"
        if not stat.S_ISREG(state.st_mode):
            return f"{shown} is no ordinary file: remove it"
        if state.st_size != name.shape.file_bytes or state.st_nlink != 1:
            return f"{shown} was changed since it was made; it is given to no other server"
        if state.st_mode & _OTHERS:
            return f"{shown} is open to others than its owner; it is given to no other server"
        return None

    def make_file(self, name: SegmentFileName) -> None:
        """Create a file, bound to its NUMA node and fully allocated.

        :raises SegmentError: it cannot be created; nothing is left of it.
        """
        with self._open_folder(make=True) as folder:
            assert folder is not None
            self._check_room(folder, name)
            try:
                file = os.open(
                    str(name),
                    os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                    _FILE_MODE,
                    dir_fd=folder,
                )
            except OSError as error:
                raise self._error(error, name) from error
            try:
                self._fill(file, name)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.unlink(str(name), dir_fd=folder)
                if isinstance(error, OSError):
                    raise self._error(error, name) from error
                raise
            finally:
                os.close(file)

    def _fill(self, file: int, name: SegmentFileName) -> None:
        size = name.shape.file_bytes
        os.fchmod(file, _FILE_MODE)  # whatever the service's umask is
        os.ftruncate(file, size)
        self.bind(file, size, name.node)
        for start in range(0, size, _STEP):
            os.posix_fallocate(file, start, min(_STEP, size - start))
            time.sleep(0)
        _write_all(file, label.write_label(name.shape, uuid.uuid4()), label.LABEL_AT)
        _write_all(file, label.write_head(name.shape, uuid.uuid4()), label.DEVICE_AT)

    def _check_room(self, folder: int, name: SegmentFileName) -> None:
        """Check that there is room. Otherwise the kernel would take memory from other programs."""
        size = name.shape.file_bytes
        state = os.fstatvfs(folder)
        free = state.f_bavail * state.f_frsize
        if state.f_blocks and free < size:
            raise SegmentError(
                f"{self.path} has {free // MIB} MiB left, and {name} takes {size // MIB}: mount "
                "its tmpfs larger (mount -o remount,size=), or lower [hpc]shared_memory_mb"
            )
        available = read_available_memory(self.root, name.node)
        if available is not None and available < size:
            raise SegmentError(
                f"NUMA node {name.node} has {available // MIB} MiB left, and {name} takes "
                f"{size // MIB}: raise [DEFAULT]reserved_host_memory_mb, or lower "
                "[hpc]shared_memory_mb"
            )

    def write_members(self, name: SegmentFileName, servers: Mapping[int, str]) -> None:
        """Write the server of each part; the other parts are unused.

        :raises SegmentError: it cannot be written.
        """
        with self._open_folder(make=False) as folder:
            if folder is None:
                return
            try:
                file = os.open(
                    str(name),
                    os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
                    dir_fd=folder,
                )
            except OSError as error:
                raise self._error(error, name) from error
            try:
                state = os.fstat(file)
                is_whole = state.st_size == name.shape.file_bytes and state.st_nlink == 1
                if stat.S_ISREG(state.st_mode) and is_whole:
                    for part in range(name.shape.parts):
                        member = label.write_member(servers.get(part))
                        _write_all(file, member, label.member_place_of(part))
            except OSError as error:
                raise self._error(error, name) from error
            finally:
                os.close(file)

    def remove_file(self, name: SegmentFileName) -> None:
        """Remove a file; a missing file raises no error.

        :raises SegmentError: it cannot be removed.
        """
        with self._open_folder(make=False) as folder:
            if folder is None:
                return
            try:
                state = os.stat(str(name), dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(state.st_mode):
                    os.unlink(str(name), dir_fd=folder)
            except FileNotFoundError:
                return
            except OSError as error:
                raise self._error(error, name) from error

    @contextlib.contextmanager
    def _open_folder(self, make: bool) -> Iterator[int | None]:
        """Open the directory and check that no other user can change it; None if it is missing.

        :raises SegmentError: another user owns it or can write to it.
        """
        made = False
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    self.path.mkdir(_FOLDER_MODE)
                    made = True
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if make:
                raise self._error(error) from error
            yield None
            return
        except OSError as error:
            raise self._error(error) from error
        try:
            if made:
                os.fchmod(folder, _FOLDER_MODE)  # whatever the service's umask is
            state = os.fstat(folder)
            owner = os.geteuid() if self.owner is None else self.owner
            if state.st_uid != owner:
                raise SegmentError(
                    f"{self.path} belongs to user {state.st_uid} and not to nova-compute's: remove "
                    "it, or set [hpc]shared_memory_dir to another directory"
                )
            if state.st_mode & _OTHERS_WRITE:
                raise SegmentError(f"others may write in {self.path}: chmod 0711 {self.path}")
            if make and _filesystem_of(self.root, state.st_dev) not in ("tmpfs", None):
                raise SegmentError(
                    f"{self.path} is on no tmpfs: set [hpc]shared_memory_dir to a directory on one"
                )
            yield folder
        finally:
            os.close(folder)

    def _error(self, error: OSError, name: SegmentFileName | None = None) -> SegmentError:
        path = self.path if name is None else self.path / str(name)
        cure = ""
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            cure = (
                ": there is no room for it; mount its tmpfs larger, or lower [hpc]shared_memory_mb"
            )
        elif error.errno in (errno.ELOOP, errno.ENOTDIR):
            cure = ": set [hpc]shared_memory_dir to a directory, by its own name"
        return SegmentError(f"{path}: {error.strerror or error}{cure}")


def _write_all(file: int, data: bytes, place: int) -> None:
    if os.pwrite(file, data, place) != len(data):
        raise OSError(errno.EIO, "it was written in part")


def bind_to_node(file: int, size: int, node: int) -> None:
    """Make the kernel take the pages of a file on tmpfs from one NUMA node, and from no other.

    This is the file's own policy, which applies to every process that uses it (``mbind(2)``).

    :raises OSError: the kernel refuses.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"NUMA nodes cannot be chosen on {platform.machine()}")
    mask = (ctypes.c_ulong * (_MOST_NODES // _WORD))()
    mask[node // _WORD] = 1 << node % _WORD
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(file, size) as memory:
        view = (ctypes.c_char * size).from_buffer(memory)
        try:
            failed = libc.syscall(
                ctypes.c_long(number),
                *(ctypes.byref(view), ctypes.c_ulong(size), ctypes.c_int(_MPOL_BIND)),
                *(ctypes.byref(mask), ctypes.c_ulong(_MOST_NODES), ctypes.c_uint(0)),
            )
            problem = ctypes.get_errno()
        finally:
            del view  # the mapping cannot be closed while the view exists
    if failed:
        raise OSError(problem, f"NUMA node {node} cannot be chosen: {os.strerror(problem)}")


def read_available_memory(root: Path, node: int) -> int | None:
    """Return the bytes of a NUMA node that no program needs, including cache; None if unknown."""
    values: dict[str, int] = {}
    try:
        text = (root / f"sys/devices/system/node/node{node}/meminfo").read_text("ascii")
        for line in text.splitlines():
            words = line.split()
            if len(words) >= 4:  # Node 0 MemFree:  123 kB
                values[words[2]] = int(words[3]) << 10
    except (OSError, ValueError):
        return None
    cache = sum(values.get(f"{key}:", 0) for key in ("Active(file)", "Inactive(file)"))
    return values["MemFree:"] + cache if "MemFree:" in values else None


def _filesystem_of(root: Path, device: int) -> str | None:
    """Return the type of a mounted file system; None if unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (root / "proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        before, separator, after = line.partition(" - ")
        if separator and before.split()[2:3] == [number]:
            return next(iter(after.split()), None)
    return None
