#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a set of tests, several jobs at a time, and say what took how long.

A job is what one call of tox does: an environment of tox.ini and the words
behind ``--``. Jobs are small enough that all CPUs are busy to the end; jobs of
one environment share it. The standard library alone, for any Python 3.11.

Called by tools/test.sh, which installs what the jobs need.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import IO, Final

TOP: Final = Path(__file__).resolve().parents[1]

QUICK, STANDARD, FULL = "quick", "standard", "full"
#: Seconds between two lines about what runs.
_PROGRESS: Final = 60.0
#: Seconds after which the main thread looks whether a signal came before it began to wait: a wait
#: without end would not be interrupted by that one.
_LOOKS: Final = 1.0
#: Seconds that processes have to end by themselves when a run is interrupted.
_GRACE: Final = 5.0
#: In the environment of all processes of a run, so that none of them can hide; tox passes it on.
_MARK: Final = "NOVA_HPC_TEST_RUN"
#: The signals that end a run.
_ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Lines of a failed job's log that are shown.
_SHOWN: Final = 150
#: The niceness of jobs that run beside one that leads.
_GIVES_WAY: Final = "10"
#: Where files are in memory: making one takes a tenth of the CPU time that it takes on a disk.
_IN_MEMORY: Final = Path("/dev/shm")  # nosec B108
#: Bytes that have to be free there, and in memory altogether, for the files of tests.
_ROOM: Final = 8 << 30
#: Seconds for one test of the sets that people wait for; the slowest takes ten minutes.
_LIMIT: Final = 1500


@dataclasses.dataclass(frozen=True)
class Job:
    """One call of tox.

    :ivar words: what follows ``--``; none: the environment's own command.
    :ivar minutes: about how long it takes on one quiet CPU. The longest start first.
    :ivar alone: it keeps all CPUs busy itself, and runs when the others have ended.
    :ivar leads: it waits for one guest after the other, which keep a CPU busy in turn: it runs
        from the beginning, beside the others, which leave it the CPU that it wants.
    :ivar needs: a program, or a variable of the environment, without which it is left out.
    """

    name: str
    env: str
    words: tuple[str, ...]
    minutes: float
    sets: frozenset[str]
    alone: bool = False
    leads: bool = False
    needs: str = "tox"


def _job(
    name: str,
    env: str,
    words: Sequence[str],
    minutes: float,
    *sets: str,
    alone: bool = False,
    leads: bool = False,
    needs: str = "tox",
) -> Job:
    return Job(name, env, tuple(words), minutes, frozenset(sets), alone, leads, needs)


#: So many tests of a run may need another try. A loaded machine disturbs a wait of one test or
#: two of 1,500; more than that, or the same test in two jobs, is a fault that comes and goes.
RERUNS: Final = 2
# Services and processes on a loaded machine: one more try, whose reason is in the log.
_TRIES: Final = ("--reruns", "1", "--max-suite-reruns", str(RERUNS), "--rerun-show-tracebacks")
_OURS: Final = ("python", "-m", "pytest", *_TRIES, "--durations", "8", "tests/functional")
_NOT_SLOW: Final = ("-m", "not slow")
_NOT_LONG: Final = ("-m", "not long and not slow")
#: About half of the unit tests; a set has a process for these and one for the rest.
_NODES: Final = tuple(
    f"tests/unit/{room}" for room in ("adopt", "commands", "device", "doctor", "lab", "tenancy")
)
_NOT_NODES: Final = tuple(f"--ignore={each}" for each in _NODES)
#: Of the functional tests: what another release of Nova can break.
_WRAPS_NOVA: Final = (*_NOT_SLOW, "-k", "contract or patches or errors or reader")
_SCHEDULER: Final = "scheduler or explain or configure"
_NODE: Final = f"driver and not ({_SCHEDULER})"
_OTHERS: Final = f"not (driver or {_SCHEDULER})"
_HISTORIES: Final = ("tests/functional/test_histories.py", "-k", "two_hundred")
_KILLS: Final = ("python", "-m", "tests.functional.kills")
_SUITES: Final = ("python", "-m", "tests.functional.nova_suites")

