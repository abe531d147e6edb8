# SPDX-License-Identifier: Apache-2.0
"""Small clouds for the tests."""

from __future__ import annotations

import random

from nova_hpc_tools.simulate import policies
from nova_hpc_tools.simulate.cluster import Cluster
from nova_hpc_tools.simulate.model import Machine, Shape, Typical
from nova_hpc_tools.simulate.policy import Policy


def machine(name: str, gpus: int, cpus: int = 64, **more: object) -> Machine:
    values = {"kind": "node", "cpu_milli": cpus * 1000, "memory_mib": 100_000, **more}
    return Machine(name=name, gpus=gpus, **values)  # type: ignore[arg-type]


def shape(gpus: int, cpus: int = 1, **more: object) -> Shape:
    values = {"memory_mib": 1000, **more}
    return Shape(cpu_milli=cpus * 1000, gpus=gpus, **values)  # type: ignore[arg-type]


#: Half of the tasks want one GPU, half want four.
HALVES = (Typical(shape(1, memory_mib=0), 0.5), Typical(shape(4, memory_mib=0), 0.5))


def policy(name: str, cluster: Cluster, workload: tuple[Typical, ...] = HALVES) -> Policy:
    return policies.build(name, cluster, random.Random(0), workload)


def picks(name: str, cluster: Cluster, wanted: Shape, workload=HALVES) -> int:
    """The node that a policy picks."""
    return policy(name, cluster, workload).node(wanted, cluster.fits(wanted))
