# SPDX-License-Identifier: Apache-2.0
"""Erases an NVMe disk, and proves it: the check ``nvme`` of a device's stage.

It needs the kernel's driver ``nvme`` on the disk, and root. Sanitize erases all user data of the
disk, including deleted namespaces: crypto erase if the controller has it, else
block erase. A disk without Sanitize gets Format NVM with secure erase, namespace by namespace,
if all of its space belongs to namespaces. The proof has two parts:

* the sanitize log (page 0x81) reports at the end that this very erase was successful;
* sampled blocks do not hold their former content. Some have a marker that is written before the
  erase, at fixed places, so that an interrupted erase is judged as well.

The check waits for an erase in progress. This erase counts if this host has noted its start;
otherwise the last server may have started it, and the disk is erased again. This module needs only
the standard library. *Untested on hardware.*
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError
from nova_hpc.tenancy.hygiene.nvme_commands import (
    ACTIVE,
    ALLOCATED,
    CONTROLLER,
    CONTROLLERS,
    IDENTIFY,
    IDENTIFY_SIZE,
    NAMESPACE,
    AdminCommand,
    NvmeController,
    SanitizeAction,
    SanitizeState,
    count_controllers,
    decode_controller,
    decode_namespaces,
    decode_sanitize_log,
    format_command,
    log_command,
    pack_command,
    sanitize_command,
)

#: ``_IOWR('N', 0x41, struct nvme_admin_cmd)``.
_ADMIN_IOCTL: Final = 0xC0484E41
#: Sampled blocks of a namespace: at fixed places, and at random ones.
_FIXED, _RANDOM = 64, 64
#: Seconds for the kernel to show the namespaces, and between two reads of the log.
_SCAN: Final = 20.0
_PAUSE: Final = 0.2
_MARK: Final = b"nova-hpc erase marker "
_MARKED: Final = re.compile(re.escape(_MARK))
_CLASS: Final = "0x010802"
#: Notes of erases that this host has started. They last until the next boot, and survive a killed
#: service.
_NOTES: Final = Path("/run/nova-hpc")
#: A namespace below its controller; with the kernel's multipath it is a path (c), and has no device
#: of its own.
_DISK: Final = re.compile(r"(nvme\d{1,5})(?:c\d{1,5})?(n\d{1,5})", re.ASCII)


class NvmeStatusError(Exception):
    """An NVMe controller refused an admin command; has the opcode and the status."""

    def __init__(self, opcode: int, status: int) -> None:
        super().__init__(f"command {opcode:#04x} ended with status {status:#06x}")
        self.status = status


@dataclass(frozen=True)
class NvmeNamespace:
    """A namespace of an NVMe disk in the kernel's view: number, block size in bytes, and blocks."""

    number: int
    #: Bytes of a block, and number of blocks.
    block: int
    blocks: int
    #: Name of its block device, e.g. ``nvme0n1``.
    name: str = ""


