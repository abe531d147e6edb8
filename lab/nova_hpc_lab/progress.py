# SPDX-License-Identifier: Apache-2.0
"""Runs steps as soon as the steps that they need are done, and shows them."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from graphlib import TopologicalSorter
from typing import Final, Protocol, TextIO

import attrs
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from nova_hpc_common.output.printing import InertConsole
from nova_hpc_lab.errors import InterruptedStepError, LabError

#: Called by a step with a line on its progress, and the part that is done, or None if unknown.
Report = Callable[[str, float | None], None]

#: Seconds that a step may take, unless it has its own limit.
STEP_LIMIT: Final = 900.0
#: Seconds in which steps have to end after a failure or an interrupt. A step that is stuck in a
#: call is left behind.
END_LIMIT: Final = 20.0
#: Longest time in seconds until a signal is handled.
_TURN: Final = 0.5


@attrs.frozen
class Step:
    """A step of a command.

    :ivar work: does the step; called in its own thread.
    :ivar needs: names of the steps that have to be done before.
    """

    name: str
    title: str
    work: Callable[[Report], None]
    needs: Sequence[str] = ()
    #: Seconds after which it counts as stuck.
    limit: float = STEP_LIMIT


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "done"
    return "stopped" if isinstance(error, InterruptedStepError) else "failed"


class Display(Protocol):
    """Interface that shows steps while they run; called from several threads."""

    def begin(self, step: Step) -> None:
        """Show that a step starts."""

    def note(self, step: Step, text: str, fraction: float | None) -> None:
        """Show the progress of a step.

        :param fraction: from 0 to 1; None if unknown.
        """

    def done(self, step: Step, error: BaseException | None) -> None:
        """Show that a step has ended, with its error; None if it succeeded."""


@attrs.define
class PlainDisplay:
    """Display of steps as lines of text, for logs and pipes."""

    stream: TextIO
    _start: float = attrs.field(factory=time.monotonic, init=False)
    _begun: dict[str, float] = attrs.field(factory=dict, init=False)
    _last: dict[str, str] = attrs.field(factory=dict, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def begin(self, step: Step) -> None:
        """Store the step's start time, and print nothing: most steps are short."""
        self._begun[step.name] = time.monotonic()

    def note(self, step: Step, text: str, fraction: float | None) -> None:
        """Print the text if it differs from the last one."""
        if self._last.get(step.name) != text:
            self._last[step.name] = text
            self._print(f"{step.title}: {text}")

    def done(self, step: Step, error: BaseException | None) -> None:
        """Print the outcome and the duration."""
        seconds = time.monotonic() - self._begun[step.name]
        self._print(f"{step.title}: {_outcome(error)} ({seconds:.1f} s)")

    def _print(self, text: str) -> None:
        with self._guard:
            print(f"[{time.monotonic() - self._start:6.1f} s] {text}", file=self.stream, flush=True)


@attrs.define
class RichDisplay:
    """One line for each step, with a spinner and a clock, for terminals."""

    progress: Progress
    _tasks: dict[str, TaskID] = attrs.field(factory=dict, init=False)

    def begin(self, step: Step) -> None:
        """Add a line with a clock for the step."""
        self._tasks[step.name] = self.progress.add_task(step.title, total=None, note="")

    def note(self, step: Step, text: str, fraction: float | None) -> None:
        """Show the text, and the bar if the fraction is known."""
        text = escape(text)
        task = self._tasks[step.name]
        if fraction is None:
            self.progress.update(task, note=text)
        else:
            self.progress.update(task, note=text, total=1.0, completed=fraction)

    def done(self, step: Step, error: BaseException | None) -> None:
        """Stop the clock of the step's line, and show whether the step succeeded."""
        mark = f"[{'red' if error else 'green'}]{_outcome(error)}"
        task = self._tasks[step.name]
        self.progress.update(task, total=1.0, completed=0.0 if error else 1.0, note=mark)
        self.progress.stop_task(task)


@contextmanager
def display(stream: TextIO | None = None) -> Iterator[Display]:
    """Yield the display that fits *stream* (default: standard error): rich's for a terminal."""
    stream = sys.stderr if stream is None else stream
    console = InertConsole(file=stream)
    if not console.is_terminal:
        yield PlainDisplay(stream)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield RichDisplay(progress)


