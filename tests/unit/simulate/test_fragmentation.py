# SPDX-License-Identifier: Apache-2.0
"""FGD's measure, by the paper's definition and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nova_hpc_common.level import Level
from nova_hpc_simulate.cluster import Measure, SimulatedCluster
from nova_hpc_simulate.model import Typical, all_dgx
from tests.unit.simulate.build import machine, shape


def measure(wanted, cpus, gpus):
    return Measure([Typical(wanted, 1.0)]).of(np.array([cpus * 1000]), np.array([gpus]))[0]


@pytest.mark.parametrize(
    ("wanted", "cpus", "gpus", "lost"),
    [
        # It fits: only what is free of GPUs that are too full is lost to it.
        (shape(1, gpu_milli=500), 8, [1000, 600, 300, 0], 300),
        (shape(1, gpu_milli=200), 8, [1000, 600, 300, 0], 0),
        (shape(1), 8, [1000, 600, 300, 0], 900),
        (shape(2), 8, [1000, 1000, 300, 0], 300),
        # It does not fit: everything is lost.
        (shape(2), 8, [1000, 600, 300, 0], 1900),
        (shape(1, cpus=9), 8, [1000, 600, 300, 0], 1900),
        # A task without GPUs can use no GPU.
        (shape(0), 8, [1000, 600, 300, 0], 1900),
    ],
)
def test_one_task(wanted, cpus, gpus, lost):
    assert measure(wanted, cpus, gpus) == lost


def test_the_mean_over_the_tasks():
    tasks = [Typical(shape(1, gpu_milli=500), 0.75), Typical(shape(2), 0.25)]
    lost = Measure(tasks).of(np.array([8000]), np.array([[1000, 600, 300, 0]]))
    assert lost[0] == 0.75 * 300 + 0.25 * 1900


def test_levels_count_for_a_cluster():
    """Two free GPUs on two switches are lost to a pair that needs one switch."""
    cluster = SimulatedCluster(all_dgx([machine("a", 8)]))
    cluster.take(0, shape(6), (1, 2, 4, 5, 6, 7))
    pair = shape(2, level=Level.SWITCH)
    assert Measure([Typical(pair, 1.0)]).cluster(cluster) == 2000
    assert Measure([Typical(shape(2), 1.0)]).cluster(cluster) == 0
