# SPDX-License-Identifier: Apache-2.0
"""The files of one reading of a node: recorded while it is read, and replayed.

A record contains exactly the existing files that the readers opened. So there is no
second list of files that could miss a new one. A replay of the record gives the
same node as the original reading.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from nova_hpc.topology import confspace
from nova_hpc.topology.files import FileError, FileTree, Folder, Take
from nova_hpc_tools.inventory import config_essence

#: The entry at a path: the bytes of a file, the text of a link, None for a directory.
Entry = bytes | str | None

#: The readers list this folder only for numbered names, so a record omits other names there.
_NUMBERED: Final = "/sys/devices/system/"


class RecordingTree(FileTree):
    """A :class:`FileTree` that keeps the files that it has read, for an archive."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._files: dict[str, bytes] = {}
        self._failed: set[str] = set()

    def read_in(
        self, folder: int | None, name: str, path: str, limit: int, take: Take | None = None
    ) -> bytes | None:
        """Read a file as :meth:`FileTree.read_in`; keep the bytes, and a serial number whole."""
        whole: list[bytes] = []

        def both(handle: int, most: int) -> bytes:
            assert take is not None
            data = take(handle, most)
            whole.append(
                config_essence.with_serial(handle, data) if take is confspace.skim_config else data
            )
            return data

        resolved = None
        with contextlib.suppress(FileError):
            resolved = self.resolve(path)  # records the target, and the links on the way
        try:
            data = super().read_in(folder, name, path, limit, both if take else None)
        except FileError:
            if resolved is not None:
                self._failed.add(resolved)
            raise
        if data is not None and resolved is not None:
            self._files[resolved] = whole[0] if whole else data
        return data

    def link_in(self, folder: int, name: str, path: str) -> str | None:
        """Read link *name* in an open folder as :meth:`FileTree.link_in`; record its target."""
        with contextlib.suppress(FileError):
            self.resolve(path)
        return super().link_in(folder, name, path)

    def names(self, path: str) -> list[str]:
        """List the names in a folder, as :meth:`FileTree.names`, and add them to the record."""
        names = super().names(path)
        place = (self.resolve(path) or "").rstrip("/")
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                self._target(f"{place}/{name}")
        return names

    def record(self) -> dict[str, Entry]:
        """Return path -> entry, for all paths that were read or listed.

        A file that could not be read becomes an empty directory, which cannot be read as a file
        either.
        """
        entries: dict[str, Entry] = {}
        for place, target in sorted(self._targets.items()):
            if target is not None:
                entries[place] = target
            elif place in self._files:
                entries[place] = self._files[place]
            elif not self._is_file(place) or place in self._failed:
                entries[place] = None
            elif not place.startswith(_NUMBERED) or place[-1].isdigit():
                entries[place] = b""
        return entries

    def _is_file(self, place: str) -> bool:
        try:
            return stat.S_ISREG(os.lstat(self._root + place).st_mode)
        except OSError:
            return False


class ReplayTree(FileTree):
    """A :class:`FileTree` on a record in memory; it touches no file."""

    def __init__(self, record: Mapping[str, Entry]) -> None:
        super().__init__(Path("/"))
        self._record = record
        self._below: dict[str, set[str]] = {"/": set()}
        for path, entry in record.items():
            if entry is None:
                self._below.setdefault(path, set())
            while path != "/":
                parent, _, name = path.rpartition("/")
                self._below.setdefault(parent or "/", set()).add(name)
                path = parent or "/"

    def _readlink(self, place: str) -> str:
        entry = self._record.get(place)
        if isinstance(entry, str):
            return entry
        # The errors of the kernel: EINVAL if the path exists and is not a link, else ENOENT.
        is_there = entry is not None or place in self._below
        error = OSError if is_there else FileNotFoundError
        number = errno.EINVAL if is_there else errno.ENOENT
        raise error(number, os.strerror(number))

    def _listdir(self, place: str) -> list[str]:
        if place not in self._below:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return list(self._below[place])

    def read_in(
        self, folder: int | None, name: str, path: str, limit: int, take: Take | None = None
    ) -> bytes | None:
        """Read a file of the record in memory, as :meth:`FileTree.read_in`; None if it is missing.

        :raises FileError: the path is a directory.
        """
        resolved = self.resolve(path)
        if resolved is None:
            return None
        entry = self._record.get(resolved)
        if not isinstance(entry, bytes):
            raise FileError(f"{path}: not a file")
        return entry[:limit]

    def link_in(self, folder: int, name: str, path: str) -> str | None:
        """Return the target of the link *name* in the folder of *path*, from the record.

        *folder* is not used: the record has no open files.

        :returns: None if the record has no link there.
        """
        entry = self._record.get(f"{self.resolve(path.rpartition('/')[0])}/{name}")
        return entry if isinstance(entry, str) else None

    @contextlib.contextmanager
    def folder(self, path: str) -> Iterator[Folder | None]:
        """Open a folder of the record, as :meth:`FileTree.folder`; None if it is missing."""
        try:
            resolved = self.resolve(path)
        except FileError:
            resolved = None
        below = None if resolved is None else self._below.get(resolved)
        yield None if below is None else Folder(self, path, -1, frozenset(below))
