# SPDX-License-Identifier: Apache-2.0
"""The model of a simulation: machines with the places of their GPUs, and tasks with their order.

The module has data and random draws, but no state.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_common.level import Level, Location

#: The place of each GPU of a node; empty if the places are unknown.
Layout = tuple[Location, ...]

#: The built-in layout: GPUs of a switch, switches of a host, sockets of a host.
PER_SWITCH: Final = 2
SWITCHES: Final = 4
SOCKETS: Final = 2


@attrs.frozen
class SimulatedMachine:
    """A simulated node before any task is placed: its CPUs, memory, and GPUs with their places."""

    name: str
    kind: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    layout: Layout = ()
    #: GPUs in use by other servers, which never release them.
    busy: tuple[int, ...] = ()

    @property
    def free(self) -> int:
        """The number of GPUs that tasks can get."""
        return self.gpus - len(self.busy)


def dgx_layout(gpus: int) -> Layout:
    """Return the GPU places of a host like a DGX: two sockets, four switches, two GPUs on a switch.

    A smaller host has fewer switches, on the two sockets in turn.

    :raises ValueError: *gpus* is more than such a host has.
    """
    if gpus > PER_SWITCH * SWITCHES:
        raise ValueError(f"a DGX-like host has at most {PER_SWITCH * SWITCHES} GPUs, not {gpus}")
    places = []
    for number in range(gpus):
        switch = number // PER_SWITCH
        socket = switch % SOCKETS
        places.append(
            Location(
                numa=socket,
                socket=socket,
                root=f"pci0000:{16 * (switch + 1):02x}",
                switches=(f"0000:{16 * (switch + 1) + 1:02x}:00.0",),
            )
        )
    return tuple(places)


def with_layout(
    machines: Sequence[SimulatedMachine], layouts: Mapping[str, Layout]
) -> list[SimulatedMachine]:
    """Return the machines, with the GPU places in *layouts* for their kind.

    :raises ValueError: a layout has fewer GPUs than the machine.
    """
    result = []
    for machine in machines:
        layout = layouts.get(machine.kind)
        if layout is not None:
            if len(layout) < machine.gpus:
                raise ValueError(
                    f"the topology of {machine.kind!r} has {len(layout)} GPUs, "
                    f"but {machine.name} has {machine.gpus}"
                )
            machine = attrs.evolve(machine, layout=layout[: machine.gpus])
        result.append(machine)
    return result


def all_dgx(machines: Sequence[SimulatedMachine]) -> list[SimulatedMachine]:
    """Return the machines, each with the built-in GPU places of a DGX-like host."""
    return [attrs.evolve(machine, layout=dgx_layout(machine.gpus)) for machine in machines]


def add_machines(
    machines: Sequence[SimulatedMachine], count: int, kind: str | None = None
) -> list[SimulatedMachine]:
    """Return the machines and *count* more of one kind, by default of the most frequent kind.

    :raises ValueError: there is no machine of that kind to copy.
    """
    kinds = Counter(machine.kind for machine in machines)
    if kind is None:
        kind = max(sorted(kinds), key=lambda name: kinds[name])
    model = next((machine for machine in machines if machine.kind == kind), None)
    if model is None:
        raise ValueError(f"no node of type {kind!r}; there are {', '.join(sorted(kinds))}")
    extra = [
        attrs.evolve(model, name=f"added-{number:04}", busy=()) for number in range(1, count + 1)
    ]
    return [*machines, *extra]


def domain_sizes(layouts: Sequence[Layout]) -> tuple[int, int]:
    """Count the GPUs of the largest switch and of the largest NUMA node; 1 if unknown."""
    most = []
    for level in (Level.SWITCH, Level.NUMA):
        sizes = [
            count
            for layout in layouts
            for domain, count in Counter(place.domain(level) for place in layout).items()
            if domain is not None
        ]
        most.append(max(sizes, default=1))
    return most[0], most[1]


#: GPU shares are counted in thousandths, as the openb trace counts them.
WHOLE: Final = 1000


@attrs.frozen
class TaskShape:
    """The GPUs, CPUs and memory that one task needs, and how close its GPUs have to be."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    #: Needed part of each GPU; less than WHOLE only for a task with one GPU.
    gpu_milli: int = WHOLE
    #: The level at which each group must be; HOST for any place on the node.
    level: Level = Level.HOST
    #: Number of GPUs that must be together; 0 for all of them.
    group: int = 0

    @property
    def demand(self) -> int:
        """The GPU demand of the task in thousandths of a GPU."""
        return self.gpus * self.gpu_milli

    @property
    def exclusive(self) -> bool:
        """Whether the task gets whole GPUs."""
        return self.gpu_milli == WHOLE

    @property
    def local(self) -> bool:
        """Whether the places of the task's GPUs matter, because it needs them close together."""
        return self.gpus > 1 and self.level is not Level.HOST and self.group_size > 1

    @property
    def group_size(self) -> int:
        """The number of GPUs in one group of the task."""
        return self.group or self.gpus

    @property
    def groups(self) -> int:
        """The number of groups of GPUs that must be together; 0 if the task needs no GPU."""
        return self.gpus // self.group_size if self.gpus else 0


