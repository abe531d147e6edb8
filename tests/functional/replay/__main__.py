# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.functional.replay``: replay the day, stock Nova and ours in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection as mp
from pathlib import Path
from typing import Any

import attrs
import psutil

from benchmarks.report import provenance
from tests.functional.concurrency import computes, nova_process
from tests.functional.concurrency.model import BROKEN, PLACED, REFUSED, VARIANTS, Cloud, Variant
from tests.functional.concurrency.stage import Stage, stage
from tests.functional.replay import day, serve

RESULTS = Path(__file__).with_name("RESULTS.rst")
#: Seconds after which a silent process is taken for dead.
_PATIENCE = 600.0
#: Deletions are asked for so many requests ahead.
_AHEAD = 8
_MIB = 1 << 20


class ReplayError(Exception):
    """A process failed; the text says which, or has its traceback."""


@attrs.define
class Worker:
    """A process and the pipe to it."""

    process: Any
    pipe: Any
    request: day.Request | None = None

    @property
    def memory(self) -> float:
        """Resident memory, MiB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / _MIB

    def end(self) -> None:
        """Kill it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _start(target: Any, *arguments: Any) -> Worker:
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    process = spawn.Process(target=target, args=(*arguments, its), daemon=True)
    process.start()
    its.close()
    return Worker(process, mine)


