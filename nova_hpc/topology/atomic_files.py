# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced whole: a reader sees the old content or the new one.

The old file stays if the process is killed at any moment or the disk is full.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: End of the names of drafts, so that services do not load a draft as a ``.conf``.
DRAFT_END: Final = ".new"


def draft_prefix_of(path: Path) -> str:
    """Return the prefix of the names of draft files for *path*; a rename makes a draft the file."""
    return f".{path.name.lstrip('.')}."


def write_draft(
    path: Path, data: bytes, mode: int = 0o600, prepare: Callable[[int], None] | None = None
) -> Path:
    """Write *data* to the disk, in a new file beside that at *path*.

    :param prepare: sets the owner and the labels of the open file.
    :returns: the draft, to be renamed to *path*.
    :raises OSError: it cannot be written; the draft is removed.
    """
    # Beside the file, so that the replacement is atomic.
    handle, name = tempfile.mkstemp(DRAFT_END, draft_prefix_of(path), path.parent)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            if prepare is not None:
                prepare(handle)
            os.fchmod(handle, mode)
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def replace_file(path: Path, draft: Path) -> None:
    """Rename *draft* to *path*, and flush the directory to the disk.

    :raises OSError: it cannot be done; the draft is gone.
    """
    try:
        os.replace(draft, path)  # noqa: PTH105
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush a directory to the disk; a rename survives a power loss only after that.

    :raises OSError: it cannot be done.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write the file at *path*, whole or not at all.

    :raises OSError: it cannot be written; the old file stays, and no draft is left.
    """
    replace_file(path, write_draft(path, data, mode))
