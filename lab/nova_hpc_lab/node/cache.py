# SPDX-License-Identifier: Apache-2.0
"""Files in the cache: named by a key of their sources, complete, and checked before use."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_MANIFEST: Final = "manifest.json"
_BESIDE: Final = ".new-"


def key_of(*parts: str | bytes) -> str:
    """Return a short key for contents: another content gives another key."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def entry(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder *name* of the cache, made by *make* unless it exists and is intact.

    *make* fills an empty folder, which gets its name only when it is complete. So an interruption
    at any point leaves no folder that looks complete. Several processes may call this at once: one
    makes the folder, the others wait.

    :returns: the folder; its files are not to be changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    with _locked(folder / f".{name}.lock"):
        if intact(target):
            return target
        _clean(folder, name)
        beside = Path(tempfile.mkdtemp(dir=folder, prefix=f"{_BESIDE}{name}-"))
        try:
            make(beside)
            _seal(beside)
            beside.chmod(0o755)
            beside.rename(target)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    return target


def intact(target: Path) -> bool:
    """Whether the entry exists, every file has its checksum and every link its target."""
    try:
        manifest = json.loads((target / _MANIFEST).read_text())
        return all(
            checksum(target / name) == digest for name, digest in manifest["sha256"].items()
        ) and all(
            str((target / name).readlink()) == goal
            for name, goal in manifest.get("links", {}).items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def remove_others(folder: Path, prefix: str, keep: str) -> None:
    """Remove outdated entries: those with a name that begins with *prefix*, except *keep*."""
    for old in folder.glob(f"{prefix}*"):
        if old.name != keep and not old.name.startswith("."):
            shutil.rmtree(old, ignore_errors=True)


def checksum(path: Path) -> str:
    """Compute the SHA-256 of a regular file, in hex.

    :raises OSError: it is not a regular file. Links are not followed: the link ``dev/stderr`` of
        an unpacked Debian leads to the reader's own standard error, and reading a pipe may never
        end.
    """
    # O_NONBLOCK: opening a pipe would wait for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no regular file")
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _seal(folder: Path) -> None:
    """Write the manifest: the checksums of files, and the targets of links."""
    sums, links = {}, {}
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            name = str(path.relative_to(folder))
            if path.is_symlink():
                links[name] = str(path.readlink())
            elif path.is_file():
                sums[name] = checksum(path)
    manifest = {"sha256": dict(sorted(sums.items())), "links": dict(sorted(links.items()))}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))


def _clean(folder: Path, name: str) -> None:
    """Remove a damaged entry, and the folders of interrupted attempts."""
    shutil.rmtree(folder / name, ignore_errors=True)
    for old in folder.glob(f"{_BESIDE}{name}-*"):
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
