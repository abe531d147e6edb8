# SPDX-License-Identifier: Apache-2.0
"""Files below a root directory: the live system, or a capture of another one.

A capture keeps the symbolic links of the machine it was taken from, so
``/sys/bus/pci`` in it may point to ``/sys/devices`` of *that* machine: every
link, absolute or relative, is followed inside the root and never leaves it.
Files are untrusted: a pipe would block, a directory or a loop of links may stand in the
place of a file, and a file may hold anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

#: Reads an open file: its handle and the maximum of bytes -> the bytes.
Take = Callable[[int, int], bytes]

#: As many as the kernel follows (MAXSYMLINKS).
MOST_LINKS: Final = 40
#: Text files that this package reads have a few pages at most.
LONGEST: Final = 1 << 18
#: Bytes that a kernel returns at least in one read, except at the end of a file.
_PAGE: Final = 4096

# O_NONBLOCK: a pipe in the place of a file must not hang the reader.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME: Final = re.compile(r"[A-Za-z0-9_.:@+!-]{1,255}", re.ASCII)


class FileError(Exception):
    """A file is present but cannot be used. The text names the file and the reason."""


class FileTree:
    """Reads files of a machine, or of a saved copy, below the directory *root*.

    Paths are absolute, as on the machine itself. An instance caches the targets of links, so it
    serves one reading and is then thrown away.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root).rstrip("/")
        self._targets: dict[str, str | None] = {}
        self._resolved: dict[str, str | None] = {}

    def resolve(self, path: str) -> str | None:
        """Follow every link in *path*; None if it leads to nothing.

        :raises FileError: a loop of links, or a part that cannot be examined.
        """
        if path not in self._resolved:
            self._resolved[path] = self._walk(path)
        return self._resolved[path]

    def _walk(self, path: str) -> str | None:
        """Resolve *path* part by part, like the kernel, but below the root of the tree.

        The target of a link is put in front of the remaining parts. An absolute target starts
        again at the root of the tree, and ``..`` never leaves it. For example, if
        ``/sys/bus/pci`` is a link to ``/sys/devices/x``, then ``/sys/bus/pci/../y`` is
        ``/sys/devices/y``.
        """
        # The folder above is usually in the cache: functions share their folders.
        head, _, tail = path.rpartition("/")
        above = self.resolve(head) if head else "/"
        if above is None:
            return None
        left, place = [tail], above.rstrip("/")
        links = 0
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                place = place.rpartition("/")[0]
                continue
            place = f"{place}/{part}"
            try:
                target = self._target(place)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except (OSError, ValueError) as error:
                raise FileError(f"{_escape_path(path)}: {describe_file_error(error)}") from error
            if target is None:
                continue
            links += 1
            if links > MOST_LINKS:
                raise FileError(f"{_escape_path(path)}: a loop of symbolic links")
            place = "" if target.startswith("/") else place.rpartition("/")[0]
            left.extend(target.split("/")[::-1])
        return place or "/"

    def _target(self, place: str) -> str | None:
        if place not in self._targets:
            try:
                self._targets[place] = self._readlink(place)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._targets[place] = None  # it exists and is not a link
        return self._targets[place]

    def _readlink(self, place: str) -> str:
        return os.readlink(self._root + place)  # noqa: PTH115

    def target(self, path: str) -> str | None:
        """Return the fully resolved target of the link *path*; None if there is no such link.

        :raises FileError: it is not a link, or leads to nothing.
        """
        folder, _, name = path.rpartition("/")
        parent = self.resolve(folder or "/")
        if parent is None:
            return None
        try:
            text = self._target(f"{parent.rstrip('/')}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise FileError(f"{_escape_path(path)}: {describe_file_error(error)}") from error
        if text is None:
            raise FileError(f"{_escape_path(path)}: not a symbolic link")
        # A capture often omits the target of a link (drivers). The text of the link is
        # then enough.
        resolved = self.resolve(path)
        return resolved if resolved is not None else os.path.normpath(f"{parent}/{text}")

    def read(self, path: str, limit: int = LONGEST, take: Take | None = None) -> bytes | None:
        """Read the first *limit* bytes of a file; None if there is no such file.

        :param take: reads the open file, if only a part of it is needed.
        :raises FileError: anything but a readable regular file.
        """
        folder, _, name = path.rpartition("/")
        parent = self.resolve(folder or "/")
        if parent is None:
            return None
        place = f"{self._root}{parent.rstrip('/')}/{name}"
        return self.read_in(None, place, path, limit, take)

    def read_in(
        self, folder: int | None, name: str, path: str, limit: int, take: Take | None = None
    ) -> bytes | None:
        """Read the file *name* in the open directory *folder*, like :meth:`read`.

        :param path: the directory's path for messages.
        :raises FileError: anything but a readable regular file.
        """
        try:
            try:
                handle = os.open(name, _FLAGS, dir_fd=folder)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                resolved = self.resolve(path)
                if resolved is None:
                    return None
                handle = os.open(self._root + resolved, _FLAGS)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise FileError(f"{_escape_path(path)}: not a file")
                return (take or _read_by_pages)(handle, limit)
            finally:
                os.close(handle)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise FileError(f"{_escape_path(path)}: {describe_file_error(error)}") from error

    @contextlib.contextmanager
    def folder(self, path: str) -> Iterator[Folder | None]:
        """Open a directory for many reads; None if it cannot be listed.

        Reading through the handle of the directory, and only listed names, avoids most of
        the time for many small files.
        """
        try:
            resolved = self.resolve(path)
            handle = None if resolved is None else os.open(self._root + resolved, _FOLDER)
        except (FileError, OSError, ValueError):
            handle = None
        if handle is None:
            yield None
            return
        try:
            try:
                names = frozenset(os.listdir(handle))  # noqa: PTH208
            except OSError:
                yield None
                return
            yield Folder(self, path, handle, names)
        finally:
            os.close(handle)

    def text(self, path: str) -> str | None:
        """Read the stripped text of a file; None if there is no such file.

        :raises FileError: unreadable, or not printable ASCII text.
        """
        data = self.read(path)
        return None if data is None else decode_kernel_text(data, path)

    def names(self, path: str) -> list[str]:
        """List the names in a directory, sorted; [] if there is no such directory.

        Names that no kernel object has are left out.

        :raises FileError: it cannot be listed.
        """
        resolved = self.resolve(path)
        if resolved is None:
            return []
        try:
            return sorted(filter(_NAME.fullmatch, self._listdir(resolved)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise FileError(f"{_escape_path(path)}: {describe_file_error(error)}") from error

    def _listdir(self, place: str) -> list[str]:
        return os.listdir(self._root + place)  # noqa: PTH208

    def link_in(self, folder: int, name: str, path: str) -> str | None:
        """Return target of the link *name* in an open *folder*; None if it is not a readable link.

        :param path: of the link, for subclasses without open folders.
        """
        try:
            return os.readlink(name, dir_fd=folder)
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Whether *path* leads to anything; False for a loop of links."""
        try:
            return self.resolve(path) is not None
        except FileError:
            return False


class Folder:
    """An open directory of a :class:`FileTree`, from :meth:`FileTree.folder`."""

    def __init__(self, tree: FileTree, path: str, handle: int, names: frozenset[str]) -> None:
        self._tree = tree
        self._path = path
        self._handle = handle
        #: All names in it: files, folders and links.
        self.names = names

    def read(self, name: str, limit: int = LONGEST, take: Take | None = None) -> bytes | None:
        """Read *limit* bytes of a listed file, as :meth:`FileTree.read`; else None."""
        if name not in self.names:
            return None
        return self._tree.read_in(self._handle, name, f"{self._path}/{name}", limit, take)

    def link(self, name: str) -> str | None:
        """Return the target of the symbolic link *name*; None if it is no readable link."""
        if name not in self.names:
            return None
        return self._tree.link_in(self._handle, name, f"{self._path}/{name}")

    def text(self, name: str) -> str | None:
        """Read the stripped text of a listed file, as :meth:`FileTree.text`; None if not listed."""
        data = self.read(name)
        return None if data is None else decode_kernel_text(data, f"{self._path}/{name}")


def decode_kernel_text(data: bytes, path: str) -> str:
    """Decode the content of a sysfs or proc file, without the whitespace around it.

    :param path: the file, for the message.
    :raises FileError: not printable ASCII text.
    """
    try:
        # Some captures pad a page to the length of the kernel's buffer.
        text = data.rstrip(b"\0").decode("ascii").strip()
    except UnicodeDecodeError:
        text = "\0"
    if not (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()):
        raise FileError(f"{_escape_path(path)}: not text")
    return text


def show_path(path: Path) -> str:
    """Format a path for people: undecodable bytes of its name are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _read_by_pages(handle: int, limit: int) -> bytes:
    # A page at a time: sysfs returns no more, and only the last read is shorter.
    data = piece = os.read(handle, min(_PAGE, limit))
    while len(piece) == _PAGE and len(data) < limit:
        piece = os.read(handle, min(_PAGE, limit - len(data)))
        data += piece
    return data


def describe_file_error(error: Exception) -> str:
    """Return the text of an error for a path: the system's own words, or ``no possible path``."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return "no possible path"


def _escape_path(path: str) -> str:
    return path if path.isprintable() else ascii(path)
