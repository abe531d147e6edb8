#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a set of tests, several jobs at a time, and print the time of each.

A job is one call of tox: an environment of tox.ini and the words behind ``--``.
Jobs are small enough that all CPUs are busy to the end; jobs of one environment
share it. The tool needs only the standard library, of any Python 3.11.

tools/test.sh calls it, after it has installed the programs that the jobs need.
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
#: Seconds between two lines about the running jobs.
_PROGRESS: Final = 60.0
#: Seconds after which the main thread checks for a signal that came just before its wait: that
#: signal would not interrupt an endless wait.
_LOOKS: Final = 1.0
#: Seconds that processes have to end by themselves when a run is interrupted.
_GRACE: Final = 5.0
#: A variable that marks all processes of a run, so that each can be found; tox passes it on.
_MARK: Final = "NOVA_HPC_TEST_RUN"
#: The signals that end a run.
_ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Lines of a failed job's log that are shown.
_SHOWN: Final = 150
#: The niceness of jobs that run beside one that leads.
_GIVES_WAY: Final = "10"
#: A folder in memory: a new file takes a tenth of the CPU time that it takes on a disk.
_IN_MEMORY: Final = Path("/dev/shm")  # nosec B108
#: Bytes that must be free in this folder, and in memory in total, for the files of tests.
_ROOM: Final = 8 << 30
#: Seconds for one test of the quick and standard sets; the slowest takes ten minutes.
_LIMIT: Final = 1500


