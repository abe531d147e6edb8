# SPDX-License-Identifier: Apache-2.0
"""The processes of a replay, from the replay's side: start, requests, end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import attrs
import psutil

from benchmarks.concurrency import nova_process
from benchmarks.concurrency.model import Cloud
from benchmarks.concurrency.stage import Stage
from benchmarks.replay import day, register, serve

#: Seconds after which a silent process is taken for dead.
PATIENCE = 600.0
_MIB = 1 << 20
_FORKED = "benchmarks.replay.loaded"


class ReplayError(Exception):
    """A process failed; the text contains its name or its traceback."""


@attrs.define
class Worker:
    """A process, the pipe for requests to it, and a pipe for news in one direction."""

    process: Any
    pipe: Any
    news: Any
    request: day.Request | None = None

    @property
    def memory(self) -> float:
        """Resident memory, MiB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / _MIB

    def end(self) -> None:
        """Kill the process in any state, and close its pipes."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.news.close()


def start(target: Any, *arguments: Any) -> Worker:
    """Start a process; its main function also gets its ends of both pipes."""
    os.environ |= nova_process.ENVIRONMENT
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([_FORKED])
    pipe, news = forks.Pipe(), forks.Pipe()
    process = forks.Process(target=target, args=(*arguments, pipe[1], news[1]), daemon=True)
    process.start()
    for its in (pipe[1], news[1]):
        its.close()
    return Worker(process, pipe[0], news[0])


@attrs.define
class Hosts:
    """The hosts' process, and the requests that it has not answered yet."""

    worker: Worker
    _asked: int = 0
    _open: dict[int, str] = attrs.field(factory=dict)
    #: Reasons of refused builds.
    refusals: list[str] = attrs.field(factory=list)

    def tell(self, word: str, *arguments: Any) -> int:
        """Send a request without waiting; return its number."""
        self._asked += 1
        self._open[self._asked] = word
        self.worker.pipe.send((self._asked, word, arguments))
        return self._asked

    def take(self) -> tuple[int, Any]:
        """The number and result of the next answer.

        :raises ReplayError: the request failed.
        """
        number, result = self.worker.pipe.recv()
        word = self._open.pop(number, "start")
        if number < 0 or (isinstance(result, str) and result.startswith("failed: ")):
            raise ReplayError(f"{word}: {result}")
        if word == "build" and result:
            self.refusals.append(result)
        return number, result

    def ask(self, word: str, *arguments: Any) -> Any:
        """Send a request, and wait for its answer."""
        wanted = self.tell(word, *arguments)
        while True:
            self._wait()
            number, result = self.take()
            if number == wanted:
                return result

    def settle(self, *numbers: int) -> None:
        """Wait until these requests (all, if none is given) have been answered."""
        while self._open.keys() & set(numbers) if numbers else self._open:
            self._wait()
            self.take()

    def _wait(self) -> None:
        if not self.worker.pipe.poll(PATIENCE):
            raise ReplayError(f"the hosts do not answer to {sorted(set(self._open.values()))}")


@contextlib.contextmanager
def hosts(made: Stage, cloud: Cloud) -> Iterator[Hosts]:
    """Start the hosts: the first ones register themselves, the others are copies of their rows."""
    log = str(made.logs / "replay-hosts.log")
    worker = start(serve.host, str(made.nova_conf), log, cloud)
    try:
        found = Hosts(worker)
        found.ask("register", register.REAL)
        register.copy(made, cloud)
        found.ask("take_over", register.REAL)
        yield found
    finally:
        worker.end()
