# SPDX-License-Identifier: Apache-2.0
"""tools/test_sets.py, run as a program with a tox that a test makes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import test_sets

TOP = Path(__file__).resolve().parents[3]

# Prepares (--notest) and runs; what a job does is decided by its environment.
TOX = """#!/bin/sh
echo "$@" >>"$CALLS"
echo "$TMPDIR $@" >>"$CALLS.files"
case "$*" in
    *--notest*) exit 0 ;;
    *"-e $FAILS"*) echo "E   assert 1 == 2"; echo "== 1 failed, 4 passed in 0.10s =="; exit 1 ;;
    *"-e $WORKS"*) exec python3 "$CALLS.py" ;;
    *"-e $AGAIN"*) echo "== rerun test summary info =="; echo "RERUN tests/a.py::test_b[c d]" ;;
    *"-e $MANY"*) for each in 1 2 3; do echo "RERUN tests/a.py::test_$each"; done ;;
    *"-e $HIDES"*) setsid sh -c 'trap "" TERM; echo $$ >"$CALLS.pid"; while :; do sleep 1; done' &
        wait ;;
    *"-e $SLEEPS"*) echo $$ >"$CALLS.pid"; exec sleep 600 ;;
esac
echo "===== 7 passed, 2 deselected in 0.20s ====="
echo "  congratulations :) (0.30 seconds)"
"""


@pytest.fixture
def command(tmp_path):
    program = tmp_path / "bin" / "tox"
    program.parent.mkdir()
    program.write_text(TOX)
    program.chmod(0o755)

    (tmp_path / "calls.py").write_text("import time\nwhile time.process_time() < 1.2: pass\n")

    def start(*words, fails="none", sleeps="none", works="none", through=(), **more):
        env = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "CALLS": str(tmp_path / "calls"),
            "FAILS": fails,
            "SLEEPS": sleeps,
            "WORKS": works,
            **{name: more.get(name.lower(), "none") for name in ("HIDES", "AGAIN", "MANY")},
        }
        tool = TOP / "tools" / "test_sets.py"
        argv = [sys.executable, *through, tool, "--logs", tmp_path / "logs", *words]
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        begun.append(process)
        return process

    begun = []
    start.calls = tmp_path / "calls"
    yield start
    # A test that fails leaves nothing running either.
    for process in begun:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        if child := sleeper(start):
            os.kill(child, signal.SIGKILL)


def _until(condition):
    """Wait until it is true: a minute, which a loaded machine may need."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_table_of_a_set_that_passes(command):
    process = command("quick")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    last = out.rstrip().splitlines()
    assert last[-1] == "total: 28 passed, 0 failed"
    assert last[-2].startswith("all, by the clock")
    table = last[last.index(next(line for line in last if line.startswith("job "))) :]
    assert {line.split()[0] for line in table[1:-2]} == {"lint", "shm", "unit", "unit-of-nodes"}
    assert all(line.endswith("7 passed, 2 deselected in 0.20s") for line in table[1:-2])


def test_jobs_are_counted_while_others_run(command):
    words = ("--only", "lint", "docs", "unit", "--every", "0.2")
    process = command(*words, fails="docs", sleeps="py311")
    counts = "jobs: 1 passed, 1 failed, 1 left; running: unit 0:"
    assert any(counts in line for line in iter(process.stdout.readline, ""))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=45)


def test_the_table_has_the_processor_time_of_each_job(command):
    out, _ = command("--only", "lint", "unit", works="py311").communicate(timeout=60)
    rows = {line.split()[0]: line.split()[1:3] for line in out.splitlines() if "  0:0" in line}
    assert rows["lint"][1] == "0:00"
    assert rows["unit"][1] == "0:01"


def test_where_no_job_is_left_it_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, TOP / "tools" / "test_sets.py", "--only", "lint"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == "left out: lint, which needs tox\n"
    assert "nothing is left to run" in done.stderr


