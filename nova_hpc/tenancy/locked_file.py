"""State files that are whole at all times, and the locks around them.

A file is written beside its place, flushed to the disk and renamed, and then a
copy of it likewise: whoever is killed at any moment leaves the old or the new
text, and a file that a failing disk has cut in half is read from its copy. No
function here writes a log: they run below locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

#: Nothing that is kept here is longer: a thousand devices need about 1 MiB.
LONGEST: Final = 1 << 24

_PAUSE: Final = 0.02
#: How the names of files end that are not in their place yet.
_BESIDE: Final = ".new"
#: Seconds to wait for another process that changes the same file.
_PATIENCE: Final = 60.0


class StateError(Exception):
    """A state file cannot be read or written; the text names it and the cure."""


@attrs.frozen
class Loaded:
    """What a file says."""

    #: The JSON object; {} when there is no file, or when it is lost.
    body: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    #: What is wrong with the file or its copy.
    problems: tuple[str, ...] = ()
    #: The file is there, and neither it nor its copy can be read.
    lost: bool = False


def copy_of(path: Path) -> Path:
    """Where the copy of the file at *path* is kept."""
    return path.with_name(f".{path.name}.copy")


def load(path: Path, what: str) -> Loaded:
    """Read a JSON object; never raises for what is there.

    :param what: what to call the file in a problem.
    """
    body, problem = _object(path, what)
    if problem is None:
        return Loaded(body)
    copy, second = _object(copy_of(path), f"copy of the {what}")
    if second is None and copy_of(path).exists():
        return Loaded(copy, (f"{problem}; its copy is used",))
    return Loaded({}, (problem,), lost=True)


def _object(path: Path, what: str) -> tuple[dict[str, Any], str | None]:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(LONGEST))
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"the {what} {path} cannot be read: {error}"
    if not isinstance(body, dict):
        return {}, f"the {what} {path} holds no JSON object"
    return body, None


def save(path: Path, body: Mapping[str, Any], what: str) -> None:
    """Replace the file at *path*, and then its copy.

    :raises StateError: it cannot be written; the old file is still there.
    """
    data = (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()
    try:
        _replace(path, data)
    except OSError as error:
        raise StateError(f"cannot write the {what} {path}: {error}") from error
    copy = copy_of(path)
    try:
        _replace(copy, data)
    except OSError:
        # An old copy is worse than none: it could bring back what is no more.
        with contextlib.suppress(OSError):
            copy.unlink()


def _replace(path: Path, data: bytes) -> None:
    # What a writer that was killed has left: nobody else writes below the lock.
    for old in path.parent.glob(f"{glob.escape(f'.{path.name}.')}*{_BESIDE}"):
        old.unlink(missing_ok=True)
    # Beside the file, so that the replacement is atomic.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_BESIDE)
    try:
        try:
            _own_like(handle, path.parent)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    # The rename itself is on the disk only when the directory is.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _own_like(handle: int, folder: Path) -> None:
    """Let the service read what an operator has written as root."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.fchown(handle, owner.st_uid, owner.st_gid)


def locks_of(path: Path) -> Path:
    """The directory of the locks of single devices, beside a state file."""
    return path.with_name(f".{path.name}.locks")


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Keep every other thread and process from changing the file at *path*.

    :raises StateError: the lock cannot be had.
    """
    lock = path.with_name(f".{path.name}.lock")
    with _flock(lock, f"the {what} {path}", _PATIENCE):
        yield


@contextlib.contextmanager
def device_locked(path: Path, address: str, patience: float) -> Iterator[None]:
    """Keep others from resetting or giving away the device at *address*.

    :param path: the state file, beside which the locks are kept.
    :param patience: seconds to wait; 0 gives up at once.
    :raises StateError: the lock cannot be had.
    """
    folder = locks_of(path)
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        owner = path.parent.stat()
        if os.geteuid() == 0 and owner.st_uid != folder.stat().st_uid:
            os.chown(folder, owner.st_uid, owner.st_gid)
    except OSError as error:
        raise StateError(f"cannot make the directory of locks {folder}: {error}") from error
    with _flock(folder / address, f"device {address}", patience):
        yield


@contextlib.contextmanager
def _flock(path: Path, what: str, patience: float) -> Iterator[None]:
    """A lock that ends with its process, however that ends.

    It is tried again and again, because a blocking call would stop all threads
    of a service whose threads are not the kernel's.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise StateError(f"cannot lock {what}: {error}") from error
    try:
        with contextlib.suppress(OSError):
            _own_like(handle, path.parent)
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise StateError(f"cannot lock {what}: {error}") from error
            if time.monotonic() >= deadline:
                raise StateError(f"{what} is locked by another process or thread")
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(handle)
