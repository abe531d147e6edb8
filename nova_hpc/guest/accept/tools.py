# SPDX-License-Identifier: Apache-2.0
"""Tools run as processes of their own: with a limit, and with nothing left of them.

A tool and whatever it started are ended when it comes to its limit, prints without end, or
when this command is told to end. Tools never get a real-time priority: one that spins in the
kernel on what a lower one holds is deaf even to SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

#: The signals that end this command; held while a tool starts (:class:`HeldSignals`).
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Seconds that a tool has to end by itself once it is asked to.
_PATIENCE: Final = 0.5
_LOOK: Final = 0.02
#: Seconds that a server has until it listens.
_LISTEN: Final = 3.0
#: The longest output that is kept; a tool that prints more is ended.
LONGEST: Final = 1 << 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_PDEATHSIG: Final = 1
_ANONYMOUS_KIB: Final = 30_000


class ToolRun(NamedTuple):
    """How a tool ended, and what was seen of it."""

    output: str
    #: What it wrote into the file it was given in place of ``{json}``.
    document: str
    #: None: it ended by itself and well; else what happened.
    problem: str | None
    #: It was ended at its limit.
    at_limit: bool
    wall: float
    #: CPU time of it and its children, in seconds.
    cpu: float
    #: Time that the thread which waited most was ready and did not run.
    waited: float
    #: Time in which it was looked at.
    watched: float
    #: Largest part of its memory in large pages; None: not looked at, or it has little.
    large_pages: float | None


class HeldSignals:
    """The signals that end this command, while a tool starts and nothing could end that yet.

    The mask keeps them from this thread. It does not keep them from another thread that has none,
    and then Python runs the handler here, in the main thread, all the same: so a handler asks
    :meth:`note` first.
    """

    _holding: ClassVar[HeldSignals | None] = None

    def __init__(self) -> None:
        #: Of this thread, before.
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self._noted: list[int] = []
        HeldSignals._holding = self

    @classmethod
    def note(cls, number: int) -> bool:
        """Whether a signal that came waits for :meth:`release`."""
        if cls._holding is None:
            return False
        cls._holding._noted.append(number)
        return True

    def release(self) -> None:
        """Let them come, those first that have come in between."""
        HeldSignals._holding = None
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        for number in self._noted[:1]:
            signal.pthread_kill(threading.get_ident(), number)


def run_tool(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit: float,
    cpus: Iterable[int] = (),
    look_at_pages: bool = False,
    folder: str | None = None,
) -> ToolRun:
    """Run a tool to its end, or to its limit.

    :param command: its words; ``{json}`` in them stands for a file that it may write into.
    :param environment: all of its variables.
    :param limit: in seconds.
    :param cpus: the CPUs that it may use; (): all that this process may.
    :param look_at_pages: watch how much of its memory is in large pages.
    :param folder: the directory that it works in; None: that of this process.
    """
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    allowed = set(cpus)
    with contextlib.ExitStack() as stack:
        output, document = _open_scratch(stack), _open_scratch(stack)
        place = f"/proc/self/fd/{document}"
        held = HeldSignals()
        try:
            # Between fork and exec there is no other thread of this command that holds a lock.
            child = subprocess.Popen(
                [word.replace("{json}", place) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                pass_fds=(document,),
                start_new_session=True,
                preexec_fn=lambda: _prepare_child(allowed, held.mask),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            held.release()
            reason = getattr(error, "strerror", None) or error
            return ToolRun("", "", f"it does not start: {reason}", False, 0.0, 0.0, 0.0, 0.0, None)
        except BaseException:  # a handler of somebody else
            held.release()
            raise
        watch = _Watch(child.pid, look_at_pages)
        problem: str | None = None
        at_limit = False
        try:
            # From here on the tool is ended with this command: a signal that came is heard now.
            held.release()
            while child.poll() is None:
                watch.look()
                if time.monotonic() - start > limit:
                    problem, at_limit = f"it was ended at its limit of {limit:g} s", True
                elif os.fstat(output).st_size > LONGEST:
                    problem = f"it printed more than {LONGEST >> 20} MiB"
                if problem is not None:
                    break
                time.sleep(_LOOK)
        finally:
            end_tool(child)
        if problem is None and child.returncode:
            problem = describe_end(child.returncode)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ToolRun(
            _read_scratch(output),
            _read_scratch(document),
            problem,
            at_limit,
            time.monotonic() - start,
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            watch.waited,
            watch.looks * _LOOK,
            watch.large_pages,
        )


@contextlib.contextmanager
def start_helper(
    command: Sequence[str], environment: Mapping[str, str], cpus: Iterable[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Something that runs beside a tool, as the server it talks to; ended with the block.

    :raises OSError: it does not start.
    """
    allowed = set(cpus)
    held = HeldSignals()
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=lambda: _prepare_child(allowed, held.mask),
        )
    except BaseException:
        held.release()
        raise
    try:
        held.release()
        yield child
    finally:
        end_tool(child)