@attrs.frozen
class SimulatedTask:
    """One simulated request, perhaps with its times in seconds."""

    name: str
    shape: TaskShape
    arrives: float = 0.0
    leaves: float | None = None


@attrs.frozen
class Typical:
    """A shape of tasks and its frequency. All frequencies add up to one."""

    shape: TaskShape
    frequency: float


#: Part of all tasks that the typical shapes must cover.
POPULAR: Final = 0.95


def round_to_whole_gpus(tasks: Iterable[SimulatedTask]) -> list[SimulatedTask]:
    """Return the tasks with whole GPUs, because PCI passthrough gives only whole devices."""
    return [attrs.evolve(task, shape=attrs.evolve(task.shape, gpu_milli=WHOLE)) for task in tasks]


def typical_shapes_of(
    tasks: Sequence[SimulatedTask], popular: float = POPULAR, memory: bool = False
) -> tuple[Typical, ...]:
    """Return the most frequent shapes, until they cover *popular* of all tasks.

    :param memory: whether shapes that differ only in memory are different. They are
        equal in Weng et al. (ATC'23), whose measure of fragmentation uses exactly
        this distribution.
    """
    counts: dict[TaskShape, int] = {}
    for task in tasks:
        shape = task.shape if memory else attrs.evolve(task.shape, memory_mib=0)
        if not shape.gpus:
            shape = attrs.evolve(shape, gpu_milli=0)
        counts[shape] = counts.get(shape, 0) + 1
    order = sorted(
        counts.items(),
        key=lambda pair: (
            pair[1],
            pair[0].cpu_milli,
            pair[0].gpu_milli,
            pair[0].gpus,
            pair[0].level,
            pair[0].group,
            pair[0].memory_mib,
        ),
        reverse=True,
    )
    chosen: list[tuple[TaskShape, int]] = []
    covered = 0
    for shape, count in order:
        if covered >= popular * len(tasks):
            break
        chosen.append((shape, count))
        covered += count
    return tuple(Typical(shape, count / covered) for shape, count in chosen)


def draw_arrivals(tasks: Sequence[SimulatedTask], demand: int, seed: int) -> list[SimulatedTask]:
    """Draw tasks in a random order until their GPU demand reaches *demand*.

    The list is shuffled and cut when the demand is reached. If it is too short, further tasks are
    drawn from it at random.

    :param demand: in thousandths of a GPU
    :raises ValueError: no task needs a GPU, so the demand cannot be reached.
    """
    if not any(task.shape.demand for task in tasks):
        raise ValueError("no request contains a GPU, so there is no demand to reach")
    rng = random.Random(f"arrivals {seed}")
    order = list(tasks)
    rng.shuffle(order)
    arrived: list[SimulatedTask] = []
    total = 0
    while total < demand:
        task = order[len(arrived)] if len(arrived) < len(order) else rng.choice(order)
        total += task.shape.demand
        arrived.append(task)
    return arrived


def with_levels(
    tasks: Sequence[SimulatedTask], seed: int, part: float, switch: int, numa: int
) -> list[SimulatedTask]:
    """Return the tasks; a random part of them now needs its GPUs together.

    :param part: part of the tasks with several GPUs that gets a level: one half
        needs groups under one switch, the other half on one NUMA node
    :param switch: GPUs under one switch, the size of the largest group there
    :param numa: GPUs on one NUMA node
    """
    rng = random.Random(f"levels {seed}")
    result = []
    for task in tasks:
        if task.shape.gpus > 1 and rng.random() < part:
            level, most = rng.choice(((Level.SWITCH, switch), (Level.NUMA, numa)))
            shape = task.shape
            size = max(n for n in range(1, min(most, shape.gpus) + 1) if shape.gpus % n == 0)
            task = attrs.evolve(task, shape=attrs.evolve(shape, level=level, group=size))
        result.append(task)
    return result
