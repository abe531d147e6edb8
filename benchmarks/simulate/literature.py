# SPDX-License-Identifier: Apache-2.0
"""Policies of the literature, as Weng et al. (ATC'23) compared them.

The scores, their rounding and the order among equals are those of the paper's simulator, so
that its figures can be reproduced. A task with a level goes only to nodes that can satisfy it,
and gets the first GPUs there that do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import numpy as np

from nova_hpc_tools.simulate.cluster import (
    Bools,
    Floats,
    Ints,
    Measure,
    SimulatedCluster,
    gpus_together,
)
from nova_hpc_tools.simulate.model import WHOLE, SimulatedMachine, TaskShape, Typical
from nova_hpc_tools.simulate.policy import Scores, SimulatedPolicy

#: Label of a task's kind, for the policy that gathers tasks of one kind.
SHARE: Final = -1


def task_kind_of(shape: TaskShape) -> int:
    """The kind of a task: its number of GPUs, or SHARE; 0 without GPUs."""
    return shape.gpus if shape.exclusive or not shape.gpus else SHARE


class CountingCluster(SimulatedCluster):
    """A cluster that counts, node by node, the tasks of each kind."""

    def __init__(self, machines: Sequence[SimulatedMachine]) -> None:
        super().__init__(machines)
        self.kinds: dict[int, Ints] = {}

    def variety(self) -> Ints:
        """How many kinds of tasks with GPUs each node has."""
        total: Ints = np.zeros(len(self), dtype=np.int64)
        for count in self.kinds.values():
            total += count > 0
        return total

    def _change(self, node: int, shape: TaskShape, chosen: list[int], sign: int) -> None:
        super()._change(node, shape, chosen, sign)
        if chosen:
            kind = task_kind_of(shape)
            if kind not in self.kinds:
                self.kinds[kind] = np.zeros(len(self), dtype=np.int64)
            self.kinds[kind][node] -= sign


def satisfied_shapes(
    cluster: SimulatedCluster, node: int, free: frozenset[int], shapes: tuple[TaskShape, ...]
) -> Bools:
    """Which shapes of whole GPUs fit on these GPUs of a node, as far as GPUs decide."""
    groups = (
        sum(len(free.intersection(d)) // s.group_size for d in cluster.domains(node, s.level))
        if s.local
        else len(free) // max(s.gpus, 1) * s.groups
        for s in shapes
    )
    return np.array([n >= s.groups for n, s in zip(groups, shapes, strict=True)])


class FirstGpus(SimulatedPolicy):
    """A policy that chooses nodes; equal ones are taken in the order of the list."""

    def gpus(self, node: int, shape: TaskShape) -> tuple[int, ...]:
        """Pick the GPUs there: the fullest that has the share, or the first free ones."""
        if not shape.gpus:
            return ()
        if shape.exclusive:
            return gpus_together(self.cluster, node, shape, range(self.cluster.gpu.shape[1]))
        row = self.cluster.gpu[node]
        return (int(np.where(row >= shape.gpu_milli, row, row.max() + 1).argmin()),)


def best_fitting_node(scores: Ints | Floats, fits: Bools) -> int:
    """The first of the fitting nodes with the highest score."""
    nodes = np.flatnonzero(fits)
    return int(nodes[scores[nodes].argmax()])


#: The largest node that scores are relative to.
MOST_CPU: Final = 128_000
MOST_GPU: Final = 8 * WHOLE
#: Scores are whole numbers up to this.
TOP: Final = 100


class FirstFit(FirstGpus):
    """The first node of the list."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        return int(fits.argmax())


class Random(FirstGpus):
    """Any node, and any GPU that has the share."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        return int(self.rng.choice(np.flatnonzero(fits).tolist()))

    def gpus(self, node: int, shape: TaskShape) -> tuple[int, ...]:
        """Pick them."""
        if shape.exclusive or not shape.gpus:
            return super().gpus(node, shape)
        able = np.flatnonzero(self.cluster.gpu[node] >= shape.gpu_milli).tolist()
        return (int(self.rng.choice(able)),)


class DotProduct(FirstGpus):
    """The node whose free CPU and GPU, times those asked for, are least (Tetris)."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        product = (
            self.cluster.cpu / MOST_CPU * (shape.cpu_milli / MOST_CPU)
            + self.cluster.idle / MOST_GPU * (shape.demand / MOST_GPU)
        ) / 2
        return best_fitting_node((TOP * (1 - product)).astype(np.int64), fits)


class BestFit(FirstGpus):
    """The node with the least free CPU and GPU left."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        left = (self.cluster.cpu - shape.cpu_milli) / MOST_CPU * 0.5 + (
            self.cluster.idle - shape.demand
        ) / MOST_GPU * 0.5
        return best_fitting_node(((1 - left) * TOP).astype(np.int64), fits)


class Clustering(FirstGpus):
    """Nodes with tasks of the same kind, the fullest first (Gandiva)."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        if not shape.gpus:
            return int(fits.argmax())
        assert isinstance(self.cluster, CountingCluster)
        variety = self.cluster.variety()
        same = self.cluster.kinds.get(task_kind_of(shape))
        alike = same > 0 if same is not None else np.zeros(len(self.cluster), dtype=np.bool_)
        quarter = TOP // 4
        band = np.where(alike, np.where(variety == 1, 3, 2), np.where(variety == 0, 1, 0))
        fullness = quarter * (MOST_GPU - self.cluster.idle) // MOST_GPU
        return best_fitting_node(fullness + band * quarter, fits)


