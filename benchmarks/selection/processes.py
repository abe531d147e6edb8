# SPDX-License-Identifier: Apache-2.0
"""Schedulers in processes of their own, which get their questions from this one."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.concurrency.stage import Stage
from benchmarks.selection import side
from benchmarks.selection.kept import INSTALLED
from benchmarks.selection.side import Question, Sample

SIDES: Final = ("ours", "stock")
#: Names of the sides without our filters.
WITHOUT: Final = ("stock", INSTALLED)
#: Options that make our filters fast -> the values that switch them off.
_OFF: Final[Mapping[tuple[str, str], object]] = {
    ("hpc", "placement_question"): "devices",
    ("hpc", "kept_hosts"): 0,
    ("hpc", "full_collection_interval"): 0,
}
#: Our filters with a part of these options: name -> options that switch off the rest.
PARTS: Final[Mapping[str, Mapping[tuple[str, str], object]]] = {
    "none": _OFF,
    "asked": {key: value for key, value in _OFF.items() if key[1] != "placement_question"},
    "kept": {key: value for key, value in _OFF.items() if key[1] != "kept_hosts"},
    "collections": {
        key: value for key, value in _OFF.items() if key[1] != "full_collection_interval"
    },
}
#: Seconds until a scheduler is ready.
_READY: Final = 300.0


class Crew:
    """Schedulers of one kind, for as long as the context lasts."""

    def __init__(
        self,
        made: Stage,
        name: str,
        options: Mapping[tuple[str, str], object],
        schedulers: int = 1,
    ) -> None:
        """
        :param name: name of the side; all sides except :data:`WITHOUT` have our filters.
        :param options: (group, option) -> value, only for this side.
        """
        self._name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Any] = []
        self._crew = []
        for number in range(schedulers):
            here, there = spawn.Pipe()
            log = str(made.logs / f"{name}-{number}.log")
            arguments = (str(made.nova_conf), log, name not in WITHOUT, dict(options), there)
            process = spawn.Process(target=side.serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._crew.append(process)

    def __enter__(self) -> Crew:
        for pipe in self._pipes:
            self._answer(pipe, _READY)
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._crew:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def ask(self, question: Question, seconds: float | None = None) -> Sample:
        """The answer of the first scheduler.

        :raises TimeoutError: no answer within *seconds*; the scheduler is still busy.
        """
        pipe = self._pipes[0]
        pipe.send((question, 1))
        (found,) = self._answer(pipe, seconds)
        assert isinstance(found, Sample)
        return found

    def rush(self, question: Question, each: int) -> tuple[float, Sequence[Sample]]:
        """Send *each* copies of a question to all schedulers; seconds until the last answer."""
        begin = time.perf_counter()
        for pipe in self._pipes:
            pipe.send((question, each))
        found = [one for pipe in self._pipes for one in self._answer(pipe, None)]
        return time.perf_counter() - begin, found

    def _answer(self, pipe: Any, seconds: float | None) -> Any:
        if seconds is not None and not pipe.poll(seconds):
            raise TimeoutError(f"{self._name} has not answered within {seconds:g} s")
        found = pipe.recv()
        if isinstance(found, str) and found != side.READY:
            raise RuntimeError(f"{self._name}: {found}")
        return found
