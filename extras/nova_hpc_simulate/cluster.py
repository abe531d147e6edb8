# SPDX-License-Identifier: Apache-2.0
"""The state of all nodes, as arrays over the nodes, and its fragmentation.

One request changes one node, so the sums that policies need are updated only for
that node.

The measure of fragmentation is FGD's (Weng et al., "Beware of Fragmentation", ATC'23).
To one task, the part of a node's free GPUs that the task cannot use is fragmented. This
is all of it if the node cannot hold the task (or the task needs no GPU). Otherwise it is
the free parts of GPUs that are too full for the task. The measure of a node is the mean
over a distribution of typical tasks, in thousandths of a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from nova_hpc_common.level import Level
from nova_hpc_simulate.model import WHOLE, Layout, SimulatedMachine, TaskShape, Typical

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class SimulatedCluster:
    """The free devices of every simulated node; changed by :meth:`take` and :meth:`give`."""

    def __init__(self, machines: Sequence[SimulatedMachine]) -> None:
        self.machines = tuple(machines)
        count = len(self.machines)
        width = max((machine.gpus for machine in self.machines), default=0)
        self.cpu: Ints = np.array([m.cpu_milli for m in self.machines], dtype=np.int64)
        self.memory: Ints = np.array([m.memory_mib for m in self.machines], dtype=np.int64)
        self.gpus: Ints = np.array([m.gpus for m in self.machines], dtype=np.int64)
        #: free thousandths of each GPU; 0 for busy and absent ones
        self.gpu: Ints = np.zeros((count, max(width, 1)), dtype=np.int64)
        for index, machine in enumerate(self.machines):
            self.gpu[index, : machine.gpus] = WHOLE
            self.gpu[index, list(machine.busy)] = 0
        #: free thousandths of all GPUs, number of free whole GPUs, and the highest free part
        self.idle: Ints = self.gpu.sum(axis=1)
        self.whole: Ints = (self.gpu == WHOLE).sum(axis=1)
        self.most: Ints = self.gpu.max(axis=1)
        #: rises whenever the node changes, so that policies can keep scores until then
        self.version: Ints = np.ones(count, dtype=np.int64)
        self.capacity: Final = int(self.gpu.sum())
        #: Tasks with GPUs that are placed, by their shapes.
        self.running: Counter[TaskShape] = Counter()
        self._layouts: dict[Layout, dict[Level, tuple[tuple[int, ...], ...]]] = {}
        self._rooms: dict[tuple[Level, int], Ints] = {}

    def __len__(self) -> int:
        return len(self.machines)

    def fits(self, shape: TaskShape) -> Bools:
        """Return for each node whether it can hold a task of *shape* at the task's level."""
        fit: Bools = (self.cpu >= shape.cpu_milli) & (self.memory >= shape.memory_mib)
        if shape.gpus:
            if shape.exclusive:
                fit &= self.whole >= shape.gpus
            else:
                fit &= self.most >= shape.gpu_milli
        if shape.local:
            fit &= self.room(shape.level, shape.group_size) >= shape.groups
        return fit

    def room(self, level: Level, size: int) -> Ints:
        """Return the number of groups of *size* whole GPUs at *level* that each node can hold."""
        key = (level, size)
        room = self._rooms.get(key)
        if room is None:
            room = np.array(
                [self._groups(node, level, size) for node in range(len(self))], dtype=np.int64
            )
            self._rooms[key] = room
        return room

    def domains(self, node: int, level: Level) -> tuple[tuple[int, ...], ...]:
        """Return the GPUs of each domain of a node; a GPU at an unknown place is its own domain."""
        machine = self.machines[node]
        layout = machine.layout
        if level is Level.HOST or not layout:
            every = tuple(range(machine.gpus))
            return (every,) if level is Level.HOST else tuple((number,) for number in every)
        by_level = self._layouts.setdefault(layout, {})
        if level not in by_level:
            gpus_by_domain: dict[object, list[int]] = {}
            for number, place in enumerate(layout):
                gpus_by_domain.setdefault(place.domain(level) or number, []).append(number)
            by_level[level] = tuple(tuple(numbers) for numbers in gpus_by_domain.values())
        return by_level[level]

    def free(self, node: int) -> tuple[int, ...]:
        """Return the numbers of the GPUs of a node that are completely free."""
        return tuple(int(number) for number in np.flatnonzero(self.gpu[node] == WHOLE))

    def take(self, node: int, shape: TaskShape, gpus: Iterable[int]) -> None:
        """Place a task on *gpus* of a node.

        :raises ValueError: the task does not fit there, so the policy has a fault.
        """
        chosen = sorted(set(gpus))
        if (
            len(chosen) != shape.gpus
            or self.cpu[node] < shape.cpu_milli
            or self.memory[node] < shape.memory_mib
            or any(self.gpu[node, number] < shape.gpu_milli for number in chosen)
        ):
            raise ValueError(f"{shape} does not fit GPUs {chosen} of {self.machines[node].name}")
        if shape.local:
            inside = sum(
                sum(number in domain for number in chosen) // shape.group_size
                for domain in map(frozenset, self.domains(node, shape.level))
            )
            if inside < shape.groups:
                raise ValueError(f"GPUs {chosen} are not together as {shape} requires")
        self._change(node, shape, chosen, -1)

    def give(self, node: int, shape: TaskShape, gpus: Iterable[int]) -> None:
        """Free the devices of a task that :meth:`take` has placed."""
        self._change(node, shape, sorted(gpus), 1)

    def _change(self, node: int, shape: TaskShape, chosen: list[int], sign: int) -> None:
        self.cpu[node] += sign * shape.cpu_milli
        self.memory[node] += sign * shape.memory_mib
        if chosen:
            self.gpu[node, chosen] += sign * shape.gpu_milli
            row = self.gpu[node]
            self.idle[node] = row.sum()
            self.whole[node] = (row == WHOLE).sum()
            self.most[node] = row.max()
            self.running[shape] -= sign
            for (level, size), room in self._rooms.items():
                room[node] = self._groups(node, level, size)
        self.version[node] += 1

    def _groups(self, node: int, level: Level, size: int) -> int:
        row = self.gpu[node]
        return sum(
            sum(row[number] == WHOLE for number in domain) // size
            for domain in self.domains(node, level)
        )