def end_tool(child: subprocess.Popen[bytes]) -> None:
    """End a tool and all that it started: first asked to, then without being asked.

    ``mpirun`` gives each rank a group of its own, so that groups alone do not do: processes of
    its session, and what was left to this process, are ended as well.
    """
    family = _list_family(child.pid)
    if child.poll() is None or family:
        for number, patience in ((signal.SIGTERM, _PATIENCE), (signal.SIGKILL, 5.0)):
            for member in {child.pid, *family}:
                with contextlib.suppress(OSError):
                    os.kill(member, number)
            until = time.monotonic() + patience
            while time.monotonic() < until:
                _reap_orphans(child)
                family = _list_family(child.pid)
                if child.poll() is not None and not family:
                    return
                time.sleep(_LOOK)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1.0)


def find_port() -> int:
    """A port of the loopback on which nothing listens now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def wait_for_port(port: int, helper: subprocess.Popen[bytes]) -> bool:
    """Until something listens there; perftest's servers take one client, so nothing connects."""
    until = time.monotonic() + _LISTEN
    wanted = f":{port:04X}"
    while time.monotonic() < until and helper.poll() is None:
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/net/{name}").read_text(encoding="ascii", errors="replace")
                for line in text.splitlines()[1:]:
                    fields = line.split()
                    if len(fields) > 3 and fields[1].endswith(wanted) and fields[3] == "0A":
                        return True
        time.sleep(0.02)
    return False


@contextlib.contextmanager
def adopt_orphans() -> Iterator[None]:
    """Have what a tool leaves behind become children of this process, which ends them."""

    def set_subreaper(wanted: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, wanted, 0, 0, 0)

    set_subreaper(1)
    try:
        yield
    finally:
        set_subreaper(0)


def describe_end(status: int) -> str:
    """The status of a process that ended badly, in words."""
    if status >= 0:
        return f"it ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"it was killed by {name}"


def _prepare_child(cpus: set[int], mask: Iterable[int]) -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if cpus:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setaffinity(0, cpus)
    with contextlib.suppress(OSError, AttributeError):
        # It ends with this command, however that ends.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _open_scratch(stack: contextlib.ExitStack) -> int:
    """A file in memory where the kernel has such files: a root may be read-only."""
    with contextlib.suppress(OSError, AttributeError):
        handle = os.memfd_create("nova-hpc-accept")
        stack.callback(os.close, handle)
        return handle
    return stack.enter_context(tempfile.TemporaryFile()).fileno()


def _read_scratch(handle: int) -> str:
    return os.pread(handle, LONGEST, 0).decode("utf-8", "replace")


class _Watch:
    """What can be seen of a running tool."""

    def __init__(self, pid: int, pages: bool) -> None:
        self._pid = pid
        self._pages = pages
        self._delays: dict[str, int] = {}
        self.looks = 0
        self.large_pages: float | None = None

    @property
    def waited(self) -> float:
        return max(self._delays.values(), default=0) / 1e9

    def look(self) -> None:
        self.looks += 1
        folder = f"/proc/{self._pid}/task"
        for task in _list_names(folder)[:64]:
            fields = _read_text(f"{folder}/{task}/schedstat").split()
            if len(fields) == 3 and fields[1].isdigit():
                self._delays[task] = int(fields[1])
        if self._pages:
            text = _read_text(f"/proc/{self._pid}/smaps_rollup")
            kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
            anonymous = kib.get("Anonymous", 0)
            if anonymous > _ANONYMOUS_KIB:
                large = kib.get("AnonHugePages", 0) + kib.get("Private_Hugetlb", 0)
                self.large_pages = max(self.large_pages or 0.0, min(1.0, large / anonymous))


def _list_family(pid: int) -> set[int]:
    """Living processes of the tool's session, those below them, and orphans of this process."""
    parents: dict[int, int] = {}
    members: set[int] = set()
    own = os.getpid()
    for name in _list_names("/proc"):
        if not name.isdigit():
            continue
        fields = _read_text(f"/proc/{name}/stat").rpartition(")")[2].split()
        if len(fields) < 4 or fields[0] in "ZX":
            continue
        parents[int(name)] = int(fields[1])
        if int(fields[3]) == pid:
            members.add(int(name))
    members.discard(own)
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    return members - {own}


def _reap_orphans(child: subprocess.Popen[bytes]) -> None:
    """Take the end of what was left to this process, but for the tool itself."""
    for name in _list_names("/proc"):
        if name.isdigit() and int(name) != child.pid:
            fields = _read_text(f"/proc/{name}/stat").rpartition(")")[2].split()
            if len(fields) > 3 and int(fields[1]) == os.getpid() and int(fields[3]) == child.pid:
                with contextlib.suppress(OSError):
                    os.waitpid(int(name), os.WNOHANG)


def _list_names(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208
    except OSError:
        return []


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read(1 << 16)
    except OSError:
        return ""