def test_a_job_that_needs_a_folder_is_left_out_without_it(tmp_path):
    done = subprocess.run(
        [sys.executable, TOP / "tools" / "test_sets.py", "--only", "devstack"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == "left out: devstack, which needs DEVSTACK_TREE\n"


def test_a_failure_is_shown_and_counted_and_the_others_run(command):
    process = command("--only", "lint", "unit", "docs", fails="py311")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "E   assert 1 == 2" in out
    assert "total: 18 passed, 1 failed" in out
    assert [line for line in out.splitlines() if line.startswith("FAILED")]


def test_a_test_that_needed_another_try_is_named_and_a_few_are_allowed(command):
    process = command("--only", "lint", "scheduler-34", again="functional-34")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "\nrerun: tests/a.py::test_b[c d] (scheduler-34)\n" in out


def test_more_of_them_fail_the_run_and_so_does_one_twice(command):
    process = command("--only", "lint", "scheduler-34", many="functional-34")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "FAILED: 3 tests needed another try, of which 2 may" in out
    process = command("--only", "node-34", "functional-32", again="functional-3")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rerun: tests/a.py::test_b[c d] (functional-32, node-34)" in out.replace(
        "node-34, functional-32", "functional-32, node-34"
    )
    assert "FAILED: a test needed another try twice" in out


def test_an_environment_is_prepared_once_for_all_its_jobs(command):
    command("--only", "scheduler-34", "node-34", "others-34").communicate(timeout=60)
    calls = command.calls.read_text().splitlines()
    assert [call for call in calls if "--notest" in call] == ["run --notest -e functional-34"]
    assert sum("--skip-pkg-install -e functional-34 -- " in call for call in calls) == 3


def test_the_lab_runs_beside_the_others_which_give_way(command):
    """It takes no worker's place, and all others have a higher niceness."""
    program = command.calls.parent / "bin" / "nice"
    program.write_text('#!/bin/sh\necho "nice $@" >>"$CALLS"\nshift 2\nexec "$@"\n')
    program.chmod(0o755)
    process = command("--only", "docs", "lab", "--workers", "1", sleeps="docs")
    begun = {"run --skip-pkg-install -e docs", "run --skip-pkg-install -e lab -- -m not slow"}
    _until(lambda: all(any(line.startswith(each) for line in calls(command)) for each in begun))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=45)
    nice = [line for line in calls(command) if line.startswith("nice")]
    assert nice == [
        "nice -n 10 tox run --notest -e docs",
        "nice -n 10 tox run --skip-pkg-install -e docs",
    ]


def test_files_of_tests_are_in_memory_but_those_of_the_lab(command):
    """Where memory is short, all are on the disk."""
    command("--only", "docs", "lab").communicate(timeout=60)
    rows = Path(f"{command.calls}.files").read_text().splitlines()
    places = {row.rpartition(" -e ")[2][:4]: row.partition(" ")[0] for row in rows}
    assert places["lab "] == os.environ.get("TMPDIR", "")
    in_memory = "/dev/shm/n"
    assert places["docs"] == places["lab "] or places["docs"].startswith(in_memory)
    assert not places["docs"].startswith(in_memory) or not Path(places["docs"]).exists()


def sleeper(command):
    """The process ID of the job that sleeps; 0 before it does."""
    file = Path(f"{command.calls}.pid")
    return int(file.read_text() or 0) if file.exists() else 0


def calls(command):
    """What was called so far."""
    return command.calls.read_text().splitlines() if command.calls.exists() else []


def test_an_interrupted_run_leaves_nothing_running(command):
    process = command("--only", "unit", "lint", sleeps="py311")
    _until(lambda: sleeper(command))
    child = sleeper(command)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=45) != 0
    _until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_ends_a_grandchild_in_a_session_of_its_own(command, number):
    process = command("--only", "unit", "lint", hides="py311")
    _until(lambda: sleeper(command))
    environ = Path(f"/proc/{sleeper(command)}/environ").read_bytes().split(b"\0")
    (mark,) = [each for each in environ if each.startswith(b"NOVA_HPC_TEST_RUN=")]
    process.send_signal(number)
    assert process.wait(timeout=45) == 128 + number
    # It ignores SIGTERM, as Nova's services do that are ending.
    _until(lambda: not Path(f"/proc/{sleeper(command)}").exists())
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            assert mark not in (folder / "environ").read_bytes().split(b"\0")


