"""What every policy is: it picks a node, and then GPUs on it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from nova_hpc.cloud.simulate.cluster import Bools, Cluster, Ints, together
from nova_hpc.cloud.simulate.fragmentation import Floats
from nova_hpc.cloud.simulate.workload import Shape, Typical

#: Scores of the given nodes for a shape; the best is the highest.
Compute = Callable[[Shape, Ints], Floats]


class Policy(ABC):
    """A policy on one cluster; equal nodes are taken in the order of the list."""

    def __init__(self, cluster: Cluster, rng: random.Random, workload: tuple[Typical, ...]) -> None:
        self.cluster = cluster
        self.rng = rng
        self.workload = workload

    @abstractmethod
    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick one of the nodes that fit; there is at least one."""

    def gpus(self, node: int, shape: Shape) -> tuple[int, ...]:
        """Pick the GPUs there: the fullest that has the share, or the first free ones."""
        if not shape.gpus:
            return ()
        if shape.exclusive:
            return together(self.cluster, node, shape, range(self.cluster.gpu.shape[1]))
        row = self.cluster.gpu[node]
        return (int(np.where(row >= shape.gpu_milli, row, row.max() + 1).argmin()),)


def best(scores: Ints | Floats, fits: Bools) -> int:
    """The first of the fitting nodes with the highest score."""
    nodes = np.flatnonzero(fits)
    return int(nodes[scores[nodes].argmax()])


class Scores:
    """Scores by shape, computed again only for nodes that have changed."""

    def __init__(self, cluster: Cluster, compute: Compute) -> None:
        self.cluster = cluster
        self.compute = compute
        self.known: dict[Shape, tuple[Floats, Ints]] = {}

    def of(self, shape: Shape, fits: Bools) -> Floats:
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
