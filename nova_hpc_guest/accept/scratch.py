# SPDX-License-Identifier: Apache-2.0
"""Directories of this machine for the files of a run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def make_scratch_folder(parent: str | None) -> Iterator[str]:
    """Make a directory for the files of one run; remove it after the block, also after an error."""
    folder = tempfile.mkdtemp(prefix="nova-hpc-accept-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_file_system(folder: str) -> str | None:
    """Return the type of the file system of a directory, such as ``ext4``; None if unknown."""
    best, kind = "", None
    with contextlib.suppress(OSError), open("/proc/self/mounts", encoding="utf-8") as mounts:  # noqa: PTH123
        for line in mounts:
            fields = line.split()
            if len(fields) > 2 and len(fields[1]) >= len(best):
                place = fields[1].rstrip("/") + "/"
                if (folder + "/").startswith(place):
                    best, kind = fields[1], fields[2]
    return kind
