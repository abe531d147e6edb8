# SPDX-License-Identifier: Apache-2.0
"""The file of the ledger: always complete, and changed under locks.

A new file is written beside the old one, flushed to the disk and renamed; then its
copy is replaced in the same way. A process that is killed at any moment leaves the old or the new
text. If a failing disk truncates the file, its copy is read. No
function here writes a log, because they run under locks.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import fasteners

from nova_hpc.topology import atomic_files, handles
from nova_hpc.topology.model import normalise_address
from nova_hpc.wire import ledger as wire
from nova_hpc.wire.ledger import LEDGER, DeviceState, Ledger, Trial
from nova_hpc_common.wire.version import LaterError, WireError

_WHAT: Final = "ledger"
#: One character more than the longest accepted text.
_LONGEST: Final = (LEDGER.longest or 0) + 1
_PAUSE: Final = 0.02
#: Seconds to wait for another process that changes the same file.
_PATIENCE: Final = 60.0
#: The file may grow by so many bytes until the free space is checked again.
_ROOM: Final = 1 << 16


class LedgerError(Exception):
    """The ledger cannot be read, written or locked; the text names it and the cure."""


@functools.lru_cache(maxsize=2)
def _load_ledger(text: str) -> Ledger:
    """Parse a text; cached, because an update reads the same text many times."""
    return wire.read_ledger(text)


@attrs.define
class _LastWritten:
    """The last write of this process; replaced as one object, so it is safe between threads."""

    #: Valid values of :attr:`Ledger.written`: two while the file is being replaced; none
    #: if no file can be trusted.
    written: frozenset[str] = frozenset()


@attrs.frozen
class LedgerFile:
    """The file with the ledger (records of the PCI devices) of one node, on its disk."""

    path: Path
    #: Whether this process is nova-compute: it trusts only a file that it has itself compared
    #: and written last.
    of_compute: bool = False
    _last: _LastWritten = attrs.field(
        init=False, eq=False, repr=False, factory=lambda: _LastWritten()
    )

    @classmethod
    def from_options(cls, options: Any, of_compute: bool = False) -> LedgerFile:
        """Build the object for the file that ``[hpc]`` of nova.conf names; no file is read."""
        return cls(Path(options.ledger_file), of_compute)

    # -- reading ----------------------------------------------------------------

    def read(self) -> Ledger:
        """Return the node's ledger; empty on a node without any file. Never raises.

        nova-compute trusts the mark of a comparison only in a file that it has written last itself.
        Any other file is returned as not compared.
        """
        while True:
            last = self._last.written
            ledger = self._read()
            if not (self.of_compute and ledger.compared) or ledger.written in last:
                return ledger
            if self._last.written is last:
                # An older copy, or a file of an earlier run of this service or another node.
                return attrs.evolve(ledger, compared=False)
            # Another thread has written it since.

    def _read(self) -> Ledger:
        text = _LedgerText.of(self.path)
        ledger = Ledger()
        problems: list[str] = []
        if text is not None:
            try:
                ledger = text.parse(f"{_WHAT} {self.path}", _load_ledger, problems)
            except WireError as error:
                return Ledger(problems=(str(error),), lost=True)
        problems += ledger.problems
        if ledger.partitions is None:
            problems.append(f"the {_WHAT} {self.path} does not say who has NVLink partitions")
        return attrs.evolve(ledger, problems=tuple(dict.fromkeys(problems)))

    def known(self) -> Ledger:
        """Return the node's ledger.

        :raises LedgerError: the file is lost.
        """
        ledger = self.read()
        if ledger.lost:
            raise LedgerError(f"{ledger.problems[0]}; repair or remove it first")
        return ledger

    def exists(self) -> bool:
        """Return whether the ledger's file or its copy exists."""
        return _LedgerText.of(self.path) is not None

    def existing(self) -> Ledger:
        """Return the node's ledger from an existing file.

        :raises LedgerError: there is no file, or it is lost.
        """
        if not self.exists():
            raise LedgerError(
                f"no ledger at {self.path}: nova-compute makes it when it runs with this project's "
                "driver; --config-file names another configuration of the node"
            )
        return self.known()

    def change(self, edit: Callable[[Ledger], Ledger]) -> Ledger:
        """Change the file; write nothing if nothing changes.

        :returns: the new ledger.
        :raises LedgerError: the file is lost, or cannot be written.
        """
        with self._locked():
            before = self.known()
            after = edit(before)
            return after if after == before else self._write(after)

    def _write(self, ledger: Ledger) -> Ledger:
        believed = self.of_compute and ledger.compared
        if believed:
            ledger = attrs.evolve(ledger, written=secrets.token_hex(8))
            self._last.written |= {ledger.written}
        try:
            _save_with_copy(self.path, ledger.dumps().encode())
        except LedgerError:
            # What this process knows is not on the disk: Nova's records have to tell.
            self.distrust()
            raise
        self._last.written = frozenset({ledger.written} if believed else ())
        return ledger

    def distrust(self) -> None:
        """Require a new comparison with Nova's records before any device is given."""
        self._last.written = frozenset()

    def expect_room(self) -> None:
        """Check that the file could be written now.

        :raises LedgerError: it cannot be written; no device may be given.
        """
        with self._locked():
            try:
                size = self.path.stat().st_size if self.path.exists() else 0
                _try_writing_beside(self.path, size + _ROOM)
            except OSError as error:
                raise LedgerError(f"cannot write {self._text}: {error}") from error

    def put_by(self, name: str) -> None:
        """Keep a copy of the present file beside it, for operators; *name* ends its name.

        :raises LedgerError: the copy cannot be written.
        """
        try:
            with self._locked():
                place = _free_path_beside(self.path, f".{name}")
                place.write_bytes(self.path.read_bytes())
        except OSError as error:
            raise LedgerError(f"cannot keep a copy of {self._text}: {error}") from error

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return _locked_ledger(self.path.with_name(f".{self.path.name}.lock"), self._text, _PATIENCE)

    @property
    def _text(self) -> str:
        return f"the {_WHAT} {self.path}"

    # -- quarantine ----------------------------------------------------------------

    def quarantine(self, reasons: Mapping[str, str], anew: bool = True) -> None:
        """Put devices in quarantine, all or none.

        :param reasons: PCI address -> reason.
        :param anew: if False, a device that is already in quarantine keeps its reason.
        :raises LedgerError: the file is lost or cannot be written.
        :raises nova_hpc.topology.model.AddressError: an address is not a PCI address.
        """
        more = {normalise_address(address): reason for address, reason in reasons.items()}
        if more:
            self.change(lambda ledger: put_into_quarantine(ledger, more, anew))

    def release(self, address: str) -> bool:
        """Offer a device again, and delete its fault.

        :returns: False if it was neither suspect nor in quarantine.
        :raises LedgerError: the file is lost or cannot be written.
        :raises nova_hpc.topology.model.AddressError: *address* is not a PCI address.
        """
        address = normalise_address(address)
        released = []

        def edit(ledger: Ledger) -> Ledger:
            device = ledger.device(address)
            if device.state is DeviceState.OFFERED:
                return ledger
            released.append(address)
            free = attrs.evolve(device, state=DeviceState.OFFERED, reason="", trial=None)
            return ledger.put({address: free})

        self.change(edit)
        return bool(released)

    # -- locks ----------------------------------------------------------------------

    @property
    def locks(self) -> Path:
        """The directory of the locks of single devices, beside the file."""
        return self.path.with_name(f".{self.path.name}.locks")

    @contextlib.contextmanager
    def locked(self, name: str, patience: float = _PATIENCE) -> Iterator[None]:
        """Lock the device at address *name*, or the step of that name, against others.

        :param patience: seconds to wait; 0 gives up at once.
        :raises LedgerError: the lock is held, or cannot be taken.
        """
        what = f"device {name}" if ":" in name else f"step {name}"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(handles.hold_folder(self.locks, make=True))
            except (OSError, ValueError) as error:
                text = f"cannot make the directory of locks {self.locks}: {error}"
                raise LedgerError(text) from error
            stack.enter_context(_locked_ledger(self.locks / name, what, patience))
            yield


