"""One question: which nodes, which requests, how much demand; and its answers."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.cloud.simulate import nodes, policies
from nova_hpc.cloud.simulate.cluster import Cluster
from nova_hpc.cloud.simulate.fragmentation import Measure
from nova_hpc.cloud.simulate.nodes import Machine
from nova_hpc.cloud.simulate.replay import PERCENT, Outcome, Run, outcome
from nova_hpc.cloud.simulate.workload import WHOLE, Task, draw, rounded, typical, with_levels

SCHEMA: Final = "nova-hpc/simulation"
VERSION: Final = 1


@attrs.frozen
class Scenario:
    """What every policy is put to."""

    machines: tuple[Machine, ...]
    tasks: tuple[Task, ...]
    #: Arrivals, in per cent of the GPUs that are free at first (without
    #: *added* nodes); None: the tasks come and leave at their own times.
    demand: int | None = 130
    #: Part of the requests for several GPUs that is given a level by the seed.
    levels: float = 0.0
    #: The last so many machines are extra: demand is counted without them.
    added: int = 0

    @property
    def capacity(self) -> int:
        """What 100 per cent of demand is, in thousandths of a GPU."""
        first = self.machines[: len(self.machines) - self.added]
        return WHOLE * sum(machine.free for machine in first)


def prepare(
    machines: Sequence[Machine],
    tasks: Sequence[Task],
    *,
    whole: bool,
    demand: int | None,
    levels: float,
    added: int,
) -> Scenario:
    """Put a scenario together.

    :param whole: round shares up to whole GPUs
    :raises ValueError: it cannot be simulated; the text says why.
    """
    scenario = Scenario(
        tuple(machines), tuple(rounded(tasks) if whole else tasks), demand, levels, added
    )
    if not scenario.capacity:
        raise ValueError("no node has a free GPU")
    if demand is not None and not any(task.shape.demand for task in scenario.tasks):
        raise ValueError("no request asks for a GPU, so no demand for GPUs can be reached")
    if demand is None and len({task.arrives for task in scenario.tasks}) < 2:
        raise ValueError("the requests have no times at which they arrive; give a demand instead")
    places = any(machine.layout for machine in scenario.machines)
    if not places and (levels or any(task.shape.local for task in scenario.tasks)):
        raise ValueError("some requests need their GPUs together, but no node has a topology")
    return scenario


def play(
    scenario: Scenario, policy: str, seed: int, progress: Callable[[int], None] = lambda at: None
) -> Outcome:
    """What *policy* does; the same for the same arguments.

    The seed decides the order of the arrivals, which of the requests need a
    level, the order in which equal nodes are taken, and the policy's own dice.
    """
    tasks: Sequence[Task] = scenario.tasks
    if scenario.levels:
        sizes = nodes.domain_sizes([machine.layout for machine in scenario.machines])
        tasks = with_levels(tasks, seed, scenario.levels, *sizes)
    workload = typical(tasks)
    own = typical(tasks, memory=True) if policies.counts_memory(policy) else workload
    machines = list(scenario.machines)
    random.Random(f"nodes {seed}").shuffle(machines)
    cluster = Cluster(machines)
    chosen = policies.build(policy, cluster, random.Random(f"{policy} {seed}"), own)
    timed = scenario.demand is None
    if scenario.demand is not None:
        tasks = draw(tasks, scenario.capacity * scenario.demand // PERCENT, seed)
    return outcome(
        policy,
        seed,
        Run(cluster, chosen, Measure(workload)),
        tasks,
        capacity=scenario.capacity,
        timed=timed,
        progress=progress,
    )


@attrs.frozen
class Spread:
    """A figure over the seeds."""

    mean: float
    deviation: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up; there is at least one value."""
        return cls(
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else 0.0,
            min(values),
            max(values),
        )


#: The figures that are summed up, in the order of the table.
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
    """One policy over all seeds."""

    policy: str
    figures: Mapping[str, Spread]
    #: per cent of demand or time -> means of allocation and fragmentation
    curve: Mapping[int, tuple[float, float]]


def summarise(outcomes: Sequence[Outcome]) -> list[Summary]:
    """The policies in the order in which they first occur."""
    by_policy: dict[str, list[Outcome]] = {}
    for one in sorted(outcomes, key=lambda one: one.seed):
        by_policy.setdefault(one.policy, []).append(one)
    order = dict.fromkeys(one.policy for one in outcomes)
    return [_summary(policy, by_policy[policy]) for policy in order]


def _summary(policy: str, outcomes: Sequence[Outcome]) -> Summary:
    points: dict[int, list[tuple[float, float]]] = {}
    for one in outcomes:
        for sample in one.samples:
            points.setdefault(sample.at, []).append((sample.allocated, sample.fragmented))
    return Summary(
        policy,
        {name: Spread.of([float(getattr(one, name)) for one in outcomes]) for name in FIGURES},
        {
            at: (
                statistics.fmean(pair[0] for pair in pairs),
                statistics.fmean(pair[1] for pair in pairs),
            )
            for at, pairs in sorted(points.items())
        },
    )


def document(
    scenario: Scenario, outcomes: Sequence[Outcome], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The results as plain objects.

    :param about: where they come from: inputs, date, machine
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
                "policy": one.policy,
                "figures": {
                    name: {key: round(value, 4) for key, value in attrs.asdict(spread).items()}
                    for name, spread in one.figures.items()
                },
                "curve": [
                    [at, round(allocated, 3), round(fragmented, 3)]
                    for at, (allocated, fragmented) in one.curve.items()
                ],
            }
            for one in summarise(outcomes)
        ],
        "runs": [attrs.asdict(one, filter=attrs.filters.exclude("samples")) for one in outcomes],
    }
