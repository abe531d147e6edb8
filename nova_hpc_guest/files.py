# SPDX-License-Identifier: Apache-2.0
"""Files of this machine, or of a captured one below a directory.

A capture's links may be absolute: they are read as text and never followed
out of the root. A pipe or a device in the place of a file does not block.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

#: Longer than any file that is read here.
LONGEST = 1 << 20


class GuestFileError(Exception):
    """A file that exists and cannot be used; the text names it and the reason."""


class Root:
    """Root directory of this machine, or a captured one: ``sys``, ``proc``, ``etc``, ``run``."""

    def __init__(self, folder: str = "/") -> None:
        self.folder = os.path.abspath(folder).rstrip("/")  # noqa: PTH100

    def place(self, path: str) -> str:
        """Return the real path of an absolute *path* of the machine."""
        return f"{self.folder}{path}"

    def exists(self, path: str) -> bool:
        """Return whether *path* leads to a file or directory; links are followed."""
        return os.path.exists(self.place(path))  # noqa: PTH110

    def read(self, path: str) -> bytes | None:
        """Read at most 1 MiB of a file; None if it does not exist.

        :raises GuestFileError: it exists but is not a file that can be read.
        """
        try:
            handle = os.open(self.place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            return _read_and_close(handle, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise GuestFileError(f"{path}: {describe_error(error)}") from error

    def text(self, path: str) -> str | None:
        """Read the stripped text of a file; None if missing, unreadable or not text."""
        try:
            data = self.read(path)
        except GuestFileError:
            return None
        if data is None:
            return None
        text = data.rstrip(b"\0").decode("ascii", "replace").strip()
        return text if all(char.isprintable() or char in "\n\t" for char in text) else None

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None if it is not a link."""
        try:
            return os.readlink(self.place(path))  # noqa: PTH115
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> list[str]:
        """List the names in a directory, sorted; [] if it cannot be listed."""
        try:
            return sorted(os.listdir(self.place(path)))  # noqa: PTH208
        except (OSError, ValueError):
            return []

    def read_own(self, path: str) -> bytes | None:
        """Read a file that :meth:`write` made; None if it does not exist.

        No other user can have put it there.

        :raises GuestFileError: it is a link, or others may write it or its directory.
        """
        try:
            with self._folder(path, False) as (folder, name):
                return _read_own_file(folder, name, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise GuestFileError(f"{path}: {describe_error(error)}") from error

    def write(self, path: str, data: bytes, owner: tuple[int, int] | None = None) -> bool:
        """Write a file whole, beside and renamed, readable by all.

        :param owner: the only user and group that get it, in place of root.
        :returns: whether anything changed.
        :raises GuestFileError: it cannot be written, is a link, or lies where others may write.
        """
        try:
            with self._folder(path, True) as (folder, name):
                if _is_same(folder, name, path, data, owner):
                    return False
                beside = f".nova-hpc-{os.urandom(8).hex()}"
                handle = os.open(beside, _NEW, 0o600, dir_fd=folder)
                try:
                    with os.fdopen(handle, "wb") as stream:
                        stream.write(data)
                        stream.flush()
                        if owner is None:
                            os.fchmod(handle, 0o644)
                        else:
                            os.fchown(handle, *owner)
                        os.fsync(handle)
                    os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    os.unlink(beside, dir_fd=folder)
                    raise
        except (OSError, ValueError) as error:
            raise GuestFileError(f"{path}: cannot be written: {describe_error(error)}") from error
        return True

    def remove(self, path: str) -> None:
        """Remove a file, if it is there and can be."""
        gone = contextlib.suppress(OSError, ValueError, GuestFileError)
        with gone, self._folder(path, False) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def make_folder(self, path: str) -> None:
        """Make a directory that only root can write, and its parents.

        :raises GuestFileError: it cannot be made, is a link, or lies where others may write.
        """
        try:
            with self._folder(path, True) as (folder, name), contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
            if os.path.islink(self.place(path)):  # noqa: PTH114
                raise GuestFileError(f"{path}: a symbolic link; it is not followed")
        except (OSError, ValueError) as error:
            raise GuestFileError(f"{path}: cannot be made: {describe_error(error)}") from error

    def make_file(self, path: str) -> None:
        """Make an empty file if the path does not exist.

        :raises GuestFileError: it cannot be made, or lies where others may write.
        """
        try:
            with self._folder(path, True) as (folder, name), contextlib.suppress(FileExistsError):
                os.close(os.open(name, _NEW, 0o600, dir_fd=folder))
        except (OSError, ValueError) as error:
            raise GuestFileError(f"{path}: cannot be made: {describe_error(error)}") from error

    def give_to_group(self, path: str, group: int, mode: int) -> None:
        """Set the group and the mode of a file or a device of root's.

        :raises GuestFileError: they cannot be set, or it is a link, or no file and no device.
        """
        try:
            with self._folder(path, False) as (folder, name):
                handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    kind = os.fstat(handle).st_mode
                    if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):
                        raise GuestFileError(f"{path}: neither a file nor a device")
                    place = f"/proc/self/fd/{handle}"
                    # First the mode: the new group must not get the old group's rights.
                    os.chmod(place, mode & 0o600)  # noqa: PTH101
                    os.chown(place, -1, group)
                    os.chmod(place, mode)  # noqa: PTH101
                finally:
                    os.close(handle)
        except (OSError, ValueError) as error:
            raise GuestFileError(f"{path}: cannot be given: {describe_error(error)}") from error

    def point(self, path: str, target: str) -> bool:
        """Make a symbolic link to *target*, in place of another link.

        :returns: whether anything changed.
        :raises GuestFileError: it cannot be made, or the path is not a link.
        """
        try:
            with self._folder(path, True) as (folder, name):
                try:
                    if os.readlink(name, dir_fd=folder) == target:
                        return False
                except FileNotFoundError:
                    pass
                beside = f".nova-hpc-{os.urandom(8).hex()}"
                os.symlink(target, beside, dir_fd=folder)
                os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except (OSError, ValueError) as error:
            raise GuestFileError(f"{path}: cannot be made: {describe_error(error)}") from error
        return True

    @contextlib.contextmanager
    def _folder(self, path: str, make: bool) -> Iterator[tuple[int, str]]:
        """Hold the directory of *path* open; yield descriptor and name in it; follow no link.

        :param make: make missing directories.
        :raises OSError: the directory does not exist, or cannot be used.
        :raises GuestFileError: a part is a link, or others may write there.
        """
        *parts, name = [part for part in path.split("/") if part]
        with contextlib.ExitStack() as stack:
            folder = os.open(self.folder or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            place = ""
            for part in parts:
                place = f"{place}/{part}"
                made = False
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
                        made = True
                if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise GuestFileError(f"{place}: a symbolic link; it is not followed")
                folder = os.open(part, _DIRECTORY, dir_fd=folder)
                stack.callback(os.close, folder)
                if made:
                    # Mode 0755 whatever the umask: all users read the files, only root writes.
                    os.fchmod(folder, 0o755)  # nosec B103
                _expect_own(folder, place)
            yield folder, name


#: A link that has just taken its place is refused by the kernel.
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _read_own_file(folder: int, name: str, path: str, owner: int = 0) -> bytes:
    return _read_and_close(os.open(name, _FILE, dir_fd=folder), path, own=True, owner=owner)


def _read_and_close(handle: int, path: str, own: bool = False, owner: int = 0) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise GuestFileError(f"{path}: not a file")
        if own:
            _expect_own(handle, path, owner)
        data = b""
        while len(data) < LONGEST:
            piece = os.read(handle, LONGEST - len(data))
            if not piece:
                break
            data += piece
        return data
    finally:
        os.close(handle)


def _is_same(
    folder: int, name: str, path: str, data: bytes, owner: tuple[int, int] | None = None
) -> bool:
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise GuestFileError(f"{path}: a symbolic link; it is not overwritten")
    except FileNotFoundError:
        return False
    try:
        return _read_own_file(folder, name, path, owner[0] if owner else 0) == data
    except GuestFileError:
        return False  # a file that others may write is replaced, whatever its content


def _expect_own(handle: int, path: str, owner: int = 0) -> None:
    """Check that only root, this user and *owner* may write the open file.

    :raises GuestFileError: another user may write it.
    """
    status = os.fstat(handle)
    if status.st_uid not in (0, os.geteuid(), owner):
        raise GuestFileError(
            f"{path}: of user {status.st_uid}, and neither of root nor of this one"
        )
    ours = status.st_gid in (0, os.getegid())
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not ours):
        raise GuestFileError(f"{path}: others may write it")


def describe_error(error: Exception) -> str:
    """Return the reason why a file operation failed, in the system's words."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return "no possible path"
