# SPDX-License-Identifier: Apache-2.0
"""Runs tools as separate processes, with a limit, and ends all their processes.

A tool and its children are ended if it reaches its limit, prints without end, or if a signal ends
this command. Tools never get a real-time priority: a real-time process that spins in the kernel and
waits for a process with a lower priority, does not even react to SIGKILL.
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
#: Seconds within which a tool may end by itself after SIGTERM.
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
    """The end of a tool: its output, its problem, and observations of its time in seconds."""

    output: str
    #: Its output in the file that it got for ``{json}``.
    document: str
    #: None if it ended by itself and well; otherwise the problem.
    problem: str | None
    #: It was ended at its limit.
    at_limit: bool
    wall: float
    #: CPU time of it and its children, in seconds.
    cpu: float
    #: Time that its most delayed thread was ready and did not run.
    waited: float
    #: Time in which it was looked at.
    watched: float
    #: Largest part of its memory in large pages; None if not looked at, or if it has little.
    large_pages: float | None


class HeldSignals:
    """Holds back the signals that end this command while a tool starts and cannot be ended yet.

    The mask keeps the signals from this thread. Another thread without a mask can still receive
    one, and Python then runs the handler in the main thread in spite of the mask. So a handler
    calls :meth:`note` first.
    """

    _holding: ClassVar[HeldSignals | None] = None

    def __init__(self) -> None:
        #: The mask of this thread before.
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self._noted: list[int] = []
        HeldSignals._holding = self

    @classmethod
    def note(cls, number: int) -> bool:
        """Note a signal that came while signals are held; return False if none are held."""
        if cls._holding is None:
            return False
        cls._holding._noted.append(number)
        return True

    def release(self) -> None:
        """Stop holding signals: those that came in the meantime take effect, a noted one first."""
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

    :param command: its words; ``{json}`` in them is replaced by a file that it may write into.
    :param environment: all of its variables.
    :param limit: in seconds.
    :param cpus: the CPUs that it may use; () for all that this process may use.
    :param look_at_pages: watch how much of its memory is in large pages.
    :param folder: its working directory; None for this process's.
    """
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    allowed = set(cpus)
    with contextlib.ExitStack() as stack:
        output, document = _open_scratch(stack), _open_scratch(stack)
        place = f"/proc/self/fd/{document}"
        held = HeldSignals()
        try:
            # Between fork and exec, no other thread of this command holds a lock.
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
        except BaseException:  # raised by a signal handler that is not this command's
            held.release()
            raise
        watch = _Watch(child.pid, look_at_pages)
        problem: str | None = None
        at_limit = False
        try:
            # From here on the tool ends with this command: a signal that came is handled now.
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
    """Start a program beside a tool, such as the server it talks to; end it with the block.

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
    """End a tool and all that it started: first with SIGTERM, then with SIGKILL.

    ``mpirun`` gives each rank a process group of its own, so ending groups is not enough. Processes
    of its session, and orphans that this process adopted, are ended, too.
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
    """Return a number of a TCP port of the loopback without a listener."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def wait_for_port(port: int, helper: subprocess.Popen[bytes]) -> bool:
    """Wait until a process listens on the port; return False if the helper ends or time is up.

    perftest's servers take one client, so nothing connects.
    """
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
    """Adopt the processes that a tool leaves behind, so that this process can end them."""

    def set_subreaper(wanted: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, wanted, 0, 0, 0)

    set_subreaper(1)
    try:
        yield
    finally:
        set_subreaper(0)


def find_last_line(text: str) -> str:
    """Return the last line with a letter or digit, shortened; "" without one."""
    return find_line(text, -1)


def find_line(text: str, place: int) -> str:
    """Return the line with a letter or digit at a place, as -1 for the last; "" without one.

    Some programs frame their errors with dashes.
    """
    return " ".join((re.findall(r"^.*\w.*$", text, re.MULTILINE) or [""])[place].split())[:100]


def describe_end(status: int) -> str:
    """Describe the status of a process that ended badly, such as a signal's name."""
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
    """Open a scratch file in memory if the kernel has such files: the root may be read-only.

    :returns: its descriptor.
    """
    with contextlib.suppress(OSError, AttributeError):
        handle = os.memfd_create("nova-hpc-accept")
        stack.callback(os.close, handle)
        return handle
    return stack.enter_context(tempfile.TemporaryFile()).fileno()


def _read_scratch(handle: int) -> str:
    return os.pread(handle, LONGEST, 0).decode("utf-8", "replace")


class _Watch:
    """Observer of the processes of a running tool."""

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
    """List the processes of the tool's session, descendants, and orphans of this process."""
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
    """Reap the orphans that this process adopted, except the tool itself."""
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
