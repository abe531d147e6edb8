# SPDX-License-Identifier: Apache-2.0
"""Processes of the lab: each in its own session, with a pid file and a log.

A pid file contains the pid, the start time of the process (in ticks since boot) and the boot's id.
So a pid that the system has reused is never taken for the lab's. Every process of a lab, and every
process that it starts, has the lab's state directory in its environment. After a crash, processes
without a pid file are found by this variable.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import psutil

from nova_hpc_lab.errors import InterruptedStepError, LabError
from nova_hpc_lab.state import Paths, write

#: Set to the lab's state directory in the environment of all its processes.
MARKER: Final = "NOVA_HPC_LAB"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def environment(paths: Paths, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build the environment for a process of the lab.

    It is this process's environment without the settings of OpenStack clients (``OS_*``) and
    without proxies, because all services are on the loopback.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OS_") and not name.lower().endswith("_proxy")
    }
    # Without SPT_NOENV, setproctitle would overwrite /proc/PID/environ, which contains the marker.
    return passed | {MARKER: str(paths.state), "SPT_NOENV": "1"} | dict(extra or {})


@attrs.frozen
class Process:
    """One long-running process of the lab, identified by its name."""

    name: str
    paths: Paths

    @property
    def pid_file(self) -> Path:
        """A JSON file with pid, start time in ticks since boot, and boot id."""
        return self.paths.run / f"{self.name}.pid"

    @property
    def log(self) -> Path:
        """The file of the process's standard output and error."""
        return self.paths.logs / f"{self.name}.log"

    def spawn(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
        """Start the process in the background, in its own session, unless it runs.

        :param environ: variables that are added to :func:`environment`.
        :returns: the pid of the new process, or of the running one.
        :raises LabError: the program cannot be started.
        """
        running = self.pid()
        if running is not None:
            return running
        with self.log.open("ab") as log:
            try:
                # The process is not waited for: it continues after this command.
                child = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(self.paths, environ),
                    cwd=self.paths.state,
                    start_new_session=True,
                )
            except OSError as err:
                raise LabError(f"cannot start {self.name}: {argv[0]}: {err.strerror}") from err
        identity = {"pid": child.pid, "start": _ticks(child.pid), "boot": _boot_id()}
        write(self.pid_file, json.dumps(identity))
        return child.pid

    def pid(self) -> int | None:
        """Return the pid of the running process; None if it does not run (any more)."""
        try:
            identity = json.loads(self.pid_file.read_text())
            pid = int(identity["pid"])
            start = _ticks(pid)
            # The start time is None for a process that has ended.
            if start is not None and (identity["boot"], identity["start"]) == (_boot_id(), start):
                return pid
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def stop(self, grace: float = 30.0) -> bool:
        """End the process and all its descendants; True if it was running.

        :param grace: seconds between SIGTERM and SIGKILL.
        """
        pid = self.pid()
        if pid is not None:
            end(_family(pid), first=pid, grace=grace)
        self.pid_file.unlink(missing_ok=True)
        return pid is not None

    def tail(self, lines: int = 12) -> str:
        """Return the end of the process's log, for an error message; "" if it is unreadable."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 16384))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def end(processes: Iterable[psutil.Process], first: int | None, grace: float) -> None:
    """Send SIGTERM to *processes*, wait, and kill those that are left.

    :param first: the only pid that gets SIGTERM; the others end by themselves or are killed. None
        to send it to all.
    :param grace: seconds to wait before killing.
    """
    members = list(processes)
    for member in members:
        if first is None or member.pid == first:
            with contextlib.suppress(psutil.Error):
                member.terminate()
    leaders = [member for member in members if first is None or member.pid == first]
    psutil.wait_procs(leaders, timeout=grace)
    _, alive = psutil.wait_procs(members, timeout=1.0)
    for member in alive:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(alive, timeout=10.0)


def strays(paths: Paths, known: Iterable[int] = ()) -> list[psutil.Process]:
    """Find running processes with this lab's marker in their environment.

    :param known: pids of the lab's known processes. They, their sessions and their descendants are
        left out, and so are the calling process and its ancestors.
    """
    accounted = set(known)
    callers = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in callers or process.environ().get(MARKER) != str(paths.state):
                continue
            family = {process.pid, os.getsid(process.pid)}
            family.update(parent.pid for parent in process.parents())
            if not family & accounted:
                found.append(process)
    return found


def _family(pid: int) -> list[psutil.Process]:
    """List a process, the processes of its session, and all its descendants."""
    members = set()
    with contextlib.suppress(psutil.Error):
        members.update(psutil.Process(pid).children(recursive=True))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == pid or os.getsid(process.pid) == pid:
                members.add(process)
    return list(members)


def _ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None for a dead one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command, in parentheses, may itself contain blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()


@attrs.define
class Tools:
    """Runs short-lived programs, and ends them all when the command is interrupted."""

    paths: Paths
    _running: set[subprocess.Popen[bytes]] = attrs.field(factory=set, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    #: Set when all programs have to end as soon as possible.
    aborted: threading.Event = attrs.field(factory=threading.Event, init=False)

    def run(self, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Run a program to its end; its output is appended to the log *name*.

        :raises LabError: it cannot be started, it failed, or it was aborted.
        """
        process = Process(name, self.paths)
        with process.log.open("ab") as log:
            with self._guard:
                if self.aborted.is_set():
                    raise InterruptedStepError
                try:
                    child = subprocess.Popen(
                        list(argv),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment(self.paths, environ),
                        cwd=self.paths.state,
                        start_new_session=True,
                    )
                except OSError as err:
                    raise LabError(f"cannot run {argv[0]}: {err.strerror}") from err
                self._running.add(child)
            status = child.wait()
            with self._guard:
                self._running.discard(child)
        if status and self.aborted.is_set():
            raise InterruptedStepError
        if status:
            command = " ".join(Path(word).name for word in argv[:4])
            raise LabError(
                f"{command} failed with status {status}; the end of {process.log}:\n"
                f"{process.tail()}"
            )

    def abort(self) -> None:
        """Kill all programs that :meth:`run` is running, and refuse to run more."""
        self.aborted.set()
        with self._guard:
            for child in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
