# SPDX-License-Identifier: Apache-2.0
"""What every policy is, and those of stock Nova and of the literature.

A policy picks a node, and then GPUs on it.

Stock Nova: each weigher's values are normalised over the hosts that passed the filters:
(value - least) / (most - least), where RAM and CPU have a fixed least of 0,
and all zero where they are equal. They are multiplied and added up, and one of
the ``host_subset_size`` best hosts is chosen at random; equal hosts have no
order. Of the devices, Nova takes an allocation candidate of Placement: any.

The literature: policies as Weng et al. (ATC'23) compared them. The scores, their rounding
and the order among equals are those of the paper's simulator, so that its figures can be
reproduced. A task with a level goes only to nodes that can satisfy it, and gets the first
GPUs there that do.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import attrs
import numpy as np

from nova_hpc_tools.simulate.cluster import (
    Bools,
    Floats,
    Ints,
    Measure,
    SimulatedCluster,
    gpus_together,
    task_kind_of,
)
from nova_hpc_tools.simulate.model import WHOLE, TaskShape, Typical

#: Scores of the given nodes for a shape; the best is the highest.
Compute = Callable[[TaskShape, Ints], Floats]


class SimulatedPolicy(ABC):
    """A policy on one cluster; equal nodes are taken in the order of the list."""

    def __init__(
        self, cluster: SimulatedCluster, rng: random.Random, workload: tuple[Typical, ...]
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self.workload = workload

    @abstractmethod
    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick one of the nodes that fit; there is at least one."""

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


class Scores:
    """Scores by shape, computed again only for nodes that have changed."""

    def __init__(self, cluster: SimulatedCluster, compute: Compute) -> None:
        self.cluster = cluster
        self.compute = compute
        self.known: dict[TaskShape, tuple[Floats, Ints]] = {}

    def of(self, shape: TaskShape, fits: Bools) -> Floats:
        """Scores of all nodes; those that do not fit have no meaning."""
        if shape not in self.known:
            count = len(self.cluster)
            self.known[shape] = (np.zeros(count), np.zeros(count, dtype=np.int64))
        scores, versions = self.known[shape]
        stale = np.flatnonzero(fits & (versions != self.cluster.version))
        if stale.size:
            scores[stale] = self.compute(shape, stale)
            versions[stale] = self.cluster.version[stale]
        return scores


#: From here on the PCI weigher takes all hosts as equal.
MANY_DEVICES: Final = 99


@attrs.frozen
class Multipliers:
    """Options of Nova's ``[filter_scheduler]``; the defaults are Nova's."""

    ram: float = 1.0
    cpu: float = 1.0
    pci: float = 1.0
    subset: int = 1  # host_subset_size; 0: all hosts


class Nova(SimulatedPolicy):
    """The filter scheduler with some multipliers."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        rng: random.Random,
        workload: tuple[Typical, ...],
        multipliers: Multipliers,
    ) -> None:
        super().__init__(cluster, rng, workload)
        self.multipliers = multipliers

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        return self.among(np.flatnonzero(fits), fits)

    def among(self, some: Ints, fits: Bools) -> int:
        """Pick one of *some* of the hosts that fit, by weights that are relative to all these."""
        hosts = np.flatnonzero(fits)
        free = (self.cluster.gpu[hosts] == WHOLE).sum(axis=1)
        weights = (
            self.multipliers.ram * _normalise_weights(self.cluster.memory[hosts], 0)
            + self.multipliers.cpu * _normalise_weights(self.cluster.cpu[hosts], 0)
            + self.multipliers.pci
            * _normalise_weights(MANY_DEVICES + 1 - np.minimum(free, MANY_DEVICES))
        )
        order = np.flatnonzero(np.isin(hosts, some)).tolist()
        self.rng.shuffle(order)
        order.sort(key=lambda index: -weights[index])
        subset = self.multipliers.subset or len(order)
        return int(hosts[self.rng.choice(order[:subset])])

    def gpus(self, node: int, shape: TaskShape) -> tuple[int, ...]:
        """Pick them."""
        if not shape.gpus:
            return ()
        order = list(range(self.cluster.gpu.shape[1]))
        self.rng.shuffle(order)
        if shape.exclusive:
            return gpus_together(self.cluster, node, shape, order)
        row = self.cluster.gpu[node]
        return (next(number for number in order if row[number] >= shape.gpu_milli),)


def _normalise_weights(values: Ints, least: int | None = None) -> Floats:
    low = int(values.min()) if least is None else least
    high = int(values.max())
    if high == low:
        return np.zeros(len(values))
    result: Floats = (values - low) / (high - low)
    return result


#: The largest node that scores are relative to.
MOST_CPU: Final = 128_000
MOST_GPU: Final = 8 * WHOLE
#: Scores are whole numbers up to this.
TOP: Final = 100


class FirstFit(SimulatedPolicy):
    """The first node of the list."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        return int(fits.argmax())


class Random(SimulatedPolicy):
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


class DotProduct(SimulatedPolicy):
    """The node whose free CPU and GPU, times those asked for, are least (Tetris)."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        product = (
            self.cluster.cpu / MOST_CPU * (shape.cpu_milli / MOST_CPU)
            + self.cluster.idle / MOST_GPU * (shape.demand / MOST_GPU)
        ) / 2
        return best_fitting_node((TOP * (1 - product)).astype(np.int64), fits)


class BestFit(SimulatedPolicy):
    """The node with the least free CPU and GPU left."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        left = (self.cluster.cpu - shape.cpu_milli) / MOST_CPU * 0.5 + (
            self.cluster.idle - shape.demand
        ) / MOST_GPU * 0.5
        return best_fitting_node(((1 - left) * TOP).astype(np.int64), fits)


class Clustering(SimulatedPolicy):
    """Nodes with tasks of the same kind, the fullest first (Gandiva)."""

    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Pick it."""
        if not shape.gpus:
            return int(fits.argmax())
        variety = self.cluster.variety()
        same = self.cluster.kinds.get(task_kind_of(shape))
        alike = same > 0 if same is not None else np.zeros(len(self.cluster), dtype=np.bool_)
        quarter = TOP // 4
        band = np.where(alike, np.where(variety == 1, 3, 2), np.where(variety == 0, 1, 0))
        fullness = quarter * (MOST_GPU - self.cluster.idle) // MOST_GPU
        return best_fitting_node(fullness + band * quarter, fits)


class Packing(SimulatedPolicy):
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


class Fgd(SimulatedPolicy):
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
        return self.cluster.satisfied(node, free, tuple(task.shape for task in self.workload))

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