def run_steps(
    steps: Sequence[Step], shown: Display, abort: Callable[[], None] = lambda: None
) -> None:
    """Run *steps*, each as soon as the steps that it needs are done.

    After the first failure no further step begins. The running ones are aborted and get
    :data:`END_LIMIT` seconds to end; then the failure is raised. Ctrl-C has the same effect.

    :param abort: called once, to end the running steps soon.
    :raises LabError: a step was not done within its limit; the text names it.
    """
    _Run(steps, shown).run(abort)


@attrs.define
class _Begun:
    """A step that runs, with its deadline on a monotonic clock."""

    step: Step
    deadline: float
    said: str = ""
    thread: threading.Thread | None = None


class _Run:
    """Runs each step in its own thread, and never waits for one without a limit.

    The threads are daemons. Python waits for a pool's threads when the process ends, so a stuck
    step in a pool would prevent the command from ending.
    """

    def __init__(self, steps: Sequence[Step], shown: Display) -> None:
        self._steps = {step.name: step for step in steps}
        self._shown = shown
        self._running: dict[str, _Begun] = {}
        self._ended: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
        #: Set when the reports of steps are ignored from now on.
        self._left = threading.Event()

    def run(self, abort: Callable[[], None]) -> None:
        # A caller may leave out steps that are already done.
        order = TopologicalSorter(
            {
                step.name: [need for need in step.needs if need in self._steps]
                for step in self._steps.values()
            }
        )
        order.prepare()
        try:
            while order.is_active():
                for name in order.get_ready():
                    self._begin(self._steps[name])
                name, error = self._next()
                if error is not None:
                    raise error
                order.done(name)
        except BaseException:
            try:
                abort()
                self._wait_for_the_others(time.monotonic() + END_LIMIT)
            finally:
                self._left.set()
            raise

    def _begin(self, step: Step) -> None:
        begun = _Begun(step, time.monotonic() + step.limit)
        self._running[step.name] = begun
        self._shown.begin(step)
        begun.thread = threading.Thread(
            target=self._perform, args=(begun,), name=f"step {step.name}", daemon=True
        )
        begun.thread.start()

    def _perform(self, begun: _Begun) -> None:
        step = begun.step

        def listened_to() -> bool:
            return step.name in self._running and not self._left.is_set()

        def report(text: str, fraction: float | None) -> None:
            begun.said = text
            if listened_to():
                self._shown.note(step, text, fraction)

        error: BaseException | None = None
        try:
            step.work(report)
        except BaseException as err:
            error = err
        if listened_to():
            self._shown.done(step, error)
        self._ended.put((step.name, error))

    def _next(self) -> tuple[str, BaseException | None]:
        """Wait for the next step that ends, and return its error if it failed.

        :raises LabError: a step reached its deadline before that.
        """
        first = min(self._running.values(), key=lambda begun: begun.deadline)
        try:
            name, error = self._one_that_ended(first.deadline)
        except queue.Empty:
            said = f" (last it said: {first.said})" if first.said else ""
            late = LabError(f"{first.step.title} is not done after {first.step.limit:.0f} s{said}")
            self._shown.done(first.step, late)
            del self._running[first.step.name]
            raise late from None
        del self._running[name]
        return name, error

    def _one_that_ended(self, deadline: float) -> tuple[str, BaseException | None]:
        """Wait for the next step that ends.

        The wait consists of short turns. A signal that arrives between Python's last check for
        signals and the wait in C is handled only when the wait is over.

        :raises queue.Empty: the deadline is reached.
        """
        while True:
            left = deadline - time.monotonic()
            try:
                return self._ended.get(timeout=min(max(0.0, left), _TURN))
            except queue.Empty:
                if left <= _TURN:
                    raise

    def _wait_for_the_others(self, deadline: float) -> None:
        # If an interrupt came before a step's thread was started, there is no thread to wait for.
        for begun in list(self._running.values()):
            if begun.thread is not None and begun.thread.ident is not None:
                begun.thread.join(max(0.0, deadline - time.monotonic()))
                if begun.thread.is_alive():
                    self._shown.note(begun.step, "does not end; it is left behind", None)
