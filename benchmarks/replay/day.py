# SPDX-License-Identifier: Apache-2.0
"""The events of the day: requests in order, and departures of their servers; without Nova."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from benchmarks.concurrency.computes import layout
from benchmarks.concurrency.model import Cloud
from nova_hpc_common.level import Level, Location
from nova_hpc_simulate import scenario
from nova_hpc_simulate.model import SimulatedMachine, SimulatedTask, TaskShape

#: GPUs of a server -> number of pods in openb's list multigpu50 that request them.
SHARES: Final = {1: 6989, 2: 222, 4: 206, 8: 556}
#: GPUs of a server -> the level at which they must be together, with a virtual function for each.
LEVELS: Final = {1: Level.SWITCH, 2: Level.SWITCH, 4: Level.NUMA, 8: Level.HOST}
#: The part of requests for several servers, and the most servers of such a request.
MULTIPLE: Final = 0.05
MOST: Final = 8


@attrs.frozen
class Request:
    """One request.

    :ivar at: its place in the day.
    :ivar gpus: of each server, and as many virtual functions.
    :ivar leaves: the place in the day before which its servers are deleted.
    """

    at: int
    gpus: int
    servers: tuple[str, ...]
    leaves: int


@attrs.frozen
class Day:
    """All requests, and the places of other events in the day."""

    requests: tuple[Request, ...]
    #: Number of requests of the whole day; 0 if *requests* has all of them.
    planned: int = 0

    def _share(self, share: float) -> int:
        return int(self._whole * share)

    @property
    def hosts_fail(self) -> int:
        """The place from which some hosts are down."""
        return self._share(0.4)

    @property
    def hosts_return(self) -> int:
        """The place from which these hosts are up again."""
        return self._share(0.8)

    @property
    def scheduler_dies(self) -> int:
        """The place at which a scheduler is killed during a request, and started again."""
        return self._share(0.6)

    def first(self, count: int) -> Day:
        """The day with only the first *count* requests; the places of other events stay."""
        return attrs.evolve(self, requests=self.requests[:count], planned=self._whole)

    @property
    def _whole(self) -> int:
        return self.planned or len(self.requests)

    @property
    def servers(self) -> int:
        """The number of requested servers."""
        return sum(len(each.servers) for each in self.requests)


def day(servers: int, cloud: Cloud, seed: int, load: float = 1.0) -> Day:
    """A day with requests for *servers* servers.

    :param load: part of the GPUs in demand, after arrivals and departures are in balance.
    """
    rng = random.Random(f"day {seed}")
    mean = sum(gpus * share for gpus, share in SHARES.items()) / sum(SHARES.values())
    # Lifetime in servers. Without departures, a day would only fill the cloud.
    life = load * cloud.devices / mean
    requests: list[Request] = []
    made = 0
    while made < servers:
        (gpus,) = rng.choices(list(SHARES), list(SHARES.values()))
        several = gpus <= 2 and rng.random() < MULTIPLE
        count = min(rng.randint(2, MOST) if several else 1, servers - made)
        names = tuple(
            f"{rng.getrandbits(32):08x}-{made + number:04x}-4000-8000-{seed:012x}"
            for number in range(count)
        )
        made += count
        stays = rng.expovariate(1 / life) * (len(requests) + 1) / made
        at = len(requests)
        requests.append(Request(at, gpus, names, at + 1 + int(stays)))
    return Day(tuple(requests))


def predicted(found: Day, cloud: Cloud, ours: bool) -> tuple[int, int]:
    """The result of the simulation, with one scheduler and hosts that never fail.

    :param ours: whether to simulate this project's policy as shipped, or stock Nova's.
    :returns: number of placed servers, and of GPUs in use at the end.
    """
    places = tuple(layout(cloud).values())
    machines = tuple(
        SimulatedMachine(f"node{number:03}", "host", 256_000, 2**20, len(places), places)
        for number in range(cloud.hosts)
    )
    tasks = tuple(
        SimulatedTask(name, _shape(each, ours), float(each.at), float(each.leaves))
        for each in found.requests
        for name in each.servers
    )
    policy = "nova-hpc" if ours else "nova-spread"
    played = scenario.play_scenario(scenario.Scenario(machines, tasks, None), policy, 0)
    used = round(played.samples[-1].allocated * cloud.devices / scenario.PERCENT)
    return played.arrived - played.refused, used


def _shape(request: Request, ours: bool) -> TaskShape:
    level = LEVELS[request.gpus] if ours and request.gpus > 1 else Level.HOST
    return TaskShape(2000, 1024, request.gpus, level=level)


def room(free: Iterable[tuple[str, Location]], gpus: int, together: Level) -> bool:
    """Whether one more server of *gpus* GPUs fits.

    :param free: host and place of every free GPU.
    """
    return any(count >= gpus for count in _domains(free, together).values())


def stranded(free: Iterable[tuple[str, Location]]) -> int:
    """Number of free GPUs whose neighbour at the switch is in use: useless for servers of two."""
    return sum(count % 2 for count in _domains(free, Level.SWITCH).values())


def _domains(free: Iterable[tuple[str, Location]], level: Level) -> dict[object, int]:
    counts: dict[object, int] = {}
    for host, place in free:
        key = (host, place.domain(level) if level is not Level.HOST else None)
        counts[key] = counts.get(key, 0) + 1
    return counts


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile of the values, as one of them; 0.0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@attrs.frozen
class Row:
    """The outcome of a day."""

    variant: str
    hosts: int
    schedulers: int
    requests: int
    servers: int
    placed: int
    refused: int
    #: GPUs of the refused requests.
    refused_gpus: int
    #: Requests that were refused though Placement had room for them before and after.
    spurious: int
    broken: int
    #: Claims that Placement refused, because another scheduler was first.
    conflicts: int
    #: Requests to Placement, of all schedulers.
    asked: int
    #: Number of times that a scheduler read a host's servers, which no nova-compute had reported.
    read: int
    #: Servers whose scheduler was killed.
    orphaned: int
    node_refusals: int
    given_twice: int
    #: Servers of two GPUs at the end, and those of them whose GPUs are at two switches.
    pairs: int
    scattered: int
    #: GPUs that are free at the end while their neighbour at the switch is in use.
    stranded: int
    #: GPUs that are in use at the end.
    used: int
    #: Placed servers, and GPUs in use at the end, by the simulation.
    predicted: int
    predicted_used: int
    seconds: float
    p50: float
    p99: float
    #: Memory of the largest scheduler, MiB, twenty times in the day.
    memory: Sequence[float]

    @property
    def rate(self) -> float:
        """Servers with an answer per second."""
        return self.servers / self.seconds if self.seconds else 0.0