def expect_whole(ledger: Ledger) -> None:
    """Check that the ledger is complete, before a command reports an empty result.

    :raises LedgerError: a part of the file cannot be read, so there may be entries in it.
    """
    if ledger.damaged:
        raise LedgerError(f"{'; '.join(ledger.problems)}; repair or remove the {_WHAT} first")


def put_into_quarantine(ledger: Ledger, reasons: Mapping[str, str], anew: bool = False) -> Ledger:
    """Return the ledger with more devices in quarantine; see :meth:`LedgerFile.quarantine`."""
    quarantined_before = ledger.quarantined
    trial = Trial(since=time.time())
    return ledger.put(
        {
            address: attrs.evolve(
                ledger.device(address), state=DeviceState.QUARANTINED, reason=reason, trial=trial
            )
            for address, reason in reasons.items()
            if anew or address not in quarantined_before
        }
    )


# -- files ---------------------------------------------------------------------------


def copy_of(path: Path) -> Path:
    """Return the path of the copy of the file at *path*."""
    return path.with_name(f".{path.name}.copy")


def _free_path_beside(path: Path, end: str) -> Path:
    """Return an unused path in the file's folder: its name, *end*, and a number if needed."""
    name = f"{path.name.removeprefix('.')}{end}"
    number = 1
    while (place := path.with_name(f"{name}-{number}" if number > 1 else name)).exists():
        number += 1
    return place


_Parsed = TypeVar("_Parsed")


