# SPDX-License-Identifier: Apache-2.0
"""Processes of the lab: each in a session of its own, with a pid file and a log.

A pid file holds the pid together with the time the process was started (in
ticks since boot) and the boot's id, so that a number that the system has given
to somebody else is never taken for ours. Every process of a lab, and whatever
it starts, carries the lab's state directory in its environment; what a crash
left behind without a pid file is found by that.
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
    """The environment for a process of the lab.

    Nothing that points an OpenStack client elsewhere is passed on, and no
    proxy either: all services are on the loopback.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OS_") and not name.lower().endswith("_proxy")
    }
    # setproctitle would write over /proc/PID/environ, where the marker is read.
    return passed | {MARKER: str(paths.state), "SPT_NOENV": "1"} | dict(extra or {})


@attrs.frozen
class Process:
    """One long-running process of the lab, known by its name."""

    name: str
    paths: Paths

    @property
    def pid_file(self) -> Path:
        """JSON: pid, start time in ticks since boot, boot id."""
        return self.paths.run / f"{self.name}.pid"

    @property
    def log(self) -> Path:
        """The file of the process's standard output and error."""
        return self.paths.logs / f"{self.name}.log"

    def spawn(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
        """Start the process in the background, in a session of its own.

        :param environ: added to :func:`environment`.
        :returns: its pid; that of the process that runs already, if one does.
        :raises LabError: the program cannot be started.
        """
        running = self.pid()
        if running is not None:
            return running
        with self.log.open("ab") as log:
            try:
                # Not waited for here: it is meant to live on after this command.
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
        """The pid of the running process; None where it does not run (any more)."""
        try:
            identity = json.loads(self.pid_file.read_text())
            pid = int(identity["pid"])
            start = _ticks(pid)
            # Of a process that ended before it was looked at none is known: that runs no more.
            if start is not None and (identity["boot"], identity["start"]) == (_boot_id(), start):
                return pid
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def stop(self, grace: float = 30.0) -> bool:
        """End the process and all that it started; True if anything was running.

        :param grace: seconds from the request (SIGTERM) to the end by force.
        """
        pid = self.pid()
        if pid is not None:
            end(_family(pid), first=pid, grace=grace)
        self.pid_file.unlink(missing_ok=True)
        return pid is not None

    def tail(self, lines: int = 12) -> str:
        """The end of the log, for an error message."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 16384))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def end(processes: Iterable[psutil.Process], first: int | None, grace: float) -> None:
    """Ask *processes* to end, wait, and end by force those that stay.

    :param first: the pid that is asked; the others follow by themselves or are
        killed with it. None: all are asked.
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
    """Running processes that carry this lab's marker.

    :param known: pids that are accounted for; they, their sessions and all that
        they have started are left out, as are the calling process and those
        that it was started by.
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
    """A process, its session, and all its descendants."""
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
    # The command, in parentheses, may itself hold blanks and parentheses.
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
    #: Set once everything is to end as soon as it can.
    aborted: threading.Event = attrs.field(factory=threading.Event, init=False)

    def run(self, name: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Run a program to its end; its output is added to the log *name*.

        :raises LabError: it cannot be started, failed, or was aborted.
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
        """End everything that :meth:`run` is running now, and refuse to run more."""
        self.aborted.set()
        with self._guard:
            for child in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
