# SPDX-License-Identifier: Apache-2.0
"""Tools are run to their end or to their limit, and nothing is left of them: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nova_hpc_guest.accept import tools
from nova_hpc_guest.accept.session import EndedError, end_on_signals
from nova_hpc_guest.accept.tools import adopt_orphans, run_tool, start_helper
from tests.unit.guest.accept_world import list_processes

ENVIRONMENT = {"PATH": "/bin:/usr/bin"}


@pytest.fixture
def mark() -> str:
    """A word in the command lines of all that a test starts."""
    return f"nova-hpc-test-{uuid.uuid4().hex}"


def python(text: str, mark: str) -> list[str]:
    return [sys.executable, "-c", text, mark]


def left_of(mark: str) -> list[str]:
    until = time.monotonic() + 5
    while list_processes(mark) and time.monotonic() < until:
        time.sleep(0.05)
    return list_processes(mark)


def test_a_tool_that_ends_well(mark: str) -> None:
    done = run_tool(
        python("import sys; print('7'); print('x', file=sys.stderr)", mark), ENVIRONMENT, 10
    )
    assert (done.problem, done.at_limit) == (None, False)
    assert sorted(done.output.split()) == ["7", "x"]
    assert done.wall > 0
    assert done.cpu > 0
    assert done.watched <= done.wall + 0.1


def test_a_tool_writes_into_a_file_without_a_directory(mark: str) -> None:
    text = "import sys; open(sys.argv[2], 'w').write('{}'); print('said')"
    done = run_tool([*python(text, mark), "{json}"], ENVIRONMENT, 10)
    assert (done.output, done.document, done.problem) == ("said\n", "{}", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise SystemExit(3)", "it ended with status 3"),
        ("import os; os.kill(os.getpid(), 11)", "it was killed by SIGSEGV"),
        ("import os; os.abort()", "it was killed by SIGABRT"),
    ],
)
def test_a_tool_that_dies_is_named(text: str, problem: str, mark: str) -> None:
    assert run_tool(python(text, mark), ENVIRONMENT, 10).problem == problem


def test_a_tool_that_is_none(tmp_path: Path) -> None:
    assert "No such file" in str(run_tool([str(tmp_path / "no")], ENVIRONMENT, 1).problem)
    (tmp_path / "text").write_text("x")
    assert "ermission" in str(run_tool([str(tmp_path / "text")], ENVIRONMENT, 1).problem)
    (tmp_path / "text").chmod(0o755)
    assert run_tool([str(tmp_path / "text")], ENVIRONMENT, 1).problem


HANGS = {
    "sleeps": "import time; time.sleep(60)",
    "spins": "while True: pass",
    "deaf": (
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)"
    ),
    "has a child": "import os, time\nos.fork(); time.sleep(60)",
    # As mpirun does with its ranks.
    "a child with a group of its own": (
        "import os, time\nif not os.fork(): os.setpgid(0, 0)\ntime.sleep(60)"
    ),
    "a deaf child in a group": (
        "import os, signal, time\nif not os.fork():\n os.setpgid(0, 0)\n"
        " signal.signal(15, signal.SIG_IGN)\ntime.sleep(60)"
    ),
}


@pytest.mark.parametrize("text", HANGS.values(), ids=HANGS)
def test_a_tool_that_hangs_is_ended_whole(text: str, mark: str) -> None:
    done = run_tool(python(text, mark), ENVIRONMENT, 0.4)
    assert done.at_limit
    assert done.problem == "it was ended at its limit of 0.4 s"
    assert left_of(mark) == []


def test_children_that_a_tool_leaves_behind_are_ended(mark: str) -> None:
    text = "import os, time\nif not os.fork(): time.sleep(60)\nprint('done')"
    done = run_tool(python(text, mark), ENVIRONMENT, 10)
    assert (done.output, done.problem) == ("done\n", None)
    assert left_of(mark) == []


def test_a_tool_that_prints_without_end(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "LONGEST", 1 << 20)
    done = run_tool(python("while True: print('x' * 5000)", mark), ENVIRONMENT, 30)
    assert "more than 1 MiB" in str(done.problem)
    assert not done.at_limit
    assert len(done.output) <= 1 << 20
    assert left_of(mark) == []


def run_helper(mark: str) -> None:
    with start_helper(python(HANGS["deaf"], mark), ENVIRONMENT):
        time.sleep(0.2)
        assert list_processes(mark)
        raise RuntimeError


def test_a_helper_ends_with_its_block(mark: str) -> None:
    with pytest.raises(RuntimeError):
        run_helper(mark)
    assert left_of(mark) == []


def test_whatever_interrupts_the_tool_is_ended(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(5))

    def look(self: object) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tools._Watch, "look", look)
    with pytest.raises(KeyboardInterrupt):
        run_tool(python(HANGS["has a child"], mark), ENVIRONMENT, 30)
    assert left_of(mark) == []


def test_it_is_never_in_real_time_and_on_its_cpu() -> None:
    cpu = min(os.sched_getaffinity(0))
    text = "import os; print(os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)))"
    done = run_tool([sys.executable, "-c", text], ENVIRONMENT, 10, cpus=(cpu,))
    assert done.output == f"{os.SCHED_OTHER} [{cpu}]\n"
    # A CPU that is not there does not keep it from running.
    assert run_tool([sys.executable, "-c", text], ENVIRONMENT, 10, cpus=(99999,)).problem is None


def test_an_end_in_words() -> None:
    assert tools.describe_end(-signal.SIGKILL) == "it was killed by SIGKILL"
    assert tools.describe_end(-200) == "it was killed by signal 200"


def test_bytes_that_are_no_text() -> None:
    text = "import os; os.write(1, bytes(range(256)))"
    assert "\ufffd" in run_tool([sys.executable, "-c", text], ENVIRONMENT, 10).output


# -- ended while it starts --------------------------------------------------------------


class SignalledPopen(subprocess.Popen[bytes]):
    """A process that runs already when this process is told to end and knows nothing of it yet."""

    def _execute_child(self, *arguments: Any) -> None:
        super()._execute_child(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)  # for a thread that would take it


def start_tool(mark: str) -> None:
    run_tool(python(HANGS["a deaf child in a group"], mark), ENVIRONMENT, 10)


def start_a_helper(mark: str) -> None:
    with start_helper(python(HANGS["a deaf child in a group"], mark), ENVIRONMENT):
        time.sleep(10)


@pytest.mark.parametrize("start", [start_tool, start_a_helper])
def test_a_tool_that_starts_as_this_command_ends_is_ended(
    start: Callable[[str], None], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", SignalledPopen)
    with pytest.raises(EndedError, match="ended by SIGTERM"), end_on_signals(), adopt_orphans():
        start(mark)
    assert list_processes(mark) == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("start", [start_tool, start_a_helper])
def test_so_it_is_beside_another_thread(
    start: Callable[[str], None], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes the signal, for it holds none, and Python runs the handler in the main thread."""
    monkeypatch.setattr(subprocess, "Popen", SignalledPopen)
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        with pytest.raises(EndedError, match="ended by SIGTERM"), end_on_signals(), adopt_orphans():
            start(mark)
    finally:
        over.set()
        other.join()
    assert list_processes(mark) == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_tool_hears_the_signals_that_are_held_while_it_starts(mark: str) -> None:
    text = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    assert run_tool(python(text, mark), ENVIRONMENT, 10).output == "set()\n"


def test_a_tool_that_does_not_start_holds_no_signals(tmp_path: Path) -> None:
    assert run_tool([str(tmp_path / "no")], ENVIRONMENT, 1).problem
    with pytest.raises(FileNotFoundError), start_helper([str(tmp_path / "no")], ENVIRONMENT):
        pass
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
