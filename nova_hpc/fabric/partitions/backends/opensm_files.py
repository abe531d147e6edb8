# SPDX-License-Identifier: Apache-2.0
"""The files that the agent shares with opensm: partitions, options, log.

A file of partitions is replaced under a lock, and never by an earlier reading. The highest ticket
is in a file of its own beside it, for two reasons. A reading that changes nothing moves the ticket,
too, and a file of partitions that was edited by hand proves no ticket.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import fasteners
from oslo_log import log

from nova_hpc.fabric.partitions.backends.base import StaleReadingError, SubnetManagerError
from nova_hpc.fabric.partitions.other_managers import (
    describe_other_manager,
    find_manager_places,
)
from nova_hpc.fabric.partitions.partition_file import body_of_file, parse_file
from nova_hpc.fabric.partitions.port_tables import FabricPorts

LOG: Final = log.getLogger(__name__)

#: Seconds for which another agent on this host may have the lock; a trial takes some.
_PATIENCE: Final = 30.0
_MODE: Final = 0o644
#: The most bytes of a log that are read.
_MOST_OF_LOG: Final = 1 << 22
#: A manager is reported for so many seconds after opensm's log mentioned it.
_MANAGER_TIME: Final = 300.0
_COMPLAINT: Final = re.compile(r"^.*(?:PARSE ERROR|retrying with default config).*$", re.MULTILINE)


def read_text(path: Path) -> str | None:
    """Read one of opensm's files; None if it does not exist.

    :raises SubnetManagerError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SubnetManagerError(f"{path} cannot be read: {error.strerror}") from error


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically; its mode and owner stay.

    :raises SubnetManagerError: it cannot be written; the old one is there.
    """
    handle, beside = -1, ""
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with contextlib.suppress(FileNotFoundError):
            before = path.stat()
            if os.geteuid() == 0:
                os.fchown(handle, before.st_uid, before.st_gid)
        os.fchmod(handle, _MODE)
        with os.fdopen(handle, "wb") as file:
            handle = -1
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        Path(beside).rename(path)
        beside = ""
        _sync_folder(path.parent)
    except OSError as error:
        raise SubnetManagerError(
            f"{path} cannot be written: {error.strerror}; the former partitions stay in force"
        ) from error
    finally:
        if handle >= 0:
            os.close(handle)
        if beside:
            with contextlib.suppress(OSError):
                Path(beside).unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class PartitionStore:
    """The file of partitions, and the fence that rejects writes of an older reading."""

    def __init__(self, path: Path) -> None:
        #: A link, such as of configuration management, stays one.
        self.path = path.resolve()
        self._lock = self.path.with_name(f".{self.path.name}.lock")
        self.ticket_path = self.path.with_name(f".{self.path.name}.ticket")

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock that keeps other agents on this host from writing.

        :raises SubnetManagerError: another agent has the lock, or the folder does not exist.
        """
        lock = fasteners.InterProcessLock(str(self._lock))
        try:
            taken = lock.acquire(timeout=_PATIENCE)
        except OSError as error:
            raise SubnetManagerError(f"{self._lock} cannot be locked: {error}") from error
        if not taken:
            raise SubnetManagerError(
                f"another agent holds {self._lock} for over {_PATIENCE:.0f} seconds: is one hung?"
            )
        try:
            yield
        finally:
            lock.release()

    def read(self) -> str | None:
        """Read the present text of opensm's file of partitions; None if it does not exist.

        :raises SubnetManagerError: it cannot be read.
        """
        return read_text(self.path)

    def pass_fence(self, ticket: int, text: str | None) -> None:
        """Store *ticket* as the latest one; an older ticket is refused. The caller holds the lock.

        :param text: the file as it is.
        :raises StaleReadingError: a later reading has gone through.
        :raises SubnetManagerError: the ticket cannot be kept.
        """
        latest = self.latest_ticket(text)
        if ticket < latest:
            raise StaleReadingError(
                f"reading {ticket} is older than {latest}, which is in force: another agent is at "
                "work. If Neutron's database has been put back to an older state, remove "
                f"{self.ticket_path} and {self.path}, and start the agent again"
            )
        if ticket > latest:
            # In one step: a full disk must not leave an empty file, which lets all pass.
            replace_text(self.ticket_path, f"{ticket}\n")

    def latest_ticket(self, text: str | None) -> int:
        """Return the last stored ticket (number of a reading of the desired state); 0 if none was.

        :param text: the file as it is.
        """
        return max(self._read_ticket(), _ticket_of_file(text))

    def _read_ticket(self) -> int:
        try:
            return int(self.ticket_path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            LOG.warning("%s has no readable tickets: %s", self.ticket_path, error)
            return 0


def _ticket_of_file(text: str | None) -> int:
    """Return the ticket in a file that an agent wrote; 0 if the file is absent or was changed."""
    if text is None or body_of_file(text) is None:
        return 0
    try:
        return parse_file(text).ticket
    except ValueError:
        return 0


class OpensmLog:
    """The lines that opensm added to its log since a mark.

    :param now: a monotonic clock, in seconds.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._mark: tuple[int, int] = (0, 0)
        #: The end of the last search for managers, and the time of each manager's last mention.
        self._looked: tuple[int, int] = (0, 0)
        self._managers: dict[str, float] = {}

    def set_mark(self) -> None:
        """Remember the present end of opensm's log; :meth:`read_complaints` starts there."""
        self._mark = self._end()

    def _end(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size

    def read_complaints(self) -> tuple[str, ...]:
        """Return the lines after the mark that report that opensm has rejected a file.

        :raises SubnetManagerError: it cannot be read.
        """
        return tuple(_COMPLAINT.findall(self._read_from(self._mark)))

    def find_other_managers(self) -> tuple[str, ...]:
        """Return the places of other subnet managers with another sm_key, from opensm's log.

        A place stays for a time after its last line in the log: opensm mentions them in its sweeps
        of the whole fabric, and the last may be long ago.

        :raises SubnetManagerError: the log cannot be read.
        """
        end = self._end()
        if end != self._looked:
            moment = self._now()
            found = find_manager_places(self._read_from(self._looked))
            self._managers |= dict.fromkeys(found, moment)
            self._looked = end
        least = self._now() - _MANAGER_TIME
        self._managers = {place: at for place, at in self._managers.items() if at >= least}
        return tuple(self._managers)

    def describe_other_managers(self, fabric: FabricPorts) -> tuple[str, ...]:
        """Return one sentence on each manager of :meth:`find_other_managers`; () if unknown.

        An unreadable log is reported elsewhere.
        """
        with contextlib.suppress(SubnetManagerError):
            places = self.find_other_managers()
            return tuple(describe_other_manager(place, fabric) for place in places)
        return ()

    def _read_from(self, mark: tuple[int, int]) -> str:
        inode, start = mark
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                # Another file, or one that was emptied: all of it is new.
                if status.st_ino != inode or status.st_size < start:
                    start = 0
                file.seek(max(start, status.st_size - _MOST_OF_LOG))
                return file.read(_MOST_OF_LOG).decode("utf-8", "replace")
        except OSError as error:
            raise SubnetManagerError(
                f"opensm's log {self._path} cannot be read ({error.strerror}): set "
                "[hpc_fabric_agent]opensm_log"
            ) from error