@dataclasses.dataclass(frozen=True)
class Job:
    """One call of tox.

    :ivar words: the words behind ``--``; empty for the environment's own command.
    :ivar minutes: approximate time on one idle CPU. The longest jobs start first.
    :ivar alone: whether it keeps all CPUs busy itself; it runs after the other jobs.
    :ivar leads: whether it waits for one guest after the other, which each use a CPU. It runs
        from the beginning beside the other jobs, which have a lower priority.
    :ivar needs: a program, or a variable of the environment; without it, the job is skipped.
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


#: Files of functional tests of which Nova 32 runs a part in the standard set.
WRAPPING: Final = (
    *("cluster_client", "driver_health", "driver_hygiene", "driver_privileged", "driver_reserve"),
    *("driver_reserve_kept", "driver_withhold", "ebrctl_contract", "errors", "overrides"),
    *("patches", "scheduler_contract", "scheduler_reader", "scheduler_roles"),
)


def _find_functional(start: str) -> list[str]:
    """The files of functional tests whose names start so after ``test_``."""
    folder = TOP / "tests" / "functional"
    return sorted(str(path.relative_to(TOP)) for path in folder.glob(f"test_{start}*.py"))


#: The most tests of a run that may need another try. A loaded machine disturbs a wait of one or
#: two tests of 1,500; more tests, or the same test in two jobs, are an intermittent fault.
RERUNS: Final = 2
# Tests with services and processes get one more try on a loaded machine; the log has the reason.
_TRIES: Final = ("--reruns", "1", "--max-suite-reruns", str(RERUNS), "--rerun-show-tracebacks")
_SLOWEST: Final = ("--durations", "8")
_TESTS: Final = ("python", "-m", "pytest", *_TRIES, *_SLOWEST)
_OURS: Final = (*_TESTS, "tests/functional")
_NOT_SLOW: Final = ("-m", "not slow")
#: For jobs that would make a landing wait too long; the full set runs all.
_MOST: Final = "--three-quarters"
_QUICKLY: Final = (*_TRIES, *_SLOWEST, _MOST, "-m", "not long and not slow")
#: About half of the unit tests; a set has one job for these and one for the rest.
_NODES: Final = tuple(
    f"tests/unit/{room}" for room in ("adopt", "commands", "device", "doctor", "lab", "tenancy")
)
_NOT_NODES: Final = tuple(f"--ignore={each}" for each in _NODES)
#: The functional tests that another release of Nova can break are in these files.
_WRAPS_NOVA: Final = (
    *(f"tests/functional/test_{name}.py" for name in WRAPPING),
    *(*_NOT_SLOW, "-k", "contract or patches or errors or reader"),
)
# A job that names its files imports no others: the modules of all tests take 15 seconds.
_SCHEDULER: Final = ("scheduler_", "explain_", "configure_", "driver_explain")
_SCHEDULER_FILES: Final = (
    *sorted(each for name in _SCHEDULER for each in _find_functional(name)),
    "tests/functional/unit_scheduler",
)
_NODE_FILES: Final = tuple(
    each for each in _find_functional("driver_") if each not in _SCHEDULER_FILES
)
_NOT_OTHERS: Final = tuple(f"--ignore={each}" for each in (*_SCHEDULER_FILES, *_NODE_FILES))
_HISTORIES: Final = ("tests/functional/test_histories.py", "-k", "two_hundred")
_KILLS: Final = ("python", "-m", "tests.functional.kills")
_SUITES: Final = ("python", "-m", "tests.functional.nova_suites")

JOBS: Final[tuple[Job, ...]] = (
    _job("lint", "lint", (), 2, QUICK, STANDARD, FULL),
    # Two jobs: a single one would run alone for the last ten minutes.
    _job("unit", "py311", (*_QUICKLY, "tests/unit", *_NOT_NODES), 8, QUICK, STANDARD),
    _job("unit-of-nodes", "py311", (*_QUICKLY, *_NODES), 7, QUICK, STANDARD),
    _job("shm", "shm", (*_TRIES, *_NOT_SLOW, "tests/shm"), 1, QUICK, STANDARD),
    _job("shm-all", "shm", ("tests/shm",), 2, FULL),
    _job("docs", "docs", (), 2, STANDARD, FULL),
    _job(
        *("scheduler-34", "functional-34", (*_TESTS, _MOST, *_NOT_SLOW, *_SCHEDULER_FILES)),
        *(7, STANDARD),
    ),
    _job("node-34", "functional-34", (*_TESTS, _MOST, *_NOT_SLOW, *_NODE_FILES), 10, STANDARD),
    _job("others-34", "functional-34", (*_OURS, _MOST, *_NOT_SLOW, *_NOT_OTHERS), 8, STANDARD),
    # 33 is between two releases that the standard set tries.
    _job("functional-32", "functional-32", (*_TESTS, *_WRAPS_NOVA), 3, STANDARD),
    _job("lab", "lab", ("-m", "not slow", "tests/lab"), 10, STANDARD, leads=True),
    # In the lab's environment, and without its nodes.
    _job("fabric", "lab", (_MOST, "-m", "not slow", "tests/fabric"), 5, STANDARD),
    # The jobs of a night follow.
    _job("unit-20000", "unit-full", (), 240, FULL),
    _job("unit-312", "py312", (), 4, FULL, needs="python3.12"),
    _job("unit-313", "py313", (), 4, FULL, needs="python3.13"),
    _job("functional-34-all", "functional-34", (*_OURS, "-k", "not two_hundred"), 27, FULL),
    # Histories from seeds, without another try: a single failure already needs an explanation.
    _job("histories", "functional-34", ("python", "-m", "pytest", *_HISTORIES), 23, FULL),
    _job("functional-33-all", "functional-33", (*_OURS, *_NOT_SLOW), 14, FULL),
    _job("functional-32-all", "functional-32", (*_OURS, *_NOT_SLOW), 14, FULL),
    # Tests of a failure at each step of a move; functional-34-all includes them.
    _job("moves-33", "functional-33", (*_OURS, "-k", "FailingTest"), 6, FULL),
    _job("moves-32", "functional-32", (*_OURS, "-k", "FailingTest"), 6, FULL),
    # Tests of the ways to install Nova and this project; functional-34-all includes them.
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
    # Ten rounds of four ways with 512 hosts, and failures of a scheduler.
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
    # A thousand calendars of leases, beside the smaller tests.
    _job("blazar", "blazar", ("tests/blazar",), 60, FULL),
    # Builds a release, and installs it beside each Nova.
    _job("release", "release", (), 15, FULL),
    _job("lab-all", "lab", ("tests/lab",), 90, FULL, alone=True),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a job.

    :ivar cpu: CPU seconds of all processes that it has waited for.
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
    """Runs jobs; prints a line when a job ends, and each minute counts of jobs and tests.

    :param logs: the folder for the output of each job.
    :param limit: seconds after which a running test fails; 0 for no limit.
    :param files: the folder for files of tests; None for the default one. A job that leads has
        large files and always uses the default one, on the disk.
    :param every: seconds between two lines about the running jobs.
    """

    def __init__(
        self, logs: Path, limit: int = 0, files: str | None = None, every: float = _PROGRESS
    ) -> None:
        self._logs, self._every = logs, every
        self._files = {} if files is None else {"TMPDIR": files}
        # For pytest-timeout: a test that waits for ever would stop the whole run.
        self._limits = {"PYTEST_TIMEOUT": str(limit)} if limit else {}
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, subprocess.Popen[bytes] | None]] = {}
        # tox processes of one checkout share the folder for built packages, so only one of them
        # prepares its environment at a time.
        self._preparing = threading.Lock()
        self._prepared: set[str] = set()
        self._ended = False
        self._passed = self._failed = self._left = 0

    def run(self, jobs: Sequence[Job], workers: int) -> list[Outcome]:
        """Run *jobs*, at most *workers* at once beside leading ones; jobs with ``alone`` last."""
        self._logs.mkdir(parents=True, exist_ok=True)
        self._left = len(jobs)
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
        """Call tox in a process group of its own; return its status, 1 if the run ends, and CPU."""
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
                # With autogroups, Linux applies the niceness of the session before that of tasks.
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
            self._left -= 1
            self._failed += outcome.status != 0
            self._passed += outcome.status == 0
            if outcome.status:
                lines = log.read_text(errors="replace").splitlines()
                print(f"\n{'=' * 20} {outcome.job.name}: the end of {log} {'=' * 20}")
                print("\n".join(lines[-_SHOWN:]))
            word = "FAILED" if outcome.status else "ok"
            print(f"{word:6} {_clock(outcome.seconds):>7}  {outcome.job.name}: {outcome.said}")
            sys.stdout.flush()

    def _end(self) -> None:
        """End all processes of the run, so that an interrupted run leaves none behind.

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
            # Only one SIGTERM: some programs stop their own cleaning at the second one.
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
            while not ended.wait(self._every):
                with self._lock:
                    now = time.monotonic()
                    parts = [
                        f"{name} {_clock(now - begun)}{count_tests(self._logs / f'{name}.log')}"
                        for name, (begun, _) in self._running.items()
                    ]
                    counts = f"{self._passed} passed, {self._failed} failed, {self._left} left"
                if parts:
                    print(f"       ...     jobs: {counts}; running: {', '.join(parts)}", flush=True)

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def processes_with(entry: str) -> list[int]:
    """IDs of the processes that have *entry* (NAME=VALUE) in their initial environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes of other users, and those that have just ended, are not readable.
        with contextlib.suppress(OSError):
            if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait for its end; return exit status, and CPU seconds of it and of its ended children."""
    # WNOWAIT leaves the status for Popen, as it can be read only once.
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
    # tox's own last lines contain nothing about the job.
    kept = [line for line in lines if line and "congratulations" not in line and ": OK" not in line]
    return kept[-1][:100] if kept else "no output"


