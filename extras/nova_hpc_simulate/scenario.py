# SPDX-License-Identifier: Apache-2.0
"""The replay of one order of arrivals with one policy, and the summary of all replays."""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_simulate import model
from nova_hpc_simulate.cluster import Measure, SimulatedCluster
from nova_hpc_simulate.model import (
    WHOLE,
    SimulatedMachine,
    SimulatedTask,
    draw_arrivals,
    round_to_whole_gpus,
    typical_shapes_of,
    with_levels,
)
from nova_hpc_simulate.policies import POLICIES, PolicyMaker
from nova_hpc_simulate.policy import SimulatedPolicy

PERCENT: Final = 100


@attrs.frozen
class ClusterSample:
    """The use of the cluster at one moment, in per cent of its GPUs."""

    #: per cent of demand that has arrived, or of the time that has passed if tasks have times
    at: int
    allocated: float
    fragmented: float


@attrs.frozen
class ReplayOutcome:
    """The result of one policy for one order of arrivals."""

    policy: str
    seed: int
    arrived: int
    refused: int
    #: refused requests for several GPUs, and those that need their GPUs together
    refused_several: int
    refused_local: int
    #: number of GPUs in the refused requests
    refused_gpus: float
    #: per cent of the GPUs at the end; the mean over time if tasks have times
    allocated: float
    #: allocated per cent when demand reached 100 per cent; 0 if it did not, or if tasks have times
    allocated_at_100: float
    fragmented: float
    samples: tuple[ClusterSample, ...]


