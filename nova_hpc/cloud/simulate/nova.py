"""Stock Nova: the scheduler's own weighers, and devices as Placement offers them.

Each weigher's values are normalised over the hosts that passed the filters:
(value - least) / (most - least), where RAM and CPU have a fixed least of 0,
and all zero where they are equal. They are multiplied and added up, and one of
the ``host_subset_size`` best hosts is chosen at random; equal hosts have no
order. Of the devices, Nova takes an allocation candidate of Placement: any.
"""

from __future__ import annotations

import random
from typing import Final

import attrs
import numpy as np

from nova_hpc.cloud.simulate.cluster import Bools, Cluster, Ints, together
from nova_hpc.cloud.simulate.fragmentation import Floats
from nova_hpc.cloud.simulate.policy import Policy
from nova_hpc.cloud.simulate.workload import WHOLE, Shape, Typical

#: From here on the PCI weigher takes all hosts as equal.
MANY_DEVICES: Final = 99


@attrs.frozen
class Multipliers:
    """Options of Nova's ``[filter_scheduler]``; the defaults are Nova's."""

    ram: float = 1.0
    cpu: float = 1.0
    pci: float = 1.0
    subset: int = 1  # host_subset_size; 0: all hosts


class Nova(Policy):
    """The filter scheduler with some multipliers."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        workload: tuple[Typical, ...],
        multipliers: Multipliers,
    ) -> None:
        super().__init__(cluster, rng, workload)
        self.multipliers = multipliers

    def node(self, shape: Shape, fits: Bools) -> int:
        """Pick it."""
        hosts = np.flatnonzero(fits)
        free = (self.cluster.gpu[hosts] == WHOLE).sum(axis=1)
        weights = (
            self.multipliers.ram * _normalise(self.cluster.memory[hosts], 0)
            + self.multipliers.cpu * _normalise(self.cluster.cpu[hosts], 0)
            + self.multipliers.pci * _normalise(MANY_DEVICES + 1 - np.minimum(free, MANY_DEVICES))
        )
        order = list(range(len(hosts)))
        self.rng.shuffle(order)
        order.sort(key=lambda index: -weights[index])
        subset = self.multipliers.subset or len(order)
        return int(hosts[self.rng.choice(order[:subset])])

    def gpus(self, node: int, shape: Shape) -> tuple[int, ...]:
        """Pick them."""
        if not shape.gpus:
            return ()
        order = list(range(self.cluster.gpu.shape[1]))
        self.rng.shuffle(order)
        if shape.exclusive:
            return together(self.cluster, node, shape, order)
        row = self.cluster.gpu[node]
        return (next(number for number in order if row[number] >= shape.gpu_milli),)


def _normalise(values: Ints, least: int | None = None) -> Floats:
    low = int(values.min()) if least is None else least
    high = int(values.max())
    if high == low:
        return np.zeros(len(values))
    result: Floats = (values - low) / (high - low)
    return result