def gpus_together(
    cluster: SimulatedCluster, node: int, shape: TaskShape, order: Sequence[int]
) -> tuple[int, ...]:
    """Choose the first GPUs in *order* that a task with whole GPUs can use.

    If the task has a level, they come from the first domains with room.
    """
    free = set(cluster.free(node))
    if not shape.local:
        return tuple(number for number in order if number in free)[: shape.gpus]
    return tuple(_by_group(cluster, node, shape, [n for n in order if n in free]))


def _by_group(
    cluster: SimulatedCluster, node: int, shape: TaskShape, order: Sequence[int]
) -> Iterator[int]:
    missing = shape.groups
    place = {number: index for index, number in enumerate(order)}
    domains = [
        sorted((number for number in domain if number in place), key=place.__getitem__)
        for domain in cluster.domains(node, shape.level)
    ]
    for domain in sorted((d for d in domains if d), key=lambda d: place[d[0]]):
        groups = min(missing, len(domain) // shape.group_size)
        yield from domain[: groups * shape.group_size]
        missing -= groups


Floats = npt.NDArray[np.float64]


class Measure:
    """Measures fragmentation against a distribution of typical tasks (Weng et al., ATC'23)."""

    def __init__(self, tasks: Sequence[Typical]) -> None:
        self.tasks = tuple(tasks)
        self.cpu: Ints = np.array([t.shape.cpu_milli for t in self.tasks], dtype=np.int64)
        self.gpus: Ints = np.array([t.shape.gpus for t in self.tasks], dtype=np.int64)
        self.frequency: Floats = np.array([t.frequency for t in self.tasks], dtype=np.float64)
        milli = np.array(
            [t.shape.gpu_milli if t.shape.gpus else 0 for t in self.tasks], dtype=np.int64
        )
        # Tasks have few different shares, so sums by share are computed once for each share.
        self.shares, self.share_of = np.unique(milli, return_inverse=True)

    def of(
        self,
        cpu: Ints,
        gpu: Ints,
        satisfied: npt.NDArray[np.bool_] | None = None,
    ) -> Floats:
        """Compute the fragmented thousandths of a GPU of each state.

        :param cpu: free CPU of the states, in thousandths
        :param gpu: states x GPUs: the free part of each, in thousandths
        :param satisfied: states x tasks: whether the GPUs suffice; by default, this
            follows from their number
        """
        wide = gpu[:, None, :] >= self.shares[None, :, None]
        left = np.where(wide, 0, gpu[:, None, :]).sum(axis=2)
        total = gpu.sum(axis=1)
        if satisfied is None:
            satisfied = wide.sum(axis=2)[:, self.share_of] >= self.gpus
        usable = satisfied & (cpu[:, None] >= self.cpu) & (self.gpus > 0)
        lost = np.where(usable, left[:, self.share_of], total[:, None])
        result: Floats = lost @ self.frequency
        return result

    def cluster(self, cluster: SimulatedCluster) -> float:
        """Compute the fragmented thousandths of a GPU on all nodes; the tasks' levels count."""
        satisfied = np.empty((len(cluster), len(self.tasks)), dtype=np.bool_)
        for number, task in enumerate(self.tasks):
            shape = task.shape
            if shape.local:
                satisfied[:, number] = cluster.room(shape.level, shape.group_size) >= shape.groups
            elif shape.gpus and shape.exclusive:
                satisfied[:, number] = cluster.whole >= shape.gpus
            else:
                satisfied[:, number] = cluster.most >= shape.gpu_milli
        return float(self.of(cluster.cpu, cluster.gpu, satisfied).sum())