def choose_blocks(blocks: int) -> list[int]:
    """Return the numbers of blocks to test: the first, the last, and evenly spaced ones between."""
    if blocks <= _FIXED:
        return list(range(blocks))
    return sorted({number * (blocks - 1) // (_FIXED - 1) for number in range(_FIXED)})


def make_marker(namespace: NvmeNamespace, block: int) -> bytes:
    """Return the content of a marked block, which no other block has."""
    text = _MARK + f"{namespace.number} {block} ".encode()
    return (text * (namespace.block // len(text) + 1))[: namespace.block]


# -- a disk -------------------------------------------------------------------------------


class NvmeDisk(abc.ABC):
    """Interface to an NVMe disk that accepts admin commands, reads and writes."""

    @abc.abstractmethod
    def send(self, command: AdminCommand) -> bytes:
        """Send an admin command; return its data.

        :raises NvmeStatusError: the controller refused it.
        :raises OSError: it was not sent.
        """

    @abc.abstractmethod
    def list_namespaces(self) -> tuple[NvmeNamespace, ...]:
        """Return the namespaces that can be read and written here."""

    @abc.abstractmethod
    def read(self, namespace: NvmeNamespace, block: int) -> bytes:
        """Read a block from the disk itself. :raises OSError: it cannot be read."""

    @abc.abstractmethod
    def write(self, namespace: NvmeNamespace, block: int, data: bytes) -> None:
        """Write a block to the disk itself. :raises OSError: it cannot be written."""


def erase_disk(
    disk: NvmeDisk, note: Path, sleep: Callable[[float], object] = time.sleep
) -> dict[str, Any]:
    """Erase a disk that no server has, and prove it.

    :param note: file with the erase of the disk that this host has started.
    :returns: the actions; ``proof`` is for people.
    :raises UncleanError: it is not erased.
    :raises UnableError: its state is unknown; another try may succeed.
    """
    try:
        return _NvmeErase(disk, note, sleep).run()
    except NvmeStatusError as error:
        raise UncleanError(f"it refuses to be erased: {error}") from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UnableError(f"it cannot be read or written: {reason}") from error


@dataclass(frozen=True)
class _NvmeErase:
    disk: NvmeDisk
    note: Path
    sleep: Callable[[float], object]

    def run(self) -> dict[str, Any]:
        """Erase the disk in three phases: mark sampled blocks, erase, and compare them.

        If an erase of this host was in progress, the check waits for it and only compares.

        :raises UncleanError: the disk is not erased.
        :raises UnableError: the state of the disk is unknown.
        """
        controller = decode_controller(self._identify(CONTROLLER))
        if controller.is_virtual or (controller.may_be_shared and not self._is_alone()):
            raise UnableError("other controllers reach its namespaces, so it is no disk of its own")
        resumed = None
        if controller.sanitizes and (state := self._read_log()).is_running:
            state = self._wait()
            resumed = self._judge_interrupted(state)
        self.note.unlink(missing_ok=True)
        namespaces = self._namespaces()
        if resumed is None:
            before = self._mark(namespaces)
            method = self._erase(controller, namespaces)
        else:
            before, method = {}, f"sanitize, {resumed.words}, begun earlier"
        blocks = self._compare(namespaces, before)
        return {"method": method, "blocks": blocks, "proof": f"{method}; {blocks} blocks read back"}

    def _is_alone(self) -> bool:
        """Whether its NVM subsystem has no other controller; False if it does not answer."""
        try:
            return count_controllers(self._identify(CONTROLLERS)) == 1
        except NvmeStatusError:
            return False

    def _judge_interrupted(self, state: SanitizeState) -> SanitizeAction | None:
        """Return the erase that was in progress; None if it does not count."""
        noted = self.note.read_text() if self.note.is_file() else ""
        if not (state.is_done and state.is_erased and noted == str(state.command)):
            return None
        return next(
            (action for action in SanitizeAction if action.value == state.command & 7), None
        )

    def _identify(self, cns: int, number: int = 0) -> bytes:
        return self.disk.send(AdminCommand(IDENTIFY, number, cns, size=IDENTIFY_SIZE))

    def _read_log(self) -> SanitizeState:
        return decode_sanitize_log(self.disk.send(log_command()))

    def _wait(self) -> SanitizeState:
        """Return the log when no erase is in progress. The process has a deadline."""
        while (state := self._read_log()).is_running:
            self.sleep(_PAUSE)
        return state

    def _namespaces(self) -> tuple[NvmeNamespace, ...]:
        active = decode_namespaces(self._identify(ACTIVE))
        if not active:
            raise UncleanError("it has no namespace that a server could use")
        shown = self.disk.list_namespaces()
        if sorted(namespace.number for namespace in shown) != sorted(active):
            raise UnableError("the kernel does not show all of its namespaces")
        if any(namespace.block <= 0 or namespace.blocks <= 0 for namespace in shown):
            raise UnableError("the kernel shows a namespace without blocks")
        return shown

    def _mark(self, namespaces: Sequence[NvmeNamespace]) -> dict[tuple[int, int], bytes]:
        """Store the content of random blocks, and write markers into fixed ones."""
        before = {}
        for namespace in namespaces:
            fixed = choose_blocks(namespace.blocks)
            for _ in range(_RANDOM):
                block = secrets.randbelow(namespace.blocks)
                before[namespace.number, block] = _digest(self.disk.read(namespace, block))
            for block in fixed:
                self.disk.write(namespace, block, make_marker(namespace, block))
                before[namespace.number, block] = _digest(make_marker(namespace, block))
        return before

    def _erase(self, controller: NvmeController, namespaces: Sequence[NvmeNamespace]) -> str:
        """Erase with Sanitize, else with Format NVM if that reaches all of the disk's space.

        :returns: the method, for people.
        :raises UncleanError: neither is possible, or Sanitize has failed.
        """
        if controller.sanitizes:
            command = sanitize_command(controller.sanitizes[0])
            self.note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.note.write_text(str(command.cdw10))
            self.disk.send(command)
            state = self._wait()
            self.note.unlink()
            if not state.is_done or state.command != command.cdw10:
                raise UncleanError(f"its sanitize log says status {state.status} at the end")
            return f"sanitize, {controller.sanitizes[0].words}"
        if not controller.has_format:
            raise UncleanError("it has neither Sanitize (crypto or block erase) nor Format NVM")
        active = sorted(namespace.number for namespace in namespaces)
        hidden = controller.manages_namespaces and (
            controller.unallocated != 0
            or sorted(decode_namespaces(self._identify(ALLOCATED))) != active
        )
        if hidden:
            raise UncleanError("it has no Sanitize, and Format does not reach all of its space")
        for number in active:
            body = self._identify(NAMESPACE, number)
            self.disk.send(format_command(number, body, controller.formats_by_key))
        return f"format, {'crypto' if controller.formats_by_key else 'user data'} erase"

    def _compare(
        self, namespaces: Sequence[NvmeNamespace], before: Mapping[tuple[int, int], bytes]
    ) -> int:
        """Check that sampled blocks do not hold their former content; return their number."""
        count = 0
        for namespace in namespaces:
            random = {block for number, block in before if number == namespace.number}
            for block in sorted({*choose_blocks(namespace.blocks), *random}):
                data = self.disk.read(namespace, block)
                count += 1
                if _MARKED.search(data) or (
                    before.get((namespace.number, block)) == _digest(data) and len(set(data)) > 1
                ):
                    raise UncleanError(
                        f"block {block} of namespace {namespace.number} holds after the erase "
                        "what it held before"
                    )
        return count


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# -- the kernel ---------------------------------------------------------------------------


class KernelDisk(NvmeDisk):
    """An NVMe disk that is bound to the kernel's driver."""

    def __init__(self, folder: Path, name: str, dev: Path) -> None:
        self._folder, self._name, self._dev = folder, name, dev
        path = dev / name
        self._handle = _repeat_while_it_starts(lambda: os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def close(self) -> None:
        """Close the controller's device file."""
        os.close(self._handle)

    def send(self, command: AdminCommand) -> bytes:
        """Send an admin command to the controller; return the data that it reads.

        See :meth:`NvmeDisk.send`.
        """
        with mmap.mmap(-1, max(command.size, mmap.PAGESIZE)) as buffer:
            # An address in this process, valid as long as the mapping.
            window = (ctypes.c_char * len(buffer)).from_buffer(buffer)
            try:
                body = pack_command(command, ctypes.addressof(window) if command.size else 0)
                status = _repeat_while_it_starts(
                    lambda: fcntl.ioctl(self._handle, _ADMIN_IOCTL, body, True)
                )
            finally:
                del window
            if status:
                raise NvmeStatusError(command.opcode, status)
            return buffer[: command.size]

    def list_namespaces(self) -> tuple[NvmeNamespace, ...]:
        """List the disk's namespaces; wait up to a bound while the kernel's scan still runs.

        See :meth:`NvmeDisk.list_namespaces`.
        """
        wanted = decode_namespaces(self.send(AdminCommand(IDENTIFY, 0, ACTIVE, size=IDENTIFY_SIZE)))
        end = time.monotonic() + _SCAN
        while True:
            shown = tuple(self._shown())
            if {namespace.number for namespace in shown} == set(wanted) or time.monotonic() > end:
                return shown
            time.sleep(_PAUSE)

    def _shown(self) -> Iterator[NvmeNamespace]:
        for place in sorted((self._folder / "nvme" / self._name).iterdir()):
            match = _DISK.fullmatch(place.name)
            if match is None:
                continue
            with contextlib.suppress(OSError, ValueError):
                block = int((place / "queue/logical_block_size").read_text())
                sectors = int((place / "size").read_text())
                number = int((place / "nsid").read_text())
                yield NvmeNamespace(number, block, sectors * 512 // block, match[1] + match[2])

    def read(self, namespace: NvmeNamespace, block: int) -> bytes:
        """Read one block of a namespace past the page cache; see :meth:`NvmeDisk.read`."""
        with self._opened(namespace, os.O_RDONLY) as handle, mmap.mmap(-1, namespace.block) as page:
            if os.preadv(handle, [page], block * namespace.block) != namespace.block:
                raise OSError(errno.EIO, "short read")
            return page[:]

    def write(self, namespace: NvmeNamespace, block: int, data: bytes) -> None:
        """Write one block of a namespace past the page cache; see :meth:`NvmeDisk.write`."""
        with self._opened(namespace, os.O_WRONLY) as handle, mmap.mmap(-1, namespace.block) as page:
            page[:] = data
            if os.pwritev(handle, [page], block * namespace.block) != namespace.block:
                raise OSError(errno.EIO, "short write")

    @contextlib.contextmanager
    def _opened(self, namespace: NvmeNamespace, mode: int) -> Iterator[int]:
        # Bypass the page cache, which would return the written data and not the disk's.
        flags = mode | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self._dev / namespace.name, flags)
        try:
            yield handle
        finally:
            os.close(handle)


def _repeat_while_it_starts(action: Callable[[], int]) -> int:
    """Repeat an action that the driver refuses while the controller starts."""
    end = time.monotonic() + _SCAN
    while True:
        try:
            return action()
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


def open_kernel_disk(device: Path, dev: Path = Path("/dev")) -> KernelDisk:
    """Open the disk of a device's folder in sysfs.

    :raises UnableError: it is not an NVMe disk on the kernel's driver, or cannot be opened.
    """
    try:
        if (device / "class").read_text().strip() != _CLASS:
            raise UnableError("it is no NVMe disk")
        if (device / "driver").resolve().name != "nvme":
            raise UnableError("it is not bound to nvme")
        names = [place.name for place in (device / "nvme").iterdir()]
        if len(names) != 1 or not re.fullmatch(r"nvme\d{1,5}", names[0], re.ASCII):
            raise UnableError("the kernel shows no controller of it")
        return KernelDisk(device, names[0], dev)
    except OSError as error:
        raise UnableError(f"it cannot be opened: {error.strerror}") from error


def check(device: Path, pins: Mapping[str, Any]) -> Any:
    """Erase an NVMe disk and prove it; wait first until the kernel's driver has bound it.

    See :data:`nova_hpc.tenancy.hygiene.clean_check.Check`.
    """
    end = time.monotonic() + _SCAN
    # The driver binds a disk in the background.
    while not (device / "nvme").is_dir() and (device / "class").exists() and time.monotonic() < end:
        time.sleep(_PAUSE)
    disk = open_kernel_disk(device)
    try:
        return erase_disk(disk, _NOTES / f"erase-{device.name}")
    finally:
        disk.close()


def read_erase_progress(device: Path) -> int | None:
    """Return the progress of a disk's erase in percent; None if there is none, or unknown."""
    try:
        disk = open_kernel_disk(device)
    except UnableError:
        return None
    try:
        state = decode_sanitize_log(disk.send(log_command()))
    except (NvmeStatusError, OSError, UnableError):
        return None
    finally:
        disk.close()
    return state.percent if state.is_running else None
