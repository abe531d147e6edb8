# SPDX-License-Identifier: Apache-2.0
"""Threads that take turns: one runs, up to a point at which the test chooses the next.

Points are lines of the modules under test, what a test marks with :meth:`ThreadTurns.point`, and
locks of :class:`TurnLock`. So each order of the steps of threads can be forced, and a random one
repeated by its seed; no clock decides.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Final

#: Points between two changes of threads, at most, in a random order.
_LONGEST_RUN: Final = 60
#: The label of a thread that waits for a lock.
BLOCKED: Final = "blocked"
ENDED: Final = "ended"
_LINE: Final = "line"
#: Seconds after which a turn counts as hung, so that a test fails and does not wait for ever.
_HUNG: Final = 120.0


class ThreadTurns:
    """Threads of which one runs at a time.

    :param traced: files of which each line is a point.
    """

    def __init__(self, traced: Collection[str] = ()) -> None:
        self._traced = frozenset(traced)
        self._turns: dict[str, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self._own = threading.local()
        self._left = 0
        #: Thread -> the point at which it is.
        self.places: dict[str, str] = {}
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, name: str, work: Callable[[], object]) -> None:
        """Add a thread; it does nothing before its first turn."""
        turn = self._turns[name] = threading.Semaphore(0)
        self.places[name] = "begin"

        def run() -> None:
            turn.acquire()
            self._own.name = name
            if self._traced:
                sys.settrace(self._trace_call)
            try:
                work()
            except BaseException as error:
                self.errors.append(error)
            finally:
                sys.settrace(None)
                self.places[name] = ENDED
                self._back.release()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _trace_call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._trace_line if frame.f_code.co_filename in self._traced else None

    def _trace_line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == _LINE:
            self.point(_LINE)
        return self._trace_line

    def point(self, label: str) -> None:
        """Where the thread that runs may be made to wait; elsewhere it is nothing."""
        name = getattr(self._own, "name", None)
        if name is None:
            return
        self.places[name] = label
        self._left -= 1
        if self._left > 0 and label == _LINE:
            return
        self._back.release()
        self._turns[name].acquire()

    def step(self, name: str, points: int = 1) -> str:
        """Let a thread run for so many lines, or up to its next marked point; where it is then."""
        assert self.places[name] != ENDED, f"{name} has ended"
        self._left = points
        self._turns[name].release()
        assert self._back.acquire(timeout=_HUNG), f"{name} hangs after {self.places[name]}"
        return self.places[name]

    def run_to(self, name: str, label: str) -> None:
        """Let a thread run up to a point."""
        while self.step(name, _LONGEST_RUN) != label:
            assert self.places[name] not in (ENDED, BLOCKED), f"{name}: {self.places[name]}"

    def run_on(self, name: str) -> str:
        """Let a thread run until it ends or waits for a lock."""
        while self.step(name, _LONGEST_RUN) not in (ENDED, BLOCKED):
            pass
        return self.places[name]

    def run_all(self, chance: random.Random) -> None:
        """Let all run to their ends, in a random order."""
        while running := [name for name, place in self.places.items() if place != ENDED]:
            self.step(chance.choice(running), chance.randint(1, _LONGEST_RUN))
            self.raise_first()
        self.raise_first()

    def raise_first(self) -> None:
        """Raise what a thread has raised."""
        if self.errors:
            raise self.errors[0]


class TurnLock:
    """A lock whose waiting is a point."""

    def __init__(self, turns: ThreadTurns) -> None:
        self._turns = turns
        self._is_held = False

    def __enter__(self) -> None:
        self._turns.point("lock")
        while self._is_held:
            self._turns.point(BLOCKED)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        self._turns.point("unlock")
