# SPDX-License-Identifier: Apache-2.0
"""Keeps one virtual node alive: starts QEMU, reads signs of life, starts QEMU again.

Each node has its own supervisor process (``python -m nova_hpc_lab.node.supervisor FOLDER``), which
continues after the command that started it. It ends only the QEMU that it has started itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab.node.contract import Plan
from nova_hpc_lab.state import write

#: The supervisor gives a node up after so many consecutive failures before the node is up.
MAX_FAILURES: Final = 4
#: From this number of consecutive failures on, the node starts with a fresh disk.
FRESH_DISK: Final = 2

#: Bytes at the end of the serial log, which contain the kernel's last messages.
_LAST_WORDS: Final = 64 * 1024
_STAMP: Final = re.compile(r"^\[ *\d+\.\d+\](?:\[[^]]*\])? ")
_DEATH: Final = re.compile(r"BUG: |Oops: |Unable to handle|general protection fault|Kernel panic")
_WHERE: Final = re.compile(r"RIP: \w+:(\w+)\+")
#: Lines of the kernel's report that are kept: registers and the first functions of the stack.
_SHOWN: Final = 40


@attrs.frozen
class Patience:
    """Times to wait, in seconds. Emulation on a busy machine pauses for half a minute."""

    #: A node counts as frozen after this time without a sign of life since the start, and since
    #: the last sign.
    first_sign: float = 180.0
    next_sign: float = 120.0
    #: Between two checks.
    look: float = 2.0
    #: For QEMU to end, before it is killed.
    end: float = 10.0


@attrs.define
class Beat:
    """The signs of life of one run of a node, as they arrive in a file."""

    path: Path
    _seen: int = 0
    #: When the last one arrived, on the clock of :func:`time.monotonic`.
    last: float | None = None
    phase: str = "booting"

    def look(self, now: float) -> None:
        """Read new signs of life of the node from its heartbeat file.

        :param now: time of a monotonic clock, in seconds.
        """
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._seen)
                data = stream.read()
        except OSError:
            return
        whole, newline, _ = data.rpartition(b"\n")
        if not newline:
            return
        self._seen += len(whole) + 1
        self.last = now
        _, _, phase = whole.decode(errors="replace").splitlines()[-1].partition(" ")
        self.phase = phase or self.phase

    def silent(self, now: float, started: float, patience: Patience) -> bool:
        """Whether the last sign of life is too long ago."""
        if self.last is None:
            return now - started > patience.first_sign
        return now - self.last > patience.next_sign


class _Stop:
    """An event that a signal handler sets and the main thread waits for.

    A handler runs between any two steps of the main thread. The main thread holds the lock of a
    ``threading.Event`` while it begins to wait. So a handler that sets the event can wait for its
    own thread forever. A byte in a pipe needs no lock.
    """

    def __init__(self) -> None:
        self._told = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        """Set the event; safe in a signal handler."""
        self._told = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"x")

    def is_set(self) -> bool:
        """Return whether a signal has requested the end of the supervisor."""
        return self._told

    def wait(self, seconds: float) -> None:
        """Wait until the event is set, at most *seconds*."""
        select.select([self._reader], [], [], seconds)


@attrs.define
class Supervisor:
    """Supervisor of one virtual node: it restarts QEMU until a signal stops it."""

    folder: Path
    plan: Plan
    patience: Patience = Patience()
    _stop: _Stop = attrs.field(factory=_Stop, init=False)
    _restarts: int = attrs.field(default=0, init=False)
    #: Consecutive failures before the node was up.
    _failures: int = attrs.field(default=0, init=False)
    _reason: str = attrs.field(default="", init=False)

    def run(self) -> int:
        """Start the node, and start it again each time it freezes or dies.

        :returns: 0 after a signal, or 1 if the node is given up.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        while not self._stop.is_set():
            try:
                was_up = self._once()
            except (OSError, subprocess.SubprocessError) as err:
                # A missing program or a full disk would fail again at each start.
                self._reason = f"failed: {err}"
                self._log(self._reason)
                self._tell("failed", None, Beat(Path(self.plan.heartbeat)), 0.0)
                return 1
            if self._stop.is_set():
                break
            self._restarts += 1
            if self._reason.startswith("failed"):
                # A failure that the node itself reports rarely disappears by itself.
                self._failures += 2
            else:
                self._failures = 0 if was_up else self._failures + 1
            self._log(f"{self._reason}; restart number {self._restarts}")
            if self._failures >= MAX_FAILURES:
                self._tell("failed", None, Beat(Path(self.plan.heartbeat)), 0.0)
                return 1
            if self._failures >= FRESH_DISK:
                Path(self.plan.disk).unlink(missing_ok=True)
        self._tell("absent", None, Beat(Path(self.plan.heartbeat)), 0.0)
        return 0

    def _once(self) -> bool:
        """Run QEMU once, to its end; return whether the node was up."""
        heartbeat = Path(self.plan.heartbeat)
        for path in (heartbeat, Path(self.plan.qmp)):
            path.unlink(missing_ok=True)
        make_overlay(Path(self.plan.disk), Path(self.plan.backing))
        beat = Beat(heartbeat)
        serial = Path(self.plan.serial) if self.plan.serial else None
        told = serial.stat().st_size if serial is not None and serial.exists() else 0
        with (self.folder / "qemu.log").open("ab") as log:
            qemu = subprocess.Popen(
                self.plan.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        started = time.monotonic()
        was_up = False
        try:
            while qemu.poll() is None and not self._stop.is_set():
                beat.look(time.monotonic())
                was_up = was_up or beat.phase == "compute"
                if beat.phase.startswith("failed"):
                    self._reason = beat.phase
                    break
                if beat.silent(time.monotonic(), started, self.patience):
                    self._reason = f"no sign of life (last phase: {beat.phase})"
                    self._tell("silent", qemu.pid, beat, started)
                    break
                state = "up" if beat.phase == "compute" else "starting"
                self._tell(state, qemu.pid, beat, started)
                self._stop.wait(self.patience.look)
            else:
                self._reason = f"QEMU ended with status {qemu.poll()}, see qemu.log"
        finally:
            self._end(qemu)
        if serial is not None and not self._stop.is_set():
            self._add_last_words(serial, told)
        return was_up

    def _add_last_words(self, serial: Path, offset: int) -> None:
        """Add the start of the kernel's crash report to the reason, and all of it to the log."""
        words = last_words(serial, offset)
        if words:
            where = next((found[1] for line in words if (found := _WHERE.search(line))), "")
            self._reason = f"{words[0]}{f' in {where}' if where else ''}; {self._reason}"
            for line in words:
                self._log(f"serial: {line}")

    def _end(self, qemu: subprocess.Popen[bytes]) -> None:
        """End QEMU so that its disk is consistent; kill it only if it does not react."""
        if qemu.poll() is None:
            with contextlib.suppress(OSError):
                qmp(Path(self.plan.qmp), "quit")
        for step in (qemu.terminate, qemu.kill):
            try:
                qemu.wait(self.patience.end)
                return
            except subprocess.TimeoutExpired:
                step()
        qemu.wait()

    def _tell(self, state: str, pid: int | None, beat: Beat, started: float) -> None:
        # Wall-clock times, since other processes read them.
        offset = time.time() - time.monotonic()
        document = {
            "state": state,
            "supervisor_pid": os.getpid(),
            "qemu_pid": pid,
            "ssh_port": self.plan.ssh_port,
            "started": started + offset if pid else None,
            "heartbeat": None if beat.last is None else beat.last + offset,
            "phase": beat.phase,
            "restarts": self._restarts,
            "reason": self._reason,
        }
        write(self.folder / "status.json", json.dumps(document))

    def _log(self, text: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


def last_words(serial: Path, offset: int) -> list[str]:
    """Return the lines of a kernel's crash report, without time stamps; [] if there is none.

    :param serial: the node's serial log, to which each run appends.
    :param offset: size of the log when the run began, in bytes.
    """
    try:
        with serial.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(offset, size - _LAST_WORDS))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    lines = [_STAMP.sub("", line.rstrip()) for line in text.replace("\r", "").splitlines()]
    first = next((i for i, line in enumerate(lines) if _DEATH.search(line)), len(lines))
    return lines[first : first + _SHOWN]


def make_overlay(disk: Path, backing: Path) -> None:
    """Make the node's own disk over the image, unless it is intact and belongs to this image."""
    mark = disk.with_suffix(".image")
    known = backing.stat()
    # The path is not enough: another image can be made at the same place.
    identity = f"{backing} {known.st_size} {known.st_mtime_ns}\n"
    with contextlib.suppress(OSError):
        check = ["qemu-img", "check", "-q", "-r", "leaks", str(disk)]
        if (
            mark.read_text() == identity
            and disk.exists()
            and not subprocess.run(check, check=False).returncode
        ):
            return
    disk.unlink(missing_ok=True)
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(backing), str(disk)],
        check=True,
    )
    write(mark, identity)


def qmp(path: Path, command: str) -> None:
    """Send one command to QEMU's monitor.

    :raises OSError: QEMU does not listen, or the connection ended early.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        stream = connection.makefile("rwb")
        stream.readline()
        for name in ("qmp_capabilities", command):
            stream.write(json.dumps({"execute": name}).encode() + b"\n")
            stream.flush()
            stream.readline()


def main() -> int:
    """Run the supervisor of the node whose folder is the only argument."""
    folder = Path(sys.argv[1])
    return Supervisor(folder, Plan.load(folder)).run()


if __name__ == "__main__":
    sys.exit(main())
