# SPDX-License-Identifier: Apache-2.0
"""What each policy picks among three nodes, worked out by hand."""

from __future__ import annotations

import collections
import random

import pytest

from nova_hpc_simulate import policies
from nova_hpc_simulate import policy as simulated
from nova_hpc_simulate.cluster import SimulatedCluster
from tests.unit.simulate.build import HALVES, machine, picks, shape


@pytest.fixture
def three():
    """Node 0 is empty, 1 has five of eight GPUs free, 2 has one of two free."""
    cluster = SimulatedCluster([machine("a", 8, 96), machine("b", 8, 96), machine("c", 2, 96)])
    cluster.take(1, shape(3, cpus=48), (0, 1, 2))
    cluster.take(2, shape(1, cpus=4), (0,))
    return cluster


@pytest.mark.parametrize(
    ("name", "gpus", "node"),
    [
        # One GPU goes: on nodes 0 and 1 four GPUs still fit. The free GPU of node 2 is of no use
        # for four.
        ("nova-hpc", 1, 2),
        # Four go: node 1 would be left with one GPU that is of no use for four.
        ("nova-hpc", 4, 0),
    ],
)
def test_choice(three, name, gpus, node):
    assert picks(name, three, shape(gpus)) == node


def test_nova_weighers(three):
    """RAM is nearly alike; free CPUs 96, 48, 92 over 96; PCI 0, 3/7, 1."""
    assert picks("nova-spread", three, shape(1)) == 2  # CPU and PCI: 1, 0.5 + 3/7, 92/96 + 1
    assert picks("nova:pci=0", three, shape(1)) == 0
    assert picks("nova-pack", three, shape(1)) == 2  # -1, -0.5 + 3/7, -92/96 + 1
    assert picks("nova:cpu=-1,pci=0", three, shape(1)) == 1


def test_nova_draws_among_equals_and_in_the_subset(three):
    def drawn(name, wanted):
        chosen = policies.choose_policies([name])[name](three, random.Random(1), HALVES)
        fits = three.fits(wanted)
        return collections.Counter(chosen.node(wanted, fits) for _ in range(300))

    assert set(drawn("nova:ram=0,cpu=0,pci=0", shape(1))) == {0, 1, 2}
    assert set(drawn("nova:subset=2", shape(1))) == {0, 2}
    assert set(drawn("nova:ram=0,cpu=0,pci=0,subset=0", shape(2))) == {0, 1}


def test_nova_takes_any_devices():
    cluster = SimulatedCluster([machine("a", 8)])
    chosen = simulated.Nova(cluster, random.Random(0), HALVES, simulated.Multipliers())
    seen = {tuple(sorted(chosen.gpus(0, shape(2)))) for _ in range(500)}
    assert len(seen) == 28  # every pair of eight


@pytest.mark.parametrize(
    "name", ["novel", "fgd", "nova:", "nova:ram", "nova:disk=1", "nova:ram=x", "nova:subset=-1",
             "nova:subset=1.5", "nova:ram=inf"]
)  # fmt: skip
def test_unknown_policies_are_refused(name):
    with pytest.raises(ValueError, match=r"polic"):
        policies.choose_policies([name])
