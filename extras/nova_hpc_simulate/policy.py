# SPDX-License-Identifier: Apache-2.0
"""The protocol of a policy, and the policies of stock Nova.

A policy picks a node, and then GPUs on it.

Stock Nova: each weigher's values are normalised over the hosts that passed the filters:
(value - least) / (most - least). RAM and CPU have a fixed least of 0, and equal values
become 0. They are multiplied and added up, and one of the ``host_subset_size`` best hosts
is chosen at random; equal hosts have no order. For the devices, Nova takes any allocation
candidate of Placement.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import attrs
import numpy as np

from nova_hpc_simulate.cluster import Bools, Floats, Ints, SimulatedCluster, gpus_together
from nova_hpc_simulate.model import WHOLE, TaskShape, Typical

#: Scores of the given nodes for a shape; the best is the highest.
Compute = Callable[[TaskShape, Ints], Floats]


class SimulatedPolicy(ABC):
    """Base class of placement policies, each bound to one simulated cluster."""

    def __init__(
        self, cluster: SimulatedCluster, rng: random.Random, workload: tuple[Typical, ...]
    ) -> None:
        self.cluster = cluster
        self.rng = rng
        self.workload = workload

    @abstractmethod
    def node(self, shape: TaskShape, fits: Bools) -> int:
        """Choose one of the nodes in *fits*, which has at least one."""

    @abstractmethod
    def gpus(self, node: int, shape: TaskShape) -> tuple[int, ...]:
        """Choose the GPUs for *shape* on *node*; return their numbers."""


class Scores:
    """Caches the scores of nodes for each shape; only changed nodes are computed again."""

    def __init__(self, cluster: SimulatedCluster, compute: Compute) -> None:
        self.cluster = cluster
        self.compute = compute
        self.known: dict[TaskShape, tuple[Floats, Ints]] = {}

    def of(self, shape: TaskShape, fits: Bools) -> Floats:
        """Return the nodes' scores for *shape*; scores of nodes outside *fits* have no meaning."""
        if shape not in self.known:
            count = len(self.cluster)
            self.known[shape] = (np.zeros(count), np.zeros(count, dtype=np.int64))
        scores, versions = self.known[shape]
        stale = np.flatnonzero(fits & (versions != self.cluster.version))
        if stale.size:
            scores[stale] = self.compute(shape, stale)
            versions[stale] = self.cluster.version[stale]
        return scores


#: Number of free devices from which the PCI weigher treats all hosts as equal.
MANY_DEVICES: Final = 99


@attrs.frozen
class Multipliers:
    """Options of Nova's ``[filter_scheduler]``; the defaults are Nova's own."""

    ram: float = 1.0
    cpu: float = 1.0
    pci: float = 1.0
    subset: int = 1  # host_subset_size; 0 for all hosts


class Nova(SimulatedPolicy):
    """Simulated policy: Nova's filter scheduler with the given multipliers."""

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
        """Pick one of all nodes in *fits*."""
        return self.among(np.flatnonzero(fits), fits)

    def among(self, some: Ints, fits: Bools) -> int:
        """Choose one of *some*, by weights that are normalised over all hosts in *fits*."""
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
        """Choose GPUs at random, within the shape's level; return their numbers."""
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
