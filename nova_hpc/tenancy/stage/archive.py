# SPDX-License-Identifier: Apache-2.0
"""Small initial RAM file systems, made without tools and without root."""

from __future__ import annotations

import gzip
import lzma
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

_MAGIC: Final = b"070701"
_TRAILER: Final = "TRAILER!!!"


class ArchiveError(Exception):
    """A file for an archive is missing; the text names it."""


@attrs.define
class CpioArchive:
    """A cpio archive in the "newc" format, which the kernel unpacks."""

    _entries: dict[str, tuple[int, bytes, int]] = attrs.field(factory=dict, init=False)

    def folder(self, path: str) -> None:
        """Add a folder and its parents to the archive."""
        for part in reversed(PurePosixPath(path).parents):
            if str(part) != ".":
                self._entries.setdefault(str(part), (stat.S_IFDIR | 0o755, b"", 0))
        self._entries.setdefault(path, (stat.S_IFDIR | 0o755, b"", 0))

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Add a file and its parent folders."""
        self._parents(path)
        self._entries[path] = (stat.S_IFREG | mode, content, 0)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link at *path* to the archive, and its parent folders."""
        self._parents(path)
        self._entries[path] = (stat.S_IFLNK | 0o777, target.encode(), 0)

    def device(self, path: str, major: int, minor: int) -> None:
        """Add a character device (mode 0600) at *path* to the archive, and its parent folders."""
        self._parents(path)
        self._entries[path] = (stat.S_IFCHR | 0o600, b"", (major << 8) | minor)

    def pack(self) -> bytes:
        """Return the archive, compressed; the same content gives the same bytes."""
        parts = []
        for number, (name, (mode, data, device)) in enumerate(self._entries.items(), start=1):
            parts.append(_cpio_member_of(name, number, mode, data, device))
        parts.append(_cpio_member_of(_TRAILER, 0, 0, b"", 0))
        return gzip.compress(b"".join(parts), compresslevel=6, mtime=0)

    def _parents(self, path: str) -> None:
        parent = str(PurePosixPath(path).parent)
        if parent != ".":
            self.folder(parent)


def _cpio_member_of(name: str, inode: int, mode: int, data: bytes, device: int) -> bytes:
    encoded = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, device >> 8, device & 255, len(encoded), 0)
    head = _MAGIC + b"".join(b"%08X" % field for field in fields) + encoded
    return _pad_to_word(head) + _pad_to_word(data)


def _pad_to_word(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def module_files(modules: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of kernel modules and of their dependencies, in loading order.

    :param modules: a folder ``lib/modules/VERSION`` with ``modules.dep``.
    :param names: names for ``modprobe``; modules that are built into the kernel are
        left out.
    :raises ArchiveError: a module does not exist.
    """
    needs: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, wanted = line.partition(":")
        needs[path] = wanted.split()
        paths[_module_name_of(path)] = path
    built_in = {
        _module_name_of(line) for line in (modules / "modules.builtin").read_text().splitlines()
    }
    ordered: dict[str, None] = {}
    for name in names:
        path = paths.get(_module_name_of(name), "")
        if not path:
            if _module_name_of(name) in built_in:
                continue
            raise ArchiveError(f"the kernel in {modules} has no module {name}")
        # modules.dep lists a module's dependencies with the deepest one last.
        for needed in reversed(needs[path]):
            ordered.setdefault(needed)
        ordered.setdefault(path)
    return [modules / path for path in ordered]


def plain_module(path: Path) -> tuple[str, bytes]:
    """Return file name and content of a module, decompressed.

    :raises ArchiveError: its compression is not supported.
    """
    content = path.read_bytes()
    if path.suffix == ".xz":
        return path.stem, lzma.decompress(content)
    if path.suffix == ".gz":
        return path.stem, gzip.decompress(content)
    if path.suffix != ".ko":
        raise ArchiveError(f"{path}: unpack it first (it is no .ko, .ko.xz or .ko.gz)")
    return path.name, content


def add_modules(archive: CpioArchive, modules: Path, names: Sequence[str]) -> None:
    """Add modules below ``modules/`` of the archive, and their order in ``modules/order``."""
    order = []
    for path in module_files(modules, names):
        name, content = plain_module(path)
        archive.file(f"modules/{name}", content)
        order.append(name)
    archive.file("modules/order", "".join(f"{name}\n" for name in order).encode())


def add_tree(archive: CpioArchive, folder: Path) -> None:
    """Add the files below *folder* to the archive; all are executable."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            archive.file(str(path.relative_to(folder)), path.read_bytes(), 0o755)


def _module_name_of(path: str) -> str:
    name = PurePosixPath(path).name
    for suffix in (".xz", ".gz", ".zst", ".ko"):
        name = name.removesuffix(suffix)
    return name.replace("-", "_")


def base_archive(busybox: Path) -> CpioArchive:
    """Return an archive with busybox under all names that this project's scripts use."""
    archive = CpioArchive()
    for folder in ("proc", "sys", "dev", "tmp", "run", "root"):
        archive.folder(folder)
    archive.file("bin/busybox", busybox.read_bytes(), 0o755)
    archive.link("bin/sh", "busybox")
    archive.device("dev/console", 5, 1)
    archive.device("dev/null", 1, 3)
    return archive