_SELECTED: Final = re.compile(
    r"^(?:collecting .*)?collected (\d+) items?(?:.* (\d+) selected)?", re.M
)
#: Results of one file, a letter each, and the result of one test in verbose output.
_LETTERS: Final = re.compile(r"^(?:\S+\.py )?([.sxXFER]+) *(?:\[ *\d+%\])?$", re.MULTILINE)
_WORDS: Final = re.compile(r"^\S+::.*? (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)


def count_tests(log: Path) -> str:
    """Count the tests in pytest's log so far: `` (12 passed, 1 failed, 30 left)``.

    Empty before pytest has selected its tests.
    """
    text = log.read_text(errors="replace") if log.exists() else ""
    selected = _SELECTED.search(text)
    if selected is None:
        return ""
    results = "".join(_LETTERS.findall(text)) + "".join(word[0] for word in _WORDS.findall(text))
    passed = results.count(".") + results.count("P")
    failed = results.count("F") + results.count("E")
    # A test whose fixture fails afterwards has two results.
    left = max(0, int(selected[2] or selected[1]) - len(results) + results.count("R"))
    return f" ({passed} passed, {failed} failed, {left} left)"


_RERUN: Final = re.compile(r"^RERUN (\S+::.+)$", re.MULTILINE)


def _reruns(log: Path) -> tuple[str, ...]:
    """The tests that needed another try, from the summary of pytest-rerunfailures."""
    return tuple(_RERUN.findall(log.read_text(errors="replace")))


def judge_reruns(outcomes: Sequence[Outcome]) -> tuple[list[str], bool]:
    """Lines that name each test that needed another try, and whether the run fails for them.

    It fails for more than :data:`RERUNS` tests, or for a test that needed it in two jobs, e.g. on
    two releases of Nova: one job gives each test only one more try.
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
    """Number of tests that *word* (passed, failed), by the last lines of pytest."""
    found = (re.search(rf"(\d+) {word}", each.said) for each in outcomes)
    return sum(int(each.group(1)) for each in found if each)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """A table of the jobs with their times, the longest first."""
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
    """A folder in memory for the files of tests, removed at the end; None if it lacks room."""
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
    # A short name, because the paths of sockets deep below it have a limit.
    folder = _IN_MEMORY / f"n{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_there(needs: str) -> bool:
    """Whether a program is installed, or a variable (a name in capitals) is set."""
    return bool(os.environ.get(needs)) if needs.isupper() else shutil.which(needs) is not None


def main() -> int:
    """Run the tool; return 0 if every job succeeded and few tests needed another try."""
    parser = argparse.ArgumentParser(description="Run a set of tests.")
    parser.add_argument("set", choices=(QUICK, STANDARD, FULL), nargs="?", default=STANDARD)
    parser.add_argument("--list", action="store_true", help="show the jobs and run none")
    parser.add_argument("--only", nargs="+", metavar="JOB", help="some jobs, of any set")
    cpus = os.cpu_count() or 1
    # Jobs spend much of their time waiting for threads, sockets and processes.
    parser.add_argument("--workers", type=int, default=cpus + 2, help="jobs at once")
    logs = TOP / ".tox" / "logs"
    parser.add_argument("--logs", type=Path, default=logs, help="folder for the jobs' output")
    parser.add_argument("--every", type=float, default=_PROGRESS, help="seconds between counts")
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
        outcomes = Runner(args.logs, limit, files, args.every).run(jobs, args.workers)
    print(f"\n{table(outcomes, time.monotonic() - begun)}")
    lines, too_many = judge_reruns(outcomes)
    for line in lines:
        print(line)
    # The totals again, in a form for programs that read the output of test runners.
    print(f"total: {counted(outcomes, 'passed')} passed, {counted(outcomes, 'failed')} failed")
    return int(too_many or any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
