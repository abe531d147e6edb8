"""FGD's measure of fragmentation (Weng et al., "Beware of Fragmentation", ATC'23).

To one task, the free GPU of a node is fragmented as far as the task cannot use
it: all of it where the node cannot hold the task at all (or the task wants no
GPU), and otherwise what is free of GPUs that are too full for it. The measure
of a node is the mean over a distribution of typical tasks, in thousandths of
a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nova_hpc.cloud.simulate.cluster import Cluster, Ints
from nova_hpc.cloud.simulate.workload import Typical

Floats = npt.NDArray[np.float64]


class Measure:
    """The measure for one distribution of typical tasks."""

    def __init__(self, tasks: Sequence[Typical]) -> None:
        self.tasks = tuple(tasks)
        self.cpu: Ints = np.array([t.shape.cpu_milli for t in self.tasks], dtype=np.int64)
        self.gpus: Ints = np.array([t.shape.gpus for t in self.tasks], dtype=np.int64)
        self.frequency: Floats = np.array([t.frequency for t in self.tasks], dtype=np.float64)
        milli = np.array(
            [t.shape.gpu_milli if t.shape.gpus else 0 for t in self.tasks], dtype=np.int64
        )
        # Few tasks differ in the share; what it decides is computed once for each.
        self.shares, self.share_of = np.unique(milli, return_inverse=True)

    def of(self, cpu: Ints, gpu: Ints, satisfied: npt.NDArray[np.bool_] | None = None) -> Floats:
        """Fragmented thousandths of a GPU of each state.

        :param cpu: free CPU of the states, in thousandths
        :param gpu: states x GPUs: what is free of each, in thousandths
        :param satisfied: states x tasks: whether the GPUs suffice; default: by
            their number
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

    def cluster(self, cluster: Cluster) -> float:
        """Fragmented thousandths of a GPU of all nodes, with the tasks' levels."""
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
