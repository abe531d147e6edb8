# SPDX-License-Identifier: Apache-2.0
"""Steps run in order, in parallel, and stop on failure."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from nova_hpc_lab import progress
from nova_hpc_lab.cloud import Cloud
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.process import Tools
from nova_hpc_lab.progress import PlainDisplay, RichDisplay, Step, display, run_steps
from nova_hpc_lab.state import Paths, Settings


def test_each_step_waits_for_what_it_needs():
    done = []
    steps = [
        Step("c", "C", lambda report: done.append("c"), ("b",)),
        Step("a", "A", lambda report: done.append("a")),
        Step("b", "B", lambda report: done.append("b"), ("a", "not there")),
    ]
    run_steps(steps, PlainDisplay(io.StringIO()))
    assert done == ["a", "b", "c"]


def test_independent_steps_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=60)
    steps = [Step(name, name, lambda report: meet.wait() and None) for name in "ab"]
    run_steps(steps, PlainDisplay(io.StringIO()))


def test_a_failure_aborts_the_others_and_starts_nothing_more():
    aborted = threading.Event()
    ran = []

    def fail(report):
        raise LabError("broken")

    steps = [
        Step("slow", "Slow", lambda report: ran.append(aborted.wait(60))),
        Step("bad", "Bad", fail),
        Step("never", "Never", lambda report: ran.append("never"), ("bad",)),
    ]
    stream = io.StringIO()
    with pytest.raises(LabError, match="broken"):
        run_steps(steps, PlainDisplay(stream), abort=aborted.set)
    assert ran == [True]
    assert "Bad: failed" in stream.getvalue()


def test_plain_lines_carry_notes_once_and_the_outcome():
    def work(report):
        report("half", 0.5)
        report("half", 0.6)

    stream = io.StringIO()
    run_steps([Step("a", "Title", work)], PlainDisplay(stream))
    lines = stream.getvalue().splitlines()
    assert lines[0].partition("] ")[2] == "Title: half"
    assert len(lines) == 2
    assert "Title: done" in lines[1]


def test_a_pipe_gets_plain_lines_and_a_terminal_a_live_display(monkeypatch):
    with display(io.StringIO()) as shown:
        assert isinstance(shown, PlainDisplay)
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    assert Console(file=stream).is_terminal
    with display(stream) as shown:
        assert isinstance(shown, RichDisplay)
        run_steps([Step("a", "Title", lambda report: report("note", 0.5))], shown)
    assert "Title" in stream.getvalue()


def test_a_step_that_never_returns_is_named_and_left(monkeypatch):
    monkeypatch.setattr(progress, "END_LIMIT", 0.3)
    release = threading.Event()

    def stuck(report):
        report("reading", None)
        release.wait()

    stream = io.StringIO()
    begun = time.monotonic()
    steps = [
        Step("stuck", "The stuck one", stuck, limit=0.5),
        Step("other", "The other one", lambda report: release.wait()),
    ]
    with pytest.raises(
        LabError, match=r"The stuck one is not done after 0 s \(last it said: reading\)"
    ):
        run_steps(steps, PlainDisplay(stream))
    assert time.monotonic() - begun < 30
    assert "The stuck one: failed" in stream.getvalue()
    assert "The other one: does not end; it is left behind" in stream.getvalue()
    # What they say later goes nowhere.
    said = stream.getvalue()
    release.set()
    time.sleep(0.1)
    assert stream.getvalue() == said


# The real command, with steps of which one never ends: it reads a pipe that
# nobody closes, as the seal of the cache once did.
STUCK_UP = """\
import os, signal, sys
from nova_hpc_tools.main import main
from nova_hpc_lab import cloud, process, progress

# Whoever runs the tests in the background of a shell has made it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
progress.END_LIMIT = 0.5
reading, writing = os.pipe()
limit = float(sys.argv[1])

def up(self, shown):
    tools = process.Tools(self.paths)
    def read(report):
        report("reading", None)
        os.read(reading, 1)
    def program(report):
        report("sleeping", None)
        tools.run("sleeper", ["sleep", "600"])
    steps = [progress.Step("read", "A read", read, limit=limit),
             progress.Step("program", "A program", program)]
    progress.run_steps(steps, shown, tools.abort)

cloud.Cloud.up = up
sys.exit(main(["lab", "up", "--nodes", "0"]))
"""


@pytest.fixture
def stuck_up(tmp_path_factory):
    """Start the command with a step that never ends."""
    home = tmp_path_factory.mktemp("l")
    started = []

    def start(limit):
        environ = {**os.environ, "XDG_STATE_HOME": f"{home}/s", "XDG_CACHE_HOME": f"{home}/c"}
        process = subprocess.Popen(
            [sys.executable, "-c", STUCK_UP, str(limit)],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stuck_up_can_be_interrupted(stuck_up, number):
    process = stuck_up(600)
    # Both have begun, in any order; one that has not would not be named.
    begun = process.stderr.readline() + process.stderr.readline()
    assert "A read: reading" in begun
    assert "A program: sleeping" in begun
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "A program: stopped" in said
    assert "Interrupted. Go on with: nova-hpc lab up" in said
    assert "Traceback" not in said


def test_a_stuck_up_ends_by_itself_and_names_the_step(stuck_up):
    process = stuck_up(1)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert "nova-hpc: A read is not done after 1 s (last it said: reading)" in said
    assert "Traceback" not in said


def test_nova_starts_when_its_service_user_is_there(tmp_path):
    """On a slow machine Nova's conductor was started before, and ended: Keystone said 401."""
    paths = Paths(tmp_path / "state", tmp_path / "cache", Path(sys.prefix))
    lab = Cloud(paths, Settings.fresh(28000, 0, "two-socket"))
    steps = {step.name: step for step in lab._steps(lab.services(), Tools(paths))}
    for name in ("nova-conductor", "nova-scheduler", "nova-api"):
        assert "catalog" in steps[name].needs
