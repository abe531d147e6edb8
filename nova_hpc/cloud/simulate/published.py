"""Policies from the literature, as Weng et al. (ATC'23) compared them.

The scores, their rounding and the order among equals are those of the paper's
simulator, so that its figures can be reproduced. A task with a level goes only
to nodes that can satisfy it, and gets the first GPUs there that do.
"""

from __future__ import annotations

import random
from typing import Final

import numpy as np

from nova_hpc.cloud.simulate.cluster import Bools, Cluster, Ints, kind_of
from nova_hpc.cloud.simulate.fragmentation import Floats, Measure
from nova_hpc.cloud.simulate.policy import Policy, Scores, best
from nova_hpc.cloud.simulate.workload import WHOLE, Shape, Typical

#: The largest node that scores are relative to.
MOST_CPU: Final = 128_000
MOST_GPU: Final = 8 * WHOLE
#: Scores are whole numbers up to this.
TOP: Final = 100


class FirstFit(Policy):
    """The first node of the list."""

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        return int(fits.argmax())


class Random(Policy):
    """Any node, and any GPU that has the share."""

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        return int(self.rng.choice(np.flatnonzero(fits).tolist()))

    def gpus(self, node: int, shape: Shape) -> tuple[int, ...]:
        """Pick them."""
        if shape.exclusive or not shape.gpus:
            return super().gpus(node, shape)
        able = np.flatnonzero(self.cluster.gpu[node] >= shape.gpu_milli).tolist()
        return (int(self.rng.choice(able)),)


class DotProduct(Policy):
    """The node whose free CPU and GPU, times those asked for, are least (Tetris)."""

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        product = (
            self.cluster.cpu / MOST_CPU * (shape.cpu_milli / MOST_CPU)
            + self.cluster.idle / MOST_GPU * (shape.demand / MOST_GPU)
        ) / 2
        return best((TOP * (1 - product)).astype(np.int64), fits)


class BestFit(Policy):
    """The node with the least free CPU and GPU left."""

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        left = (self.cluster.cpu - shape.cpu_milli) / MOST_CPU * 0.5 + (
            self.cluster.idle - shape.demand
        ) / MOST_GPU * 0.5
        return best(((1 - left) * TOP).astype(np.int64), fits)


class Clustering(Policy):
    """Nodes with tasks of the same kind, the fullest first (Gandiva)."""

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        if not shape.gpus:
            return int(fits.argmax())
        variety = self.cluster.variety()
        same = self.cluster.kinds.get(kind_of(shape))
        alike = same > 0 if same is not None else np.zeros(len(self.cluster), dtype=np.bool_)
        quarter = TOP // 4
        band = np.where(alike, np.where(variety == 1, 3, 2), np.where(variety == 0, 1, 0))
        fullness = quarter * (MOST_GPU - self.cluster.idle) // MOST_GPU
        return best(fullness + band * quarter, fits)


class Packing(Policy):
    """GPUs that are shared already, then free GPUs of used nodes, then free nodes."""

    def node(self, shape: Shape, fits: Bools) -> int:
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
        return best(scores, fits)


class Fgd(Policy):
    """The node, and the GPU, where fragmentation grows least."""

    def __init__(self, cluster: Cluster, rng: random.Random, workload: tuple[Typical, ...]) -> None:
        super().__init__(cluster, rng, workload)
        self.measure = Measure(workload)
        self.scores = Scores(cluster, self._compute)

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        return best(self.scores.of(shape, fits), fits)

    def gpus(self, node: int, shape: Shape) -> tuple[int, ...]:
        """Pick them."""
        if shape.exclusive or not shape.gpus:
            return super().gpus(node, shape)
        return (int(self._by_gpu(shape, np.array([node]))[0].argmax()),)

    def _compute(self, shape: Shape, nodes: Ints) -> Floats:
        if shape.gpus and not shape.exclusive:
            result: Floats = self._by_gpu(shape, nodes).max(axis=1)
            return result
        cpu, gpu = self.cluster.cpu[nodes], self.cluster.gpu[nodes]
        after = gpu.copy()
        if shape.gpus:
            # Whole GPUs are alike: the first free ones go.
            free = gpu == WHOLE
            after[free & (free.cumsum(axis=1) <= shape.gpus)] = 0
        return _score(self.measure.of(cpu, gpu) - self.measure.of(cpu - shape.cpu_milli, after))

    def _by_gpu(self, shape: Shape, nodes: Ints) -> Floats:
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
        scores[able] = _score(before - self.measure.of(less, after[able]))
        return scores


def _score(gain: Floats) -> Floats:
    """A whole number from 0 to TOP for the decrease of fragmentation, in thousandths."""
    result: Floats = np.floor(TOP / (1.0 + np.exp(-gain / WHOLE)))
    return result