class PolicyReplay:
    """The run of a placement policy on a simulated cluster."""

    def __init__(
        self, cluster: SimulatedCluster, policy: SimulatedPolicy, measure: Measure
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.measure = measure
        self.refused: list[SimulatedTask] = []

    def place(self, task: SimulatedTask) -> tuple[int, tuple[int, ...]] | None:
        """Place one task; return its node and GPUs, or None if it is refused."""
        fits = self.cluster.fits(task.shape)
        if not fits.any():
            self.refused.append(task)
            return None
        node = self.policy.node(task.shape, fits)
        gpus = self.policy.gpus(node, task.shape)
        self.cluster.take(node, task.shape, gpus)
        return node, gpus

    def sample(self, at: int) -> ClusterSample:
        """Sample the allocated and the fragmented part of the cluster now, in per cent of all GPUs.

        :param at: per cent of demand or of time.
        """
        capacity = max(self.cluster.capacity, 1)
        used = self.cluster.capacity - int(self.cluster.idle.sum())
        return ClusterSample(
            at, PERCENT * used / capacity, PERCENT * self.measure.cluster(self.cluster) / capacity
        )

    def by_demand(self, tasks: Sequence[SimulatedTask], capacity: int) -> Iterator[ClusterSample]:
        """Place *tasks*, which never leave; yield a sample for each per cent of demand.

        :param capacity: 100 per cent of demand, in thousandths of a GPU
        """
        demand = done = 0
        for task in tasks:
            self.place(task)
            demand += task.shape.demand
            reached = PERCENT * demand // max(capacity, 1)
            if reached > done:
                done = reached
                yield self.sample(done)
        yield self.sample(done)

    def by_time(self, tasks: Sequence[SimulatedTask]) -> Iterator[ClusterSample]:
        """Place *tasks* when they arrive and end them when they leave.

        Yields a sample for each per cent of the time between the first and the last
        arrival.
        """
        order = sorted(tasks, key=lambda task: task.arrives)
        first, last = order[0].arrives, order[-1].arrives
        step = (last - first) / PERCENT
        running: list[tuple[float, int, int, SimulatedTask, tuple[int, ...]]] = []
        done = 0

        def leave(moment: float) -> None:
            while running and running[0][0] <= moment:
                _, _, node, task, gpus = heapq.heappop(running)
                self.cluster.give(node, task.shape, gpus)

        for number, task in enumerate(order):
            while done < PERCENT and step and task.arrives > first + (done + 1) * step:
                done += 1
                leave(first + done * step)
                yield self.sample(done)
            leave(task.arrives)
            placed = self.place(task)
            if placed and task.leaves is not None:
                heapq.heappush(running, (task.leaves, number, placed[0], task, placed[1]))
        yield self.sample(PERCENT)


def replay_tasks(
    name: str,
    seed: int,
    run: PolicyReplay,
    tasks: Sequence[SimulatedTask],
    *,
    capacity: int,
    timed: bool,
) -> ReplayOutcome:
    """Replay *tasks* with a policy, and sum up the result.

    :param timed: replay by the tasks' times; otherwise in their order, and no task leaves
    """
    samples = list(run.by_time(tasks) if timed else run.by_demand(tasks, capacity))
    last = samples[-1]
    allocated, fragmented = last.allocated, last.fragmented
    full = next((sample.allocated for sample in samples if sample.at >= PERCENT), 0.0)
    if timed:
        allocated = sum(sample.allocated for sample in samples) / len(samples)
        fragmented = sum(sample.fragmented for sample in samples) / len(samples)
    return ReplayOutcome(
        policy=name,
        seed=seed,
        arrived=len(tasks),
        refused=len(run.refused),
        refused_several=sum(1 for task in run.refused if task.shape.gpus > 1),
        refused_local=sum(1 for task in run.refused if task.shape.local),
        refused_gpus=sum(task.shape.demand for task in run.refused) / WHOLE,
        allocated=allocated,
        allocated_at_100=0.0 if timed else full,
        fragmented=fragmented,
        samples=tuple(samples),
    )


SCHEMA: Final = "nova-hpc/simulation"
VERSION: Final = 1


@attrs.frozen
class Scenario:
    """The machines and tasks that all policies replay, and the demand in per cent."""

    machines: tuple[SimulatedMachine, ...]
    tasks: tuple[SimulatedTask, ...]
    #: Arrivals, in per cent of the GPUs that are free at first (without
    #: *added* nodes); None if the tasks come and leave at their own times.
    demand: int | None = 130
    #: Part of the requests for several GPUs that get a level, chosen by the seed.
    levels: float = 0.0
    #: Number of extra machines at the end of the list: demand is counted without them.
    added: int = 0

    @property
    def capacity(self) -> int:
        """The GPU capacity that counts as 100 per cent of demand, in thousandths of a GPU."""
        first = self.machines[: len(self.machines) - self.added]
        return WHOLE * sum(machine.free for machine in first)


def prepare_scenario(
    machines: Sequence[SimulatedMachine],
    tasks: Sequence[SimulatedTask],
    *,
    whole: bool,
    demand: int | None,
    levels: float,
    added: int,
) -> Scenario:
    """Check the inputs and build a scenario.

    :param whole: round shares up to whole GPUs
    :raises ValueError: the scenario cannot be simulated; the text contains the reason.
    """
    scenario = Scenario(
        tuple(machines),
        tuple(round_to_whole_gpus(tasks) if whole else tasks),
        demand,
        levels,
        added,
    )
    if not scenario.capacity:
        raise ValueError("no node has a free GPU")
    if demand is not None and not any(task.shape.demand for task in scenario.tasks):
        raise ValueError("no request contains a GPU, so no demand for GPUs can be reached")
    if demand is None and len({task.arrives for task in scenario.tasks}) < 2:
        raise ValueError("the requests have no times at which they arrive; give a demand instead")
    places = any(machine.layout for machine in scenario.machines)
    if not places and (levels or any(task.shape.local for task in scenario.tasks)):
        raise ValueError("some requests need their GPUs together, but no node has a topology")
    return scenario


def play_scenario(
    scenario: Scenario, policy: str, seed: int, maker: PolicyMaker | None = None
) -> ReplayOutcome:
    """Simulate *scenario* with one policy; equal arguments give equal outcomes.

    :param maker: makes the policy; by default, the one of this name in :data:`policies.POLICIES`.

    The seed decides the order of equal nodes and the policy's own random numbers. It also decides
    the order of the arrivals unless tasks have times of their own, and the requests that need a
    level if the scenario has levels.
    """
    tasks: Sequence[SimulatedTask] = scenario.tasks
    if scenario.levels:
        sizes = model.domain_sizes([machine.layout for machine in scenario.machines])
        tasks = with_levels(tasks, seed, scenario.levels, *sizes)
    maker = maker or POLICIES[policy]
    workload = typical_shapes_of(tasks)
    machines = list(scenario.machines)
    random.Random(f"nodes {seed}").shuffle(machines)
    cluster = SimulatedCluster(machines)
    flavors = typical_shapes_of(tasks, memory=True)
    chosen = maker(cluster, random.Random(f"{policy} {seed}"), flavors)
    timed = scenario.demand is None
    if scenario.demand is not None:
        tasks = draw_arrivals(tasks, scenario.capacity * scenario.demand // PERCENT, seed)
    return replay_tasks(
        policy,
        seed,
        PolicyReplay(cluster, chosen, Measure(workload)),
        tasks,
        capacity=scenario.capacity,
        timed=timed,
    )


@attrs.frozen
class FigureSpread:
    """Mean, deviation and range of a figure over the seeds."""

    mean: float
    deviation: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> FigureSpread:
        """Compute mean, deviation, least and most of *values*, at least one."""
        return cls(
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else 0.0,
            min(values),
            max(values),
        )


#: The figures of a summary, in the order of the table.
FIGURES: Final = (
    "allocated",
    "allocated_at_100",
    "fragmented",
    "arrived",
    "refused",
    "refused_several",
    "refused_local",
    "refused_gpus",
)


@attrs.frozen
class Summary:
    """The results of one policy over all seeds: its figures, and its curve over the demand."""

    policy: str
    figures: Mapping[str, FigureSpread]
    #: per cent of demand or time -> means of allocation and fragmentation
    curve: Mapping[int, tuple[float, float]]


def summarise_outcomes(outcomes: Sequence[ReplayOutcome]) -> list[Summary]:
    """Summarise the outcomes by policy, in the order of their first outcomes."""
    by_policy: dict[str, list[ReplayOutcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.seed):
        by_policy.setdefault(outcome.policy, []).append(outcome)
    order = dict.fromkeys(outcome.policy for outcome in outcomes)
    return [_summary_of_policy(policy, by_policy[policy]) for policy in order]


def _summary_of_policy(policy: str, outcomes: Sequence[ReplayOutcome]) -> Summary:
    points: dict[int, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        for sample in outcome.samples:
            points.setdefault(sample.at, []).append((sample.allocated, sample.fragmented))
    return Summary(
        policy,
        {
            name: FigureSpread.of([float(getattr(outcome, name)) for outcome in outcomes])
            for name in FIGURES
        },
        {
            at: (
                statistics.fmean(pair[0] for pair in pairs),
                statistics.fmean(pair[1] for pair in pairs),
            )
            for at, pairs in sorted(points.items())
        },
    )


def build_simulation_document(
    scenario: Scenario, outcomes: Sequence[ReplayOutcome], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the results of a simulation as a JSON object.

    :param about: the origin of the results: inputs, date, machine
    """
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "about": dict(about),
        "nodes": len(scenario.machines),
        "gpus": scenario.capacity // WHOLE,
        "requests": len(scenario.tasks),
        "demand": scenario.demand,
        "levels": scenario.levels,
        "added": scenario.added,
        "policies": [
            {
                "policy": summary.policy,
                "figures": {
                    name: {key: round(value, 4) for key, value in attrs.asdict(spread).items()}
                    for name, spread in summary.figures.items()
                },
                "curve": [
                    [at, round(allocated, 3), round(fragmented, 3)]
                    for at, (allocated, fragmented) in summary.curve.items()
                ],
            }
            for summary in summarise_outcomes(outcomes)
        ],
        "runs": [
            attrs.asdict(outcome, filter=attrs.filters.exclude("samples")) for outcome in outcomes
        ],
    }
