"""Steps run in order, in parallel, and stop on failure."""

import io
import threading

import pytest
from rich.console import Console

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.progress import PlainDisplay, RichDisplay, Step, display, run_steps


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
