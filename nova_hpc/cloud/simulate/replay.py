"""One policy, one order of arrivals: what happens, sampled as demand grows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from nova_hpc.cloud.simulate.cluster import Cluster
from nova_hpc.cloud.simulate.fragmentation import Measure
from nova_hpc.cloud.simulate.policy import Policy
from nova_hpc.cloud.simulate.workload import WHOLE, Task

PERCENT: Final = 100


@attrs.frozen
class Sample:
    """The cluster at one moment, in per cent of its GPUs."""

    #: demand that has arrived, or, with times, the time that has passed
    at: int
    allocated: float
    fragmented: float


@attrs.frozen
class Outcome:
    """What one policy did with one order of arrivals."""

    policy: str
    seed: int
    arrived: int
    refused: int
    #: of these, requests for several GPUs, and those that need them together
    refused_several: int
    refused_local: int
    #: GPUs that the refused requests asked for
    refused_gpus: float
    #: per cent of the GPUs at the end; with times, the mean over time
    allocated: float
    #: when demand reached 100 per cent; 0 where it did not, or with times
    allocated_at_100: float
    fragmented: float
    samples: tuple[Sample, ...]


class Run:
    """A policy at work on a cluster."""

    def __init__(self, cluster: Cluster, policy: Policy, measure: Measure) -> None:
        self.cluster = cluster
        self.policy = policy
        self.measure = measure
        self.refused: list[Task] = []

    def place(self, task: Task) -> tuple[int, tuple[int, ...]] | None:
        """Place one task: its node and GPUs; None when it was refused."""
        fits = self.cluster.fits(task.shape)
        if not fits.any():
            self.refused.append(task)
            return None
        node = self.policy.node(task.shape, fits)
        gpus = self.policy.gpus(node, task.shape)
        self.cluster.take(node, task.shape, gpus)
        return node, gpus

    def sample(self, at: int) -> Sample:
        """Where it stands."""
        capacity = max(self.cluster.capacity, 1)
        used = self.cluster.capacity - int(self.cluster.idle.sum())
        return Sample(
            at,
            PERCENT * used / capacity,
            PERCENT * self.measure.cluster(self.cluster) / capacity,
        )

    def by_demand(self, tasks: Sequence[Task], capacity: int) -> Iterator[Sample]:
        """Place *tasks*, none of which leaves; a sample for each per cent of demand.

        :param capacity: what 100 per cent of demand is, in thousandths of a GPU
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

    def by_time(self, tasks: Sequence[Task]) -> Iterator[Sample]:
        """Place *tasks* when they arrive and end them when they leave.

        A sample for each per cent of the time between the first and the last
        arrival.
        """
        order = sorted(tasks, key=lambda task: task.arrives)
        first, last = order[0].arrives, order[-1].arrives
        step = (last - first) / PERCENT
        running: list[tuple[float, int, int, Task, tuple[int, ...]]] = []
        done = 0

        def leave(now: float) -> None:
            while running and running[0][0] <= now:
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


def outcome(
    name: str,
    seed: int,
    run: Run,
    tasks: Sequence[Task],
    *,
    capacity: int,
    timed: bool,
    progress: Callable[[int], None] = lambda at: None,
) -> Outcome:
    """Replay *tasks* and sum up.

    :param timed: by the tasks' times; otherwise in their order, and none leaves
    :param progress: called with the per cent that is done
    """
    samples = []
    for sample in run.by_time(tasks) if timed else run.by_demand(tasks, capacity):
        samples.append(sample)
        progress(sample.at)
    last = samples[-1]
    allocated, fragmented = last.allocated, last.fragmented
    full = next((one.allocated for one in samples if one.at >= PERCENT), 0.0)
    if timed:
        allocated = sum(one.allocated for one in samples) / len(samples)
        fragmented = sum(one.fragmented for one in samples) / len(samples)
    return Outcome(
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
