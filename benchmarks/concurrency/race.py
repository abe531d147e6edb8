# SPDX-License-Identifier: Apache-2.0
"""Runs races: starts the processes, distributes the servers, counts the outcomes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from benchmarks.concurrency import computes, model, nova_process, scheduler
from benchmarks.concurrency.model import Cloud, Create, Tally, Variant
from benchmarks.concurrency.stage import TRIES, Stage, stage

#: Seconds after which a silent process is taken for dead.
PATIENCE = 600.0


class RaceError(Exception):
    """A process of the race failed; the text contains its traceback."""


@attrs.frozen
class Plan:
    """The settings that all races of a run share."""

    cloud: Cloud = attrs.field(factory=Cloud)
    workers: int = 4
    #: Requests that each worker serves at the same time.
    threads: int = 1
    gpus: int = 1
    #: Requested devices in per cent of the existing ones.
    demand: int = 125

    @property
    def creates(self) -> int:
        return self.cloud.devices * self.demand // 100 // self.gpus


@attrs.define
class Runner:
    """A stage with its computes; runs one race after the other."""

    made: Stage
    cloud: Cloud
    _spawn: Any = attrs.field(factory=lambda: multiprocessing.get_context("spawn"))
    _orders: Any = None
    _answers: Any = None
    _process: Any = None

    def start(self) -> None:
        os.environ |= nova_process.ENVIRONMENT
        self._orders = self._spawn.Queue()
        self._answers = self._spawn.Queue()
        self._process = self._spawn.Process(
            target=computes.run,
            args=(
                str(self.made.nova_conf),
                str(self.made.logs / "computes.log"),
                self.cloud,
                self._orders,
                self._answers,
            ),
            daemon=True,
        )
        self._process.start()
        self._ask("register")

    def stop(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._orders.put(("stop", ()))
            self._process.join(30)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _ask(self, word: str, *arguments: Any) -> Any:
        self._orders.put((word, arguments))
        answered, result = _wait(self._answers, [self._process])
        if answered != word:
            raise RaceError(result)
        return result

    def run(self, variant: Variant, plan: Plan) -> tuple[Tally, list[Create]]:
        """One race, and then the losers one by one; all devices are free again after it.

        :returns: the row of the table, and the outcome of each create: those
            of the race first, then the repetitions.
        """
        servers = [str(uuid.uuid4()) for _ in range(plan.creates)]
        first = self._schedule(variant, plan, servers, plan.workers, plan.threads)
        refusals = self._ask("settle")
        losers = [each.server for each in first if each.outcome != model.PLACED]
        random.Random(1).shuffle(losers)
        again = self._schedule(variant, plan, losers, 1, 1)
        refusals += self._ask("settle")
        tally = self._count(variant, plan, first, again, refusals)
        self._ask("clear")
        return tally, first + again

    def _schedule(
        self, variant: Variant, plan: Plan, wanted: Sequence[str], workers: int, threads: int
    ) -> list[Create]:
        servers, results = self._spawn.Queue(), self._spawn.Queue()
        for server in wanted:
            servers.put(server)
        for _ in range(workers * threads):
            servers.put(None)
        barrier = self._spawn.Barrier(workers)
        crew = [
            self._spawn.Process(
                target=scheduler.run,
                args=(
                    str(self.made.nova_conf),
                    str(self.made.logs / f"scheduler{number}.log"),
                    number,
                    threads,
                    plan.gpus,
                    variant,
                    {("pci", "device_spec"): []},
                    barrier,
                    servers,
                    results,
                    self._orders,
                ),
                daemon=True,
            )
            for number in range(workers)
        ]
        for each in crew:
            each.start()
        found: list[Create] = []
        try:
            while len(found) < len(wanted):
                result = _wait(results, crew)
                if not result.server:
                    raise RaceError(result.text)
                found.append(result)
            for each in crew:
                each.join(60)
        finally:
            for each in crew:
                if each.is_alive():
                    each.kill()
                    each.join()
        return found

    def _count(
        self,
        variant: Variant,
        plan: Plan,
        first: Sequence[Create],
        again: Sequence[Create],
        refusals: Sequence[str],
    ) -> Tally:
        placed = [each for each in first if each.outcome == model.PLACED]
        repeated = [each for each in again if each.outcome == model.PLACED]
        records: dict[str, list[tuple[str, str]]] = {}
        for server, host, address in self._ask("devices"):
            records.setdefault(server, []).append((host, address))
        wrong = sum(len(records.get(each.server, ())) != plan.gpus for each in [*placed, *repeated])
        places = computes.layout(plan.cloud)
        scattered = sum(
            len({places[address].switches for _, address in given}) > 1
            for given in records.values()
        )
        twice = model.given_twice([*placed, *repeated])
        if self.made.most_claimed() > 1:
            twice = max(twice, 1)
        return Tally(
            variant=variant.title,
            workers=plan.workers,
            gpus=plan.gpus,
            creates=plan.creates,
            placed=len(placed),
            given_twice=twice,
            refused=sum(each.outcome == model.REFUSED for each in first),
            broken=sum(each.outcome == model.BROKEN for each in [*first, *again]),
            spurious=sum(each.free_left for each in first),
            lost_claims=model.lost_claims(first),
            node_refusals=len(refusals) + wrong,
            scattered=scattered,
            repeated=len(repeated),
            filled=self.made.claimed(),
            devices=plan.cloud.devices,
            seconds=model.seconds(first),
        )


def _wait(answers: Any, processes: Sequence[Any]) -> Any:
    """The next answer of any of the processes.

    :raises RaceError: one of them ended without an answer, or all are silent.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=2)
        failed = [each.name for each in processes if each.exitcode not in (None, 0)]
        if failed:
            raise RaceError(f"{', '.join(failed)} ended by itself; see its standard error")
    raise RaceError(f"no answer for {PATIENCE:.0f} seconds")


@contextlib.contextmanager
def runner(cloud: Cloud, tries: int = TRIES) -> Iterator[Runner]:
    """A stage with registered hosts."""
    with stage(tries) as made:
        found = Runner(made, cloud)
        try:
            found.start()
            yield found
        finally:
            found.stop()
