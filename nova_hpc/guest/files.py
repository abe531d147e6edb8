# SPDX-License-Identifier: Apache-2.0
"""Files of this machine, or of a captured one below a directory.

A capture's links may be absolute: they are read as text and never followed
out of the root. A pipe or a device in the place of a file does not block.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

#: Longer than any file that is read here.
LONGEST = 1 << 20


class FileError(Exception):
    """A file that is there and cannot be used; the text names it and says why."""


class Root:
    """The directory that holds ``sys`` and ``proc``, and ``etc`` and ``run``."""

    def __init__(self, folder: str = "/") -> None:
        self.folder = os.path.abspath(folder).rstrip("/")  # noqa: PTH100

    def place(self, path: str) -> str:
        """Where an absolute *path* of the machine really is."""
        return f"{self.folder}{path}"

    def exists(self, path: str) -> bool:
        """Whether *path* leads to anything."""
        return os.path.exists(self.place(path))  # noqa: PTH110

    def read(self, path: str) -> bytes | None:
        """At most 1 MiB of a file; None: there is none.

        :raises FileError: it is there but no file that can be read.
        """
        try:
            handle = os.open(self.place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise FileError(f"{path}: not a file")
                data = b""
                while len(data) < LONGEST:
                    piece = os.read(handle, LONGEST - len(data))
                    if not piece:
                        break
                    data += piece
                return data
            finally:
                os.close(handle)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise FileError(f"{path}: {reason(error)}") from error

    def text(self, path: str) -> str | None:
        """The stripped text of a file; None: missing, unreadable or no text."""
        try:
            data = self.read(path)
        except FileError:
            return None
        if data is None:
            return None
        text = data.rstrip(b"\0").decode("ascii", "replace").strip()
        return text if all(char.isprintable() or char in "\n\t" for char in text) else None

    def link(self, path: str) -> str | None:
        """The text of a symbolic link; None: no such link."""
        try:
            return os.readlink(self.place(path))  # noqa: PTH115
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted; [] when it cannot be listed."""
        try:
            return sorted(os.listdir(self.place(path)))  # noqa: PTH208
        except (OSError, ValueError):
            return []

    def write(self, path: str, data: bytes) -> bool:
        """Write a file whole, beside and renamed, readable by all.

        :returns: whether anything changed.
        :raises FileError: it cannot be written, or is a link.
        """
        real = self.place(path)
        folder = os.path.dirname(real)  # noqa: PTH120
        try:
            if os.path.islink(real):  # noqa: PTH114
                raise FileError(f"{path}: a symbolic link; it is not overwritten")
            if self.read(path) == data:
                return False
            os.makedirs(folder, mode=0o755, exist_ok=True)  # noqa: PTH103
            handle, beside = tempfile.mkstemp(dir=folder, prefix=".nova-hpc-")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fchmod(handle, 0o644)
                    os.fsync(handle)
                os.replace(beside, real)  # noqa: PTH105
            except BaseException:
                os.unlink(beside)  # noqa: PTH108
                raise
        except (OSError, ValueError) as error:
            raise FileError(f"{path}: cannot be written: {reason(error)}") from error
        return True

    def remove(self, path: str) -> None:
        """Remove a file, if it is there and can be."""
        with contextlib.suppress(OSError, ValueError):
            os.unlink(self.place(path))  # noqa: PTH108


def reason(error: Exception) -> str:
    """Why an operation failed, in the system's words."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return "no possible path"