@attrs.frozen
class _LedgerText:
    """The text of a file and of its copy; an error in place of an unreadable one."""

    file: str | OSError
    copy: str | OSError | None

    @classmethod
    def of(cls, path: Path) -> _LedgerText | None:
        """Read both; return None if there is no such file."""
        file = _read_text_or_error(path)
        return None if file is None else cls(file, _read_text_or_error(copy_of(path)))

    def parse(self, what: str, parse: Callable[[str], _Parsed], problems: list[str]) -> _Parsed:
        """Parse the file or else its copy; in the latter case add a text to *problems*.

        :raises WireError: neither can be read, or a later release has written them.
        """
        try:
            return _parse_ledger_text(self.file, parse)
        except LaterError as error:
            raise WireError(f"the {what} cannot be used: {error}") from error
        except WireError as error:
            problem = f"the {what} cannot be used: {error}"
            if self.copy is not None:
                with contextlib.suppress(WireError):
                    parsed = _parse_ledger_text(self.copy, parse)
                    problems.append(f"{problem}; its copy is used")
                    return parsed
            raise WireError(problem) from error


def _parse_ledger_text(text: str | OSError, parse: Callable[[str], _Parsed]) -> _Parsed:
    if isinstance(text, OSError):
        raise WireError(str(text)) from text
    return parse(text)


def _read_text_or_error(path: Path) -> str | OSError | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error


def _save_with_copy(path: Path, data: bytes) -> None:
    """Replace the file at *path*, and then its copy.

    :raises LedgerError: it cannot be written; the old file is still there.
    """
    try:
        _replace_file(path, data)
    except OSError as error:
        raise LedgerError(f"cannot write the {_WHAT} {path}: {error}") from error
    copy = copy_of(path)
    try:
        _replace_file(copy, data)
    except OSError:
        # An old copy is worse than none: it could restore outdated entries.
        with contextlib.suppress(OSError):
            copy.unlink()


def _try_writing_beside(path: Path, size: int) -> None:
    """Write *size* bytes beside the file at *path*, and remove them."""
    _write_file_beside(path, bytes(size)).unlink(missing_ok=True)


def _write_file_beside(path: Path, data: bytes) -> Path:
    """Write *data* to the disk, in a file beside that at *path*."""
    # Remove the draft of a killed writer: under the lock there is no other writer.
    prefix = glob.escape(atomic_files.draft_prefix_of(path))
    for old in path.parent.glob(f"{prefix}*{atomic_files.DRAFT_END}"):
        old.unlink(missing_ok=True)
    return atomic_files.write_draft(
        path, data, prepare=lambda handle: _adopt_folder_owner(handle, path.parent)
    )


def _replace_file(path: Path, data: bytes) -> None:
    atomic_files.replace_file(path, _write_file_beside(path, data))


def _adopt_folder_owner(handle: int, folder: Path) -> None:
    """Let the service read a file that an operator has written as root."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.fchown(handle, owner.st_uid, owner.st_gid)


# -- locks ---------------------------------------------------------------------------

#: By path. The locks of fasteners (POSIX) belong to a process, not to its threads,
#: and end when the process closes the file anywhere.
_threads: Final[dict[str, threading.Lock]] = {}
_threads_guard: Final = threading.Lock()


@contextlib.contextmanager
def _locked_ledger(path: Path, what: str, patience: float) -> Iterator[None]:
    """Lock against threads and processes; the lock ends with its process in any case."""
    end = time.monotonic() + patience
    with _threads_guard:
        mutex = _threads.setdefault(os.path.abspath(path), threading.Lock())  # noqa: PTH100
    if not mutex.acquire(timeout=patience):
        raise LedgerError(f"{what} is locked by another process or thread")
    try:
        with contextlib.ExitStack() as stack:
            try:
                made = stack.enter_context(_made_lock_file(path))
                # By its handle: a link that replaces the file now has no effect.
                lock = fasteners.InterProcessLock(
                    handles.path_of_handle(made), sleep_func=time.sleep
                )
                rest = max(0.0, end - time.monotonic())
                taken = lock.acquire(delay=_PAUSE, max_delay=_PAUSE, timeout=rest)
            except (OSError, ValueError, threading.ThreadError) as error:
                raise LedgerError(f"cannot lock {what}: {error}") from error
            if not taken:
                raise LedgerError(f"{what} is locked by another process or thread")
            stack.callback(lock.release)
            yield
    finally:
        mutex.release()


@contextlib.contextmanager
def _made_lock_file(path: Path) -> Iterator[int]:
    """Open the file of a lock, which the service can open; follow no link.

    :raises OSError: it cannot be created, or another kind of file is in its place.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with handles.hold_folder(path.parent) as folder:
        try:
            handle = os.open(path.name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        except FileExistsError:
            handle = os.open(path.name, flags, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "not a file", str(path))
            with contextlib.suppress(OSError):
                handles.give_to_owner_above(handle, folder)
            yield handle
        finally:
            os.close(handle)
