# SPDX-License-Identifier: Apache-2.0
"""The course of a day: requests to schedulers, departures, failures, and the outcome."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection as mp
from typing import Any

import attrs

from benchmarks.concurrency import computes
from benchmarks.concurrency.model import BROKEN, PLACED, REFUSED, Cloud, Variant
from benchmarks.concurrency.stage import Stage, stage
from benchmarks.replay import day, processes, serve
from benchmarks.replay.processes import PATIENCE, Hosts, ReplayError, Worker

#: Deletions start this number of requests before the departure.
_AHEAD = 8
#: Number of readings of the schedulers' memory in a day.
_LOOKS = 20


@attrs.define
class Replay:
    """A day with one variant of schedulers, in a cloud of its own."""

    made: Stage
    cloud: Cloud
    hosts: Hosts
    variant: Variant
    found: day.Day
    number: int
    #: The most allocation candidates in an answer of Placement.
    candidates: int
    workers: list[Worker] = attrs.field(factory=list)
    answers: list[serve.Answer] = attrs.field(factory=list)
    alive: dict[str, day.Request] = attrs.field(factory=dict)
    #: Servers whose scheduler was killed.
    orphaned: list[str] = attrs.field(factory=list)
    memory: list[float] = attrs.field(factory=list)
    seconds: float = 0.0
    _done: int = 0
    #: Held by the thread that sends news to schedulers.
    _telling: threading.Lock = attrs.field(factory=threading.Lock)
    _deletions: dict[int, int] = attrs.field(factory=dict)

    def start(self) -> None:
        """Start the schedulers and wait for them."""
        self.hosts.ask("flavors", self.variant)
        self.workers = [self._scheduler(number) for number in range(self.number)]
        for each in self.workers:
            self._ready(each)
        threading.Thread(target=self._forward, daemon=True).start()
        self._greet(self.workers)

    def _forward(self) -> None:
        """Send the news of hosts to all schedulers, like Nova's fanout."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                told = self.hosts.worker.news.recv()
                for each in list(self.workers):
                    self._tell(each, told)

    def _tell(self, worker: Worker, told: serve.News | None) -> None:
        # A killed scheduler receives nothing any more.
        with self._telling, contextlib.suppress(OSError):
            worker.news.send(told)

    def _sync(self, workers: Sequence[Worker]) -> None:
        """Send the servers of each host, as nova-compute does every two minutes; wait for all."""
        known = self.hosts.ask("all_servers")
        for each in workers:
            for host, servers in known.items():
                self._tell(each, serve.News("sync", host, servers))
            self._tell(each, None)
        for each in workers:
            if not each.news.poll(PATIENCE):
                raise ReplayError("a scheduler does not hear what it is told")
            each.news.recv()

    def _greet(self, workers: Sequence[Worker]) -> None:
        """Report twice: only then does a new scheduler trust its list of a host's servers."""
        for _ in range(2):
            self._sync(workers)

    def _scheduler(self, number: int) -> Worker:
        log = str(self.made.logs / f"replay-scheduler{number}.log")
        return processes.start(
            serve.schedule,
            *(self.made, log, self.variant, self.cloud, self.candidates),
        )

    @staticmethod
    def _ready(worker: Worker) -> None:
        if not worker.pipe.poll(PATIENCE):
            raise ReplayError("a scheduler does not start")
        if (said := worker.pipe.recv()) != "ready":
            raise ReplayError(said.text)

    def run(self, count: int) -> None:
        """Go on with the next requests, and wait for all answers."""
        begin = time.monotonic()
        self._sync(self.workers)
        some = self.found.requests[self._done : self._done + count]
        self._done += len(some)
        for request in some:
            self._happen(request.at)
            self._leave(request.at)
            worker = self._idle()
            worker.pipe.send(request)
            worker.request = request
            if request.at == self.found.scheduler_dies:
                self._die(worker)
        while any(each.request for each in self.workers):
            self._take()
        self.hosts.settle()
        self.seconds += time.monotonic() - begin

    def _happen(self, at: int) -> None:
        failed = max(1, self.cloud.hosts // 100)
        if at == self.found.hosts_fail:
            self.hosts.ask("set_down", failed, True)
        if at == self.found.hosts_return:
            self.hosts.ask("set_down", failed, False)
        if at % max(1, len(self.found.requests) // _LOOKS) == 0:
            self.memory.append(max(each.memory for each in self.workers))

    def _leave(self, now: int) -> None:
        """Delete the servers whose time is over before the next request."""
        due = [name for name, each in self.alive.items() if each.leaves <= now + _AHEAD]
        if due:
            for name in due:
                del self.alive[name]
            self._deletions[self.hosts.tell("delete", due)] = now + _AHEAD
        late = [number for number, at in self._deletions.items() if at <= now]
        if late:
            self.hosts.settle(*late)
        for number in late:
            del self._deletions[number]

    def _idle(self) -> Worker:
        while True:
            for each in self.workers:
                if each.request is None:
                    return each
            self._take()

    def _take(self) -> None:
        """Take the answers of schedulers and hosts."""
        pipes = {each.pipe: each for each in self.workers if each.request}
        ready = mp.wait([*pipes, self.hosts.worker.pipe], PATIENCE)
        if not ready:
            raise ReplayError(f"no answer for {PATIENCE:.0f} seconds")
        for pipe in ready:
            if pipe is self.hosts.worker.pipe:
                self.hosts.take()
                continue
            worker = pipes[pipe]
            answer, request = worker.pipe.recv(), worker.request
            worker.request = None
            assert request is not None
            self.answers.append(answer)
            if answer.outcome == PLACED:
                for name, build in zip(request.servers, answer.builds, strict=True):
                    self.hosts.tell("build", *build)
                    self.alive[name] = request

    def _die(self, worker: Worker) -> None:
        """Kill the scheduler during its request; its user then deletes the request's servers."""
        time.sleep(0.1)
        request = worker.request
        assert request is not None
        number = self.workers.index(worker)
        worker.end()
        self.orphaned += request.servers
        self.workers[number] = self._scheduler(number)
        self._ready(self.workers[number])
        self._greet([self.workers[number]])
        # A claim that was on its way to Placement has arrived there by now.
        self.hosts.tell("delete", list(request.servers))

    def _free(self) -> list[tuple[str, Any]]:
        """Host and place of the GPUs that are free in Placement."""
        self.workers[0].pipe.send("free")
        found: list[tuple[str, Any]] = self.workers[0].pipe.recv()
        return found

    def _devices(self) -> tuple[dict[str, list[str]], int]:
        """Server -> its GPUs by Nova's records; and the number of devices with two servers."""
        places = computes.layout(self.cloud)
        given: dict[str, list[str]] = {}
        seen: set[tuple[str, str]] = set()
        twice = 0
        for server, host, address in self.hosts.ask("devices"):
            twice += (host, address) in seen
            seen.add((host, address))
            if address in places:
                given.setdefault(server, []).append(address)
        return given, twice + (self.made.most_claimed() > 1)

    def row(self) -> day.Row:
        """Count the outcomes of all requests until now."""
        self.hosts.tell("delete", self.orphaned)
        self.hosts.settle()
        asked = self.found.first(self._done)
        gpus = {name: each.gpus for each in asked.requests for name in each.servers}
        size = {each.at: len(each.servers) for each in asked.requests}
        counts = dict.fromkeys((PLACED, REFUSED, BROKEN), 0)
        for each in self.answers:
            counts[each.outcome] += size[each.at]
        given, twice = self._devices()
        # Placement's allocations, Nova's records and the promised devices must be equal.
        promised = sum(gpus[name] for name in self.alive)
        records = sum(len(each) for each in given.values())
        if not self.hosts.refusals and not self.made.claimed() == records == promised:
            raise ReplayError(
                f"GPUs: {promised} promised, {records} in Nova's records, "
                f"{self.made.claimed()} in Placement"
            )
        free = self._free()
        if not self.made.down() and len(free) + records != self.cloud.devices:
            raise ReplayError(
                f"GPUs: {len(free)} unused and {records} in use of {self.cloud.devices}"
            )
        places = computes.layout(self.cloud)
        pairs = [each for name, each in given.items() if gpus[name] == 2]
        latencies = [each.seconds for each in self.answers]
        predicted, used = day.predicted(asked, self.cloud, self.variant.ours)
        refused = {each.at for each in self.answers if each.outcome == REFUSED}
        return day.Row(
            variant=self.variant.title,
            hosts=self.cloud.hosts,
            schedulers=self.number,
            requests=len(asked.requests),
            servers=asked.servers,
            placed=counts[PLACED],
            refused=counts[REFUSED],
            refused_gpus=sum(e.gpus * size[e.at] for e in asked.requests if e.at in refused),
            spurious=sum(each.free_left for each in self.answers),
            broken=counts[BROKEN],
            conflicts=sum(each.conflicts for each in self.answers),
            asked=sum(each.asked for each in self.answers),
            read=sum(each.read for each in self.answers),
            orphaned=len(self.orphaned),
            node_refusals=len(self.hosts.refusals),
            given_twice=twice,
            scattered=sum(len({places[one].switches for one in each}) > 1 for each in pairs),
            pairs=len(pairs),
            stranded=day.stranded(free),
            used=records,
            predicted=predicted,
            predicted_used=used,
            seconds=self.seconds,
            p50=day.quantile(latencies, 0.5),
            p99=day.quantile(latencies, 0.99),
            memory=tuple(self.memory),
        )

    def end(self) -> None:
        """End the schedulers."""
        for each in self.workers:
            each.end()


@contextlib.contextmanager
def replay(
    cloud: Cloud, variant: Variant, found: day.Day, schedulers: int, candidates: int
) -> Iterator[Replay]:
    """Start a cloud of its own for a variant, with its schedulers."""
    with stage(candidates=candidates) as made, processes.hosts(made, cloud) as hosts:
        running = Replay(made, cloud, hosts, variant, found, schedulers, candidates)
        try:
            running.start()
            yield running
        finally:
            running.end()
