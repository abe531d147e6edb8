# SPDX-License-Identifier: Apache-2.0
"""Small clouds for the tests."""

from __future__ import annotations

import random

from nova_hpc_simulate.cluster import SimulatedCluster
from nova_hpc_simulate.model import SimulatedMachine, TaskShape, Typical
from nova_hpc_simulate.policies import choose_policies
from nova_hpc_simulate.policy import SimulatedPolicy


def machine(name: str, gpus: int, cpus: int = 64, **more: object) -> SimulatedMachine:
    values = {"kind": "node", "cpu_milli": cpus * 1000, "memory_mib": 100_000, **more}
    return SimulatedMachine(name=name, gpus=gpus, **values)  # type: ignore[arg-type]


def shape(gpus: int, cpus: int = 1, **more: object) -> TaskShape:
    values = {"memory_mib": 1000, **more}
    return TaskShape(cpu_milli=cpus * 1000, gpus=gpus, **values)  # type: ignore[arg-type]


#: Half of the tasks want one GPU, half want four.
HALVES = (Typical(shape(1, memory_mib=0), 0.5), Typical(shape(4, memory_mib=0), 0.5))


def policy(
    name: str, cluster: SimulatedCluster, workload: tuple[Typical, ...] = HALVES
) -> SimulatedPolicy:
    return choose_policies([name])[name](cluster, random.Random(0), workload)


def picks(name: str, cluster: SimulatedCluster, wanted: TaskShape, workload=HALVES) -> int:
    """The node that a policy picks."""
    return policy(name, cluster, workload).node(wanted, cluster.fits(wanted))
