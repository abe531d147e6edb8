"""Steps that run as soon as what they need is done, and how they are shown."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from graphlib import TopologicalSorter
from typing import Protocol, TextIO

import attrs
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from nova_hpc_lab.errors import InterruptedStepError

#: Called by a step with a line on how far it is, and a fraction if known.
Report = Callable[[str, float | None], None]


@attrs.frozen
class Step:
    """One thing to do; ``work`` is called in a thread of its own."""

    name: str
    title: str
    work: Callable[[Report], None]
    needs: Sequence[str] = ()


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "done"
    return "stopped" if isinstance(error, InterruptedStepError) else "failed"


class Display(Protocol):
    """Shows steps while they run; called from several threads."""

    def begin(self, step: Step) -> None:
        """A step starts."""

    def note(self, step: Step, text: str, fraction: float | None) -> None:
        """A step says how far it is."""

    def done(self, step: Step, error: BaseException | None) -> None:
        """A step is over."""


@attrs.define
class PlainDisplay:
    """Lines of text, for logs and pipes."""

    stream: TextIO
    _start: float = attrs.field(factory=time.monotonic, init=False)
    _begun: dict[str, float] = attrs.field(factory=dict, init=False)
    _last: dict[str, str] = attrs.field(factory=dict, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def begin(self, step: Step) -> None:
        """Print nothing yet: most steps are short."""
        self._begun[step.name] = time.monotonic()

    def note(self, step: Step, text: str, fraction: float | None) -> None:
        """Print the text, once."""
        if self._last.get(step.name) != text:
            self._last[step.name] = text
            self._print(f"{step.title}: {text}")

    def done(self, step: Step, error: BaseException | None) -> None:
        """Print the outcome and how long it took."""
        seconds = time.monotonic() - self._begun[step.name]
        self._print(f"{step.title}: {_outcome(error)} ({seconds:.1f} s)")

    def _print(self, text: str) -> None:
        with self._guard:
            print(f"[{time.monotonic() - self._start:6.1f} s] {text}", file=self.stream, flush=True)


@attrs.define
class RichDisplay:
    """A line a step with a spinner and a clock, for terminals."""

    progress: Progress
    _tasks: dict[str, TaskID] = attrs.field(factory=dict, init=False)

    def begin(self, step: Step) -> None:
        """Add a line."""
        self._tasks[step.name] = self.progress.add_task(step.title, total=None, note="")

    def note(self, step: Step, text: str, fraction: float | None) -> None:
        """Show the text, and the bar where the fraction is known."""
        task = self._tasks[step.name]
        if fraction is None:
            self.progress.update(task, note=text)
        else:
            self.progress.update(task, note=text, total=1.0, completed=fraction)

    def done(self, step: Step, error: BaseException | None) -> None:
        """Stop the line's clock."""
        mark = f"[{'red' if error else 'green'}]{_outcome(error)}"
        task = self._tasks[step.name]
        self.progress.update(task, total=1.0, completed=0.0 if error else 1.0, note=mark)
        self.progress.stop_task(task)


@contextmanager
def display(stream: TextIO | None = None) -> Iterator[Display]:
    """The display that fits *stream* (default: standard error)."""
    stream = sys.stderr if stream is None else stream
    console = Console(file=stream)
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
    """Run *steps*, each as soon as those that it needs are done.

    After the first failure no step begins; the running ones are aborted and
    waited for, and the failure is raised. The same on Ctrl-C.

    :param abort: called once to make the running steps end soon.
    """
    by_name = {step.name: step for step in steps}
    # What a caller left out (as already done) is no obstacle.
    order = TopologicalSorter(
        {step.name: [need for need in step.needs if need in by_name] for step in steps}
    )
    order.prepare()

    def perform(step: Step) -> None:
        shown.begin(step)
        try:
            step.work(lambda text, fraction: shown.note(step, text, fraction))
        except BaseException as err:
            shown.done(step, err)
            raise
        shown.done(step, None)

    with ThreadPoolExecutor(max_workers=max(1, len(steps))) as pool:
        running: dict[Future[None], str] = {}
        try:
            while order.is_active():
                for name in order.get_ready():
                    running[pool.submit(perform, by_name[name])] = name
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = running.pop(future)
                    future.result()
                    order.done(name)
        except BaseException:
            abort()
            raise