JOBS: Final[tuple[Job, ...]] = (
    _job("lint", "lint", (), 2, QUICK, STANDARD, FULL),
    _job("unit-nodes", "py311", (*_NOT_LONG, *_NODES), 3, QUICK),
    _job("unit-rest", "py311", (*_NOT_LONG, "tests/unit", *_NOT_NODES), 3, QUICK),
    # Two processes: one alone would be the last job for ten minutes.
    _job("unit", "py311", (*_TRIES, *_NOT_SLOW, "tests/unit", *_NOT_NODES), 10, STANDARD),
    _job("unit-of-nodes", "py311", (*_TRIES, *_NOT_SLOW, *_NODES), 11, STANDARD),
    _job("shm", "shm", (*_TRIES, *_NOT_SLOW, "tests/shm"), 1, QUICK, STANDARD),
    _job("shm-all", "shm", ("tests/shm",), 2, FULL),
    _job("docs", "docs", (), 2, STANDARD, FULL),
    _job("scheduler-34", "functional-34", (*_OURS, *_NOT_SLOW, "-k", _SCHEDULER), 9, STANDARD),
    _job("node-34", "functional-34", (*_OURS, *_NOT_SLOW, "-k", _NODE), 14, STANDARD),
    _job("others-34", "functional-34", (*_OURS, *_NOT_SLOW, "-k", _OTHERS), 10, STANDARD),
    _job("functional-33", "functional-33", (*_OURS, *_WRAPS_NOVA), 3, STANDARD),
    _job("functional-32", "functional-32", (*_OURS, *_WRAPS_NOVA), 3, STANDARD),
    _job("lab", "lab", ("-m", "not slow", "tests/lab"), 20, STANDARD, leads=True),
    # In the lab's environment, and without its nodes.
    _job("fabric", "lab", ("-m", "not slow", "tests/fabric"), 5, STANDARD),
    # A night.
    _job("unit-20000", "unit-full", (), 240, FULL),
    _job("unit-312", "py312", (), 4, FULL, needs="python3.12"),
    _job("unit-313", "py313", (), 4, FULL, needs="python3.13"),
    _job("functional-34-all", "functional-34", (*_OURS, "-k", "not two_hundred"), 27, FULL),
    # From seeds, and without another try: what failed once is looked at.
    _job("histories", "functional-34", ("python", "-m", "pytest", *_HISTORIES), 23, FULL),
    _job("functional-33-all", "functional-33", (*_OURS, *_NOT_SLOW), 14, FULL),
    _job("functional-32-all", "functional-32", (*_OURS, *_NOT_SLOW), 14, FULL),
    # A failure at each step of a move; functional-34-all has them.
    _job("moves-33", "functional-33", (*_OURS, "-k", "FailingTest"), 6, FULL),
    _job("moves-32", "functional-32", (*_OURS, "-k", "FailingTest"), 6, FULL),
    # How Nova and this project can be installed; functional-34-all has them.
    _job("layouts-33", "functional-33", (*_OURS, "-k", "driver_layouts"), 6, FULL),
    _job("layouts-32", "functional-32", (*_OURS, "-k", "driver_layouts"), 6, FULL),
    _job("nova-suites-34", "functional-34", (*_SUITES, "--all"), 40, FULL),
    _job("nova-suites-33", "functional-33", _SUITES, 24, FULL),
    _job("nova-suites-32", "functional-32", _SUITES, 24, FULL),
    _job("kills", "functional-34", (*_KILLS, "--fault", "all"), 20, FULL),
    _job(
        *("races", "functional-34"),
        ("python", "-m", "benchmarks.concurrency", "--workers", "4"),
        *(20, FULL),
        alone=True,
    ),
    _job(
        *("replay", "functional-34"),
        ("python", "-m", "benchmarks.replay", "--minutes", "40"),
        *(40, FULL),
        alone=True,
    ),
    _job(
        *("group-races", "functional-34"),
        ("python", "-m", "benchmarks.group_races", "--rounds", "3", "--kill", "12"),
        *(10, FULL),
        alone=True,
    ),
    # Ten rounds of four ways with 512 hosts, and what may happen to a scheduler.
    _job(
        *("group-cloud", "functional-34"),
        ("python", "-m", "benchmarks.group_cloud"),
        *(240, FULL),
        alone=True,
    ),
    _job(
        *("group-kills", "functional-34"),
        ("python", "-m", "benchmarks.group_cloud.kills"),
        *(40, FULL),
        alone=True,
    ),
    # An unmodified stack.sh in containers, and a node of the lab: it keeps all CPUs busy.
    _job("devstack", "lab", ("tests/devstack",), 150, FULL, alone=True, needs="DEVSTACK_TREE"),
    _job("mutations", "functional-34", ("python", "tools/mutate.py"), 60, FULL),
    # With five hundred histories.
    _job("fabric-all", "lab", ("tests/fabric",), 90, FULL),
    # A real engine, built from Debian's source, between namespaces and two emulated machines.
    _job("gpu-engine", "lab", ("tests/gpu",), 25, FULL),
    # Builds as a release is built, and installs that beside each Nova.
    _job("release", "release", (), 15, FULL),
    _job("lab-all", "lab", ("tests/lab",), 90, FULL, alone=True),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    :ivar cpu: seconds of the processors, of all processes that it has waited for.
    :ivar said: the last line of its test runner, or of its log.
    :ivar reruns: the tests that needed another try.
    """

    job: Job
    status: int
    seconds: float
    cpu: float
    said: str
    reruns: tuple[str, ...] = ()


class Runner:
    """Runs jobs; prints a line when one ends and, once a minute, what runs.

    :param logs: the folder for the output of each job.
    :param limit: seconds after which a test that has not ended fails; 0: none.
    :param files: the folder for files of tests; None: the usual one. A job that leads has large
        ones, and keeps to the disk.
    """

    def __init__(self, logs: Path, limit: int = 0, files: str | None = None) -> None:
        self._logs = logs
        self._files = {} if files is None else {"TMPDIR": files}
        # Of pytest-timeout. One test that waits for ever would be all that is heard of a run.
        self._limits = {"PYTEST_TIMEOUT": str(limit)} if limit else {}
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, subprocess.Popen[bytes] | None]] = {}
        # tox processes of one checkout share the folder in which packages are
        # built: one of them prepares its environment at a time.
        self._preparing = threading.Lock()
        self._prepared: set[str] = set()
        self._ended = False

    def run(self, jobs: Sequence[Job], workers: int) -> list[Outcome]:
        """Run *jobs*, at most *workers* at once and one that leads; those alone come last."""
        self._logs.mkdir(parents=True, exist_ok=True)
        outcomes: list[Outcome] = []
        with self._progress():
            for alone in (False, True):
                some = [job for job in jobs if job.alone is alone]
                some.sort(key=lambda job: (not job.leads, -job.minutes))
                leading = sum(job.leads for job in some)
                with futures.ThreadPoolExecutor(1 if alone else workers + leading) as pool:
                    try:
                        begun = [pool.submit(self._one, job) for job in some]
                        while futures.wait(begun, _LOOKS).not_done:
                            pass
                        outcomes += [each.result() for each in begun]
                    except BaseException:
                        self._end()
                        raise
        return outcomes

    def _one(self, job: Job) -> Outcome:
        begun = time.monotonic()
        log = self._logs / f"{job.name}.log"
        cpu = 0.0
        with log.open("wb") as stream:
            status = 0
            if job.env not in self._prepared:
                with self._preparing:
                    if job.env not in self._prepared:
                        status, cpu = self._call(job, stream, ["run", "--notest", "-e", job.env])
                        if status == 0:
                            self._prepared.add(job.env)
            if status == 0:
                words = ["--", *job.words] if job.words else []
                argv = ["run", "--skip-pkg-install", "-e", job.env, *words]
                status, more = self._call(job, stream, argv)
                cpu += more
        seconds = time.monotonic() - begun
        outcome = Outcome(job, status, seconds, cpu, _said(log), _reruns(log))
        self._tell(outcome, log)
        return outcome

    def _call(self, job: Job, stream: IO[bytes], words: Sequence[str]) -> tuple[int, float]:
        """Call tox in a process group of its own: its status, 1 once all is to end, and its CPU."""
        with self._lock:
            if self._ended:
                return 1, 0.0
            gives_way = () if job.leads or job.alone else ("nice", "-n", _GIVES_WAY)
            process = subprocess.Popen(
                [*gives_way, "tox", *words],
                cwd=TOP,
                env={
                    **os.environ,
                    **({} if job.leads else self._files),
                    **self._limits,
                    _MARK: self._mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if gives_way:
                # Linux weighs sessions first, where it groups processes by them.
                with contextlib.suppress(OSError):
                    Path(f"/proc/{process.pid}/autogroup").write_text(_GIVES_WAY)
            before = self._running.get(job.name)
            self._running[job.name] = (before[0] if before else time.monotonic(), process)
        status, cpu = _wait(process)
        with self._lock:
            begun = self._running.pop(job.name)[0]
            self._running[job.name] = (begun, None)
        return status, cpu

    def _tell(self, outcome: Outcome, log: Path) -> None:
        with self._lock:
            self._running.pop(outcome.job.name, None)
            if outcome.status:
                lines = log.read_text(errors="replace").splitlines()
                print(f"\n{'=' * 20} {outcome.job.name}: the end of {log} {'=' * 20}")
                print("\n".join(lines[-_SHOWN:]))
            word = "FAILED" if outcome.status else "ok"
            print(f"{word:6} {_clock(outcome.seconds):>7}  {outcome.job.name}: {outcome.said}")
            sys.stdout.flush()

    def _end(self) -> None:
        """End what runs: an interrupted run leaves nothing behind.

        A process group is not enough: tests start sessions of their own, and Nova's services have
        handlers of SIGTERM that pytest inherits.
        """
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        with self._lock:
            self._ended = True
        begun, told = time.monotonic(), set[int]()
        while left := processes_with(f"{_MARK}={self._mark}"):
            late = time.monotonic() - begun > _GRACE
            # Once: some take a second SIGTERM for impatience, and leave their own work.
            for pid in left if late else set(left) - told:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            told.update(left)
            if time.monotonic() - begun > 2 * _GRACE:
                print(f"still running: {left}", flush=True)
                return
            time.sleep(0.2)

    @contextlib.contextmanager
    def _progress(self) -> Iterator[None]:
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(_PROGRESS):
                with self._lock:
                    now = time.monotonic()
                    parts = [f"{n} {_clock(now - t)}" for n, (t, _) in self._running.items()]
                if parts:
                    print(f"       ...     {', '.join(parts)}", flush=True)

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def processes_with(entry: str) -> list[int]:
    """IDs of the processes that have *entry* (NAME=VALUE) in the environment they began with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Others' processes, and those that have just ended.
        with contextlib.suppress(OSError):
            if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait for its end: exit status, and the CPU seconds of it and of what it has waited for."""
    # Left as it is, for Popen to take the status from: only one can.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return process.wait(), sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


_COUNTS: Final = re.compile(r"^=* ?(\d+ (?:passed|failed|error).*?) ?=*$")


def _said(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    for line in reversed(lines):
        found = _COUNTS.match(line)
        if found:
            return found.group(1)
    # tox's own last words say nothing of the job.
    kept = [line for line in lines if line and "congratulations" not in line and ": OK" not in line]
    return kept[-1][:100] if kept else "no output"


_RERUN: Final = re.compile(r"^RERUN (\S+::.+)$", re.MULTILINE)


def _reruns(log: Path) -> tuple[str, ...]:
    """The tests that needed another try, from the summary of pytest-rerunfailures."""
    return tuple(_RERUN.findall(log.read_text(errors="replace")))


def judge_reruns(outcomes: Sequence[Outcome]) -> tuple[list[str], bool]:
    """Lines that name each test that needed another try, and whether the run fails for them.

    It does for more than :data:`RERUNS` tests, and for one that needed it twice: a job grants each
    test one, so that is in two jobs, as on two releases of Nova.
    """
    jobs: dict[str, list[str]] = {}
    for outcome in outcomes:
        for name in outcome.reruns:
            jobs.setdefault(name, []).append(outcome.job.name)
    lines = [f"rerun: {name} ({', '.join(where)})" for name, where in sorted(jobs.items())]
    twice = any(len(where) > 1 for where in jobs.values())
    if len(jobs) > RERUNS:
        lines.append(f"FAILED: {len(jobs)} tests needed another try, of which {RERUNS} may")
    if twice:
        lines.append("FAILED: a test needed another try twice")
    return lines, twice or len(jobs) > RERUNS


def counted(outcomes: Sequence[Outcome], word: str) -> int:
    """How many tests *word* (passed, failed) by the last lines of pytest."""
    found = (re.search(rf"(\d+) {word}", each.said) for each in outcomes)
    return sum(int(each.group(1)) for each in found if each)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """What took how long, the longest first."""
    rows = sorted(outcomes, key=lambda each: -each.seconds)
    width = max(len(each.job.name) for each in rows)
    lines = [f"{'job':{width}}  {'min:s':>7}  {'of CPU':>7}  result"]
    lines += [
        f"{each.job.name:{width}}  {_clock(each.seconds):>7}  {_clock(each.cpu):>7}  "
        f"{'FAILED ' if each.status else ''}{each.said}"
        for each in rows
    ]
    cpu = sum(each.cpu for each in rows)
    return "\n".join(
        [*lines, f"{'all, by the clock':{width}}  {_clock(seconds):>7}  {_clock(cpu):>7}"]
    )


@contextlib.contextmanager
def _files_in_memory() -> Iterator[str | None]:
    """A folder for the files of tests, removed at the end; None where there is no room for them."""
    try:
        found = os.statvfs(_IN_MEMORY)
        words = Path("/proc/meminfo").read_text().split()
        free = int(words[words.index("MemAvailable:") + 1]) << 10
        usable = not found.f_flag & os.ST_NOEXEC and os.access(_IN_MEMORY, os.W_OK)
    except OSError:
        usable = False
    if not usable or min(found.f_bavail * found.f_frsize, free) < _ROOM:
        yield None
        return
    # A short name: sockets lie deep below it.
    folder = _IN_MEMORY / f"n{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_there(needs: str) -> bool:
    """Whether a program is installed, or a variable named in capitals is set."""
    return bool(os.environ.get(needs)) if needs.isupper() else shutil.which(needs) is not None


def main() -> int:
    """Exit status 0 when every job ended well."""
    parser = argparse.ArgumentParser(description="Run a set of tests.")
    parser.add_argument("set", choices=(QUICK, STANDARD, FULL), nargs="?", default=STANDARD)
    parser.add_argument("--list", action="store_true", help="show the jobs and run none")
    parser.add_argument("--only", nargs="+", metavar="JOB", help="some jobs, of any set")
    cpus = os.cpu_count() or 1
    # Jobs wait for threads, sockets and processes for a good part of their time.
    parser.add_argument("--workers", type=int, default=cpus + 2, help="jobs at once")
    logs = TOP / ".tox" / "logs"
    parser.add_argument("--logs", type=Path, default=logs, help="folder for the jobs' output")
    args = parser.parse_args()
    jobs = [job for job in JOBS if args.set in job.sets]
    if args.only:
        known = {job.name: job for job in JOBS}
        wrong = [name for name in args.only if name not in known]
        if wrong:
            parser.error(f"no job is called {wrong[0]!r}; there are: {', '.join(known)}")
        jobs = [known[name] for name in args.only]
    if args.list:
        for job in JOBS:
            print(f"{job.name:20} {job.minutes:5} min  {job.env:14} {', '.join(sorted(job.sets))}")
        return 0
    for job in jobs:
        if not _is_there(job.needs):
            print(f"left out: {job.name}, which needs {job.needs}")
    jobs = [job for job in jobs if _is_there(job.needs)]
    if not jobs:
        parser.error("nothing is left to run")
    for number in _ENDS:
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    begun = time.monotonic()
    limit = 0 if args.set == FULL else _LIMIT
    with _files_in_memory() as files:
        outcomes = Runner(args.logs, limit, files).run(jobs, args.workers)
    print(f"\n{table(outcomes, time.monotonic() - begun)}")
    lines, too_many = judge_reruns(outcomes)
    for line in lines:
        print(line)
    # The same for programs that read what test runners say.
    print(f"total: {counted(outcomes, 'passed')} passed, {counted(outcomes, 'failed')} failed")
    return int(too_many or any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