@attrs.define
class Hosts:
    """The hosts' process, and what it has not answered yet."""

    worker: Worker
    _asked: int = 0
    _open: dict[int, str] = attrs.field(factory=dict)
    #: What builds were refused for.
    refusals: list[str] = attrs.field(factory=list)

    def tell(self, word: str, *arguments: Any) -> int:
        """Ask for something; its number."""
        self._asked += 1
        self._open[self._asked] = word
        self.worker.pipe.send((self._asked, word, arguments))
        return self._asked

    def take(self) -> tuple[int, Any]:
        """The next answer; :class:`ReplayError` where something failed."""
        number, result = self.worker.pipe.recv()
        word = self._open.pop(number, "start")
        if number < 0 or (isinstance(result, str) and result.startswith("failed: ")):
            raise ReplayError(f"{word}: {result}")
        if word == "build" and result:
            self.refusals.append(result)
        return number, result

    def ask(self, word: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer."""
        wanted = self.tell(word, *arguments)
        while True:
            if not self.worker.pipe.poll(_PATIENCE):
                raise ReplayError(f"the hosts do not answer to {word}")
            number, result = self.take()
            if number == wanted:
                return result

    def settle(self, *numbers: int) -> None:
        """Until these (or all) have been answered."""
        while self._open.keys() & set(numbers) if numbers else self._open:
            if not self.worker.pipe.poll(_PATIENCE):
                raise ReplayError("the hosts do not answer")
            self.take()


@attrs.define
class Replay:
    """A day on its way, with one variant of schedulers."""

    made: Stage
    cloud: Cloud
    hosts: Hosts
    variant: Variant
    found: day.Day
    number: int
    workers: list[Worker] = attrs.field(factory=list)
    answers: list[serve.Answer] = attrs.field(factory=list)
    alive: dict[str, day.Request] = attrs.field(factory=dict)
    #: Servers whose scheduler was killed.
    orphaned: list[str] = attrs.field(factory=list)
    memory: list[float] = attrs.field(factory=list)
    _deletions: dict[int, int] = attrs.field(factory=dict)
    _dying: bool = False

    def start(self) -> None:
        """Start the schedulers and wait for them."""
        self.workers = [self._scheduler(number) for number in range(self.number)]
        for each in self.workers:
            self._ready(each)

    def _scheduler(self, number: int) -> Worker:
        log = str(self.made.logs / f"replay-scheduler{number}.log")
        return _start(serve.schedule, str(self.made.nova_conf), log, self.variant, self.cloud)

    @staticmethod
    def _ready(worker: Worker) -> None:
        if not worker.pipe.poll(_PATIENCE):
            raise ReplayError("a scheduler does not start")
        if (said := worker.pipe.recv()) != "ready":
            raise ReplayError(said.text)

    def run(self) -> float:
        """All requests of the day; the seconds that they took."""
        begin = time.monotonic()
        failed = max(1, self.cloud.hosts // 100)
        for request in self.found.requests:
            if request.at == self.found.hosts_fail:
                self.hosts.ask("set_down", failed, True)
            if request.at == self.found.hosts_return:
                self.hosts.ask("set_down", failed, False)
            self._leave(request.at)
            worker = self._idle()
            worker.pipe.send(request)
            worker.request = request
            if request.at == self.found.scheduler_dies:
                self._die(worker)
            if request.at % max(1, len(self.found.requests) // 20) == 0:
                self.memory.append(max(each.memory for each in self.workers))
        while any(each.request for each in self.workers):
            self._take()
        seconds = time.monotonic() - begin
        # A claim may have reached Placement after its scheduler was dead.
        self.hosts.tell("delete", self.orphaned)
        self.hosts.settle()
        return seconds

    def _leave(self, now: int) -> None:
        """Servers whose time is over are gone before the request that comes now."""
        due = [n for n, each in self.alive.items() if each.leaves <= now + _AHEAD]
        if due:
            for name in due:
                del self.alive[name]
            self._deletions[self.hosts.tell("delete", due)] = now + _AHEAD
        late = [number for number, at in self._deletions.items() if at <= now]
        self.hosts.settle(*late) if late else None
        for number in late:
            del self._deletions[number]

    def _idle(self) -> Worker:
        while True:
            for each in self.workers:
                if each.request is None:
                    return each
            self._take()

    def _take(self) -> None:
        """What schedulers and hosts have answered."""
        pipes = {each.pipe: each for each in self.workers if each.request}
        ready = mp.wait([*pipes, self.hosts.worker.pipe], _PATIENCE)
        if not ready:
            raise ReplayError(f"no answer for {_PATIENCE:.0f} seconds")
        for pipe in ready:
            if pipe is self.hosts.worker.pipe:
                self.hosts.take()
                continue
            worker = pipes[pipe]
            answer, request = pipe.recv(), worker.request
            worker.request = None
            self.answers.append(answer)
            if answer.outcome == PLACED:
                for name, build in zip(request.servers, answer.builds, strict=True):
                    self.hosts.tell("build", *build)
                    self.alive[name] = request

    def _die(self, worker: Worker) -> None:
        """The scheduler is killed in the middle; its user deletes what came of the request."""
        time.sleep(0.1)
        request = worker.request
        number = self.workers.index(worker)
        worker.end()
        assert request is not None
        self.orphaned += request.servers
        self.hosts.tell("delete", list(request.servers))
        self.workers[number] = self._scheduler(number)
        self._ready(self.workers[number])

    def free(self) -> list[tuple[str, Any]]:
        """Host and place of the GPUs that Placement has free."""
        self.workers[0].pipe.send("free")
        found: list[tuple[str, Any]] = self.workers[0].pipe.recv()
        return found

    def row(self, seconds: float) -> day.Row:
        """Count what came of it."""
        gpus = {name: each.gpus for each in self.found.requests for name in each.servers}
        size = {each.at: len(each.servers) for each in self.found.requests}
        counts = dict.fromkeys((PLACED, REFUSED, BROKEN), 0)
        for each in self.answers:
            counts[each.outcome] += size[each.at]
        given: dict[str, list[tuple[str, str]]] = {}
        places = computes.layout(self.cloud)
        seen: set[tuple[str, str]] = set()
        twice = 0
        for server, host, address in self.hosts.ask("devices"):
            twice += (host, address) in seen
            seen.add((host, address))
            if address in places:
                given.setdefault(server, []).append((host, address))
        # What Placement has, Nova's records and what was promised have to be the same.
        promised = sum(gpus[name] for name in self.alive)
        records = sum(len(each) for each in given.values())
        twice += self.made.most_claimed() > 1
        if not self.hosts.refusals and not self.made.claimed() == records == promised:
            raise ReplayError(
                f"GPUs: {promised} promised, {records} in Nova's records, "
                f"{self.made.claimed()} in Placement"
            )
        pairs = [each for name, each in given.items() if gpus[name] == 2]
        scattered = sum(len({places[a].switches for _, a in each}) > 1 for each in pairs)
        latencies = [each.seconds for each in self.answers]
        return day.Row(
            variant=self.variant.title,
            hosts=self.cloud.hosts,
            schedulers=self.number,
            servers=self.found.servers,
            placed=counts[PLACED],
            refused=counts[REFUSED],
            spurious=sum(each.free_left for each in self.answers),
            broken=counts[BROKEN],
            lost_claims=sum(
                max(0, each.claims - (size[each.at] if each.outcome == PLACED else 0))
                for each in self.answers
            ),
            orphaned=len(self.orphaned),
            node_refusals=len(self.hosts.refusals),
            given_twice=twice,
            scattered=scattered,
            stranded=day.stranded(self.free()),
            predicted=day.predicted(self.found, self.cloud),
            seconds=seconds,
            p50=day.quantile(latencies, 0.5),
            p99=day.quantile(latencies, 0.99),
            memory_first=self.memory[min(2, len(self.memory) - 1)],
            memory_last=self.memory[-1],
        )

    def end(self) -> None:
        """End the schedulers, and give everything back."""
        for each in self.workers:
            each.end()
        self.hosts.settle()
        self.hosts.ask("delete", list(self.alive))
        self.hosts.ask("set_down", self.cloud.hosts, False)
        self.hosts.refusals.clear()


@contextlib.contextmanager
def hosts_of(made: Stage, cloud: Cloud) -> Iterator[Hosts]:
    """The hosts, registered."""
    os.environ |= nova_process.ENVIRONMENT
    log = str(made.logs / "replay-hosts.log")
    worker = _start(serve.host, str(made.nova_conf), log, cloud)
    try:
        found = Hosts(worker)
        found.ask("register")
        yield found
    finally:
        worker.end()


def play(
    made: Stage, cloud: Cloud, hosts: Hosts, name: str, found: day.Day, schedulers: int
) -> tuple[day.Row, list[serve.Answer]]:
    """One variant's day; everything is free again after it."""
    replay = Replay(made, cloud, hosts, VARIANTS[name], found, schedulers)
    try:
        replay.start()
        row = replay.row(replay.run())
        return row, replay.answers
    finally:
        replay.end()


def holds(row: day.Row) -> bool:
    """What must be true of every day, stock Nova's too."""
    answered = row.placed + row.refused + row.broken + row.orphaned
    return not (row.given_twice or row.broken or row.node_refusals) and answered == row.servers


COLUMNS: Mapping[str, Any] = {
    "hosts": lambda row: row.hosts,
    "schedulers": lambda row: row.schedulers,
    "servers asked for": lambda row: row.servers,
    "placed": lambda row: row.placed,
    "placed, as simulated": lambda row: row.predicted,
    "refused": lambda row: row.refused,
    "refused though one scheduler sees room": lambda row: row.spurious,
    "lost with a killed scheduler": lambda row: row.orphaned,
    "lost claims": lambda row: row.lost_claims,
    "refused by nodes": lambda row: row.node_refusals,
    "given twice": lambda row: row.given_twice,
    "pairs over two switches at the end": lambda row: row.scattered,
    "GPUs without their neighbour at the end": lambda row: row.stranded,
    "seconds": lambda row: f"{row.seconds:.0f}",
    "servers a second": lambda row: f"{row.rate:.2f}",
    "request, median s": lambda row: f"{row.p50:.2f}",
    "request, 99 % s": lambda row: f"{row.p99:.2f}",
    "memory of a scheduler, MiB: after a tenth": lambda row: f"{row.memory_first:.0f}",
    "memory of a scheduler, MiB: at the end": lambda row: f"{row.memory_last:.0f}",
}


def rst(rows: Sequence[day.Row], where: Mapping[str, str]) -> str:
    """The page that the documentation includes."""
    lines = [".. Written by: python -m tests.functional.replay --write. Do not edit.", ""]
    lines += [f":{name}: {value}" for name, value in where.items()]
    lines += ["", ".. csv-table::", "   :header-rows: 1", ""]
    lines += ["   " + ",".join(["", *(f'"{each.variant}"' for each in rows)])]
    lines += [
        "   " + ",".join([f'"{title}"', *(str(say(each)) for each in rows)])
        for title, say in COLUMNS.items()
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if all that must hold did."""
    parser = argparse.ArgumentParser(prog="python -m tests.functional.replay")
    parser.add_argument("--hosts", type=int, default=300, help="of eight GPUs at four switches")
    parser.add_argument("--servers", type=int, default=2000)
    parser.add_argument("--schedulers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=["stock", "ours-spread-shuffle"]
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args(argv)
    # What was started must end with the command, however that ends.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    cloud = Cloud(options.hosts, switches=4, gpus=2, functions=2)
    found = day.day(options.servers, cloud, options.seed, options.load)
    rows = []
    with stage() as made, hosts_of(made, cloud) as hosts:
        for name in options.variants:
            row, answers = play(made, cloud, hosts, name, found, options.schedulers)
            rows.append(row)
            for each in answers:
                if each.outcome == BROKEN:
                    print(each.text[-2000:], file=sys.stderr)
            print(f"RESULT: {'' if holds(row) else 'WRONG: '}{row}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in rows], indent=1) + "\n")
    if options.write:
        words = argv if argv is not None else sys.argv[1:]
        where = provenance(" ".join(["python -m tests.functional.replay", *words]))
        RESULTS.write_text(rst(rows, where))
    return 0 if all(map(holds, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