class Packing(FirstGpus):
    """GPUs that are shared already, then free GPUs of used nodes, then free nodes."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        if not shape.gpus:
            return int(fits.argmax())
        gpu, whole = self.cluster.gpu, self.cluster.whole
        # The fullest GPUs that have the share come first.
        able = np.sort(np.where(gpu >= shape.gpu_milli, gpu, 2 * WHOLE), axis=1)
        chosen = able[:, : shape.gpus]
        fresh = (chosen == WHOLE).sum(axis=1)
        shared = TOP - (chosen * 100 // WHOLE).sum(axis=1) // 10
        scores = np.where(
            whole == self.cluster.gpus,
            np.maximum(TOP // 3 - whole, whole),
            np.where(
                fresh > 0, np.maximum(TOP // 2 - fresh, TOP // 3), np.maximum(shared, TOP // 2)
            ),
        )
        return best_fitting_node(scores, fits)


class Fgd(FirstGpus):
    """The node, and the GPU, where fragmentation grows least.

    :param memory: of the typical tasks counts, too, as it does not in the paper.
    :param topology: a typical task with a level can use only GPUs that are together.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        rng: random.Random,
        workload: tuple[Typical, ...],
        memory: bool = False,
        topology: bool = False,
    ) -> None:
        super().__init__(cluster, rng, workload)
        self.memory, self.topology = memory, topology
        self.measure = Measure(workload)
        self.scores = Scores(cluster, self._compute)
        self._fitting: dict[object, Bools] = {}

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        return best_fitting_node(self.scores.of(shape, fits), fits)

    def gpus(self, node: int, shape: TaskShape) -> tuple[int, ...]:
        """Pick them."""
        if shape.exclusive or not shape.gpus:
            return super().gpus(node, shape)
        return (int(self._by_gpu(shape, np.array([node]))[0].argmax()),)

    def _compute(self, shape: TaskShape, nodes: Ints) -> Floats:
        if shape.gpus and not shape.exclusive:
            result: Floats = self._by_gpu(shape, nodes).max(axis=1)
            return result
        cpu, gpu = self.cluster.cpu[nodes], self.cluster.gpu[nodes]
        after = gpu.copy()
        if shape.gpus and self.topology:
            for row, node in zip(after, nodes.tolist(), strict=True):
                row[list(self.gpus(node, shape))] = 0
        elif shape.gpus:
            # Whole GPUs are alike: the first free ones go.
            free = gpu == WHOLE
            after[free & (free.cumsum(axis=1) <= shape.gpus)] = 0
        memory = self.cluster.memory[nodes]
        return _score_of_gain(
            self._fragments(nodes, cpu, gpu, memory)
            - self._fragments(nodes, cpu - shape.cpu_milli, after, memory - shape.memory_mib)
        )

    def _fragments(self, nodes: Ints, cpu: Ints, gpu: Ints, memory: Ints) -> Floats:
        together = None
        if self.topology:
            together = np.array(
                [self._together(node, row) for node, row in zip(nodes.tolist(), gpu, strict=True)]
            )
        return self.measure.of(cpu, gpu, together, memory if self.memory else None)

    def _together(self, node: int, row: Ints) -> Bools:
        """Which of the typical tasks find room for their groups on the free GPUs."""
        free = frozenset(np.flatnonzero(row == WHOLE).tolist())
        key = (self.cluster.machines[node].layout, self.cluster.machines[node].gpus, free)
        fitting = self._fitting.get(key)
        if fitting is None:
            shapes = tuple(task.shape for task in self.workload)
            fitting = self._fitting[key] = satisfied_shapes(self.cluster, node, free, shapes)
        return fitting

    def _by_gpu(self, shape: TaskShape, nodes: Ints) -> Floats:
        """Nodes x GPUs: the score of taking the share there; -1 where it does not fit."""
        cpu, gpu = self.cluster.cpu[nodes], self.cluster.gpu[nodes]
        width = gpu.shape[1]
        after = np.repeat(gpu, width, axis=0).reshape(len(nodes), width, width)
        every = np.arange(width)
        after[:, every, every] -= shape.gpu_milli
        able = gpu >= shape.gpu_milli
        scores = np.full(gpu.shape, -1.0)
        before = np.broadcast_to(self.measure.of(cpu, gpu)[:, None], gpu.shape)[able]
        less = np.broadcast_to((cpu - shape.cpu_milli)[:, None], gpu.shape)[able]
        scores[able] = _score_of_gain(before - self.measure.of(less, after[able]))
        return scores


def _score_of_gain(gain: Floats) -> Floats:
    """A whole number from 0 to TOP for the decrease of fragmentation, in thousandths."""
    result: Floats = np.floor(TOP / (1.0 + np.exp(-gain / WHOLE)))
    return result