# The main thread does not notice a signal to another one while it waits without end: the same
# as one that comes just before it begins to wait.
ELSEWHERE = """\
import runpy, signal, sys, threading
def end():
    sys.stdin.read()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=end, daemon=True).start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_signal_that_comes_before_the_wait_ends_the_run(command):
    process = command("--only", "unit", sleeps="py311", through=("-c", ELSEWHERE))
    _until(lambda: sleeper(command))
    child = sleeper(command)
    process.stdin.close()
    assert process.wait(timeout=45) == 143
    _until(lambda: not Path(f"/proc/{child}").exists())


def test_an_unknown_job_is_refused_by_name(command):
    process = command("--only", "uint")
    assert process.wait(timeout=45) == 2


def test_every_job_names_an_environment_of_tox_ini():
    out = subprocess.run(
        [sys.executable, TOP / "tools" / "test_sets.py", "--list"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    known = {"lint", "docs", "unit-full", "lab", "release", "shm", "blazar"}
    known |= {f"py3{minor}" for minor in (11, 12, 13)}
    known |= {f"functional-{release}" for release in (32, 33, 34)}
    assert {line.split()[3] for line in out.splitlines()} <= known
    tox = (TOP / "tox.ini").read_text()
    assert all(name in tox for name in ("[testenv:lint]", "[testenv:docs]", "[testenv:unit-full]"))


FUNCTIONAL = TOP / "tests" / "functional"


def test_each_file_of_functional_tests_is_in_one_job_of_a_release():
    words = {job.name: job.words for job in test_sets.JOBS}
    there = {str(path.relative_to(TOP)) for path in FUNCTIONAL.glob("test_*.py")}
    scheduler, node = (
        there.intersection(words["scheduler-34"]),
        there.intersection(words["node-34"]),
    )
    assert scheduler
    assert node
    assert scheduler.isdisjoint(node)
    folder = "tests/functional/unit_scheduler"
    assert folder in words["scheduler-34"]
    ignored = {word for word in words["others-34"] if word.startswith("--ignore=")}
    assert ignored == {f"--ignore={each}" for each in (*scheduler, *node, folder)}


def test_other_releases_run_the_files_about_what_nova_does():
    about = re.compile(r"^class \w*(?:Contract|Patches|Errors|Reader)", re.M)
    missing = {
        path.stem.removeprefix("test_")
        for path in FUNCTIONAL.glob("test_*.py")
        if re.search("contract|patches|errors|reader", path.name) or about.search(path.read_text())
    }.difference(test_sets.WRAPPING)
    assert missing == set()
    assert all((FUNCTIONAL / f"test_{name}.py").is_file() for name in test_sets.WRAPPING)


_RUN = """\
import pytest

from tools import test_sets

@pytest.mark.parametrize("number", range({many}))
def test_passes(number): pass

def test_fails(): assert False

def test_is_left_out(): pass

@pytest.mark.skip
def test_is_skipped(): pass
"""


@pytest.mark.parametrize("words", [(), ("-v",), ("-o", "console_output_style=times", "-v")])
@pytest.mark.parametrize("many", [3, 150])
def test_the_tests_of_a_log_are_counted(tmp_path, words, many):
    (tmp_path / "test_some.py").write_text(_RUN.format(many=many))
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=no", *words]
    choice = ["-k", "not left_out", f"--rootdir={tmp_path}", "test_some.py"]
    done = subprocess.run([*argv, *choice], cwd=tmp_path, capture_output=True, check=False)
    log = tmp_path / "log"
    assert test_sets.count_tests(log) == ""
    log.write_bytes(done.stdout)
    assert test_sets.count_tests(log) == f" ({many} passed, 1 failed, 0 left)"
    # As it is written.
    lines = done.stdout.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b"test_some.py" in line)
    log.write_bytes(b"".join(lines[:at]))
    assert test_sets.count_tests(log) == f" (0 passed, 0 failed, {many + 2} left)"
