# SPDX-License-Identifier: Apache-2.0
"""What each policy picks among three nodes, worked out by hand."""

from __future__ import annotations

import collections
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulate import policies
from benchmarks.simulate.literature import CountingCluster, satisfied_shapes
from nova_hpc.topology.level import Level
from nova_hpc_tools.simulate import policy as simulated
from nova_hpc_tools.simulate.model import Typical, all_dgx
from tests.unit.simulate.build import HALVES, machine, picks, policy, shape


@pytest.fixture
def three():
    """Node 0 is empty, 1 has five of eight GPUs free, 2 has one of two free."""
    cluster = CountingCluster([machine("a", 8, 96), machine("b", 8, 96), machine("c", 2, 96)])
    cluster.take(1, shape(3, cpus=48), (0, 1, 2))
    cluster.take(2, shape(1, cpus=4), (0,))
    return cluster


@pytest.mark.parametrize(
    ("name", "gpus", "node"),
    [
        ("first-fit", 1, 0),
        # Left afterwards, of 128 CPUs and 8 GPUs: 95, 7; 47, 4; 91, 0.
        ("best-fit", 1, 2),
        # The same, but 94, 6; 46, 3.
        ("best-fit", 2, 1),
        # Free times wanted: 96/128/128 + 8/8/8; 48/128/128 + 5/8/8; 92/128/128 + 1/8/8.
        ("dot-product", 1, 2),
        # Only node 2 has tasks of one GPU; nothing has tasks of two: the empty one.
        ("clustering", 1, 2),
        ("clustering", 3, 1),
        ("clustering", 2, 0),
        # Used nodes first (1 and 2 score 49 alike), then empty ones.
        ("packing", 1, 1),
        ("packing", 6, 0),
        # One GPU goes: on nodes 0 and 1 four GPUs still fit and nothing is lost. The
        # free GPU of node 2 is of no use for four, so taking it fragments less.
        ("fgd", 1, 2),
        ("nova-hpc", 1, 2),
        # Four go: node 1 would be left with one GPU that is of no use for four.
        ("nova-hpc", 4, 0),
        ("nova-hpc-score", 4, 0),
    ],
)
def test_choice(three, name, gpus, node):
    assert picks(name, three, shape(gpus)) == node


def test_fgd_takes_the_gpu_that_fragments_least():
    """0.5 of the GPU with 0.5 left fits exactly; of a free one it would waste the rest."""
    cluster = CountingCluster([machine("a", 2)])
    half = shape(1, gpu_milli=500)
    cluster.take(0, half, (1,))
    workload = (Typical(shape(1, memory_mib=0), 1.0),)
    assert policy("fgd", cluster, workload).gpus(0, half) == (1,)


def test_fgd_keeps_the_cpus_of_free_gpus():
    """By hand: on node 0 the CPUs of eight free GPUs would go; node 1 has no GPU free."""
    cluster = CountingCluster([machine("a", 8, 16), machine("b", 2, 64)])
    cluster.take(1, shape(2, cpus=2), (0, 1))
    assert picks("fgd", cluster, shape(0, cpus=16)) == 1
    assert picks("nova-hpc", cluster, shape(0, cpus=16)) == 1


def test_fgd_with_memory_takes_gpus_of_a_node_without_memory():
    """Nobody else could use them; FGD as published does not see that."""
    sold = (Typical(shape(1, cpus=1, memory_mib=4000), 1.0),)
    cluster = CountingCluster([machine("a", 2), machine("b", 2, memory_mib=1500)])
    wanted = shape(1, memory_mib=1000)
    chosen = {
        name: policy(name, cluster, sold).node(wanted, cluster.fits(wanted))
        for name in ("fgd", "fgd-memory", "fgd-topology")
    }
    assert chosen == {"fgd": 0, "fgd-memory": 1, "fgd-topology": 1}


def test_fgd_with_levels_takes_gpus_that_are_alone():
    """By hand: on node 1 switches are broken already, and no pair loses its place."""
    cluster = CountingCluster(all_dgx([machine("a", 8), machine("b", 8)]))
    cluster.take(1, shape(4), (1, 3, 5, 7))
    sold = (Typical(shape(2, level=Level.SWITCH, memory_mib=0), 1.0),)
    wanted = shape(1)
    fits = cluster.fits(wanted)
    assert policy("fgd-memory", cluster, sold).node(wanted, fits) == 0
    assert policy("fgd-topology", cluster, sold).node(wanted, fits) == 1


@given(st.sets(st.integers(0, 7)), st.sampled_from(list(Level)), st.integers(1, 4))
def test_whether_gpus_suffice_is_what_the_cluster_counts(taken, level, size):
    cluster = CountingCluster(all_dgx([machine("a", 8)]))
    if taken:
        cluster.take(0, shape(len(taken)), tuple(taken))
    wanted = shape(size, level=level)
    free = frozenset(cluster.free(0))
    (found,) = satisfied_shapes(cluster, 0, free, (wanted,))
    assert found == (cluster.room(level, size)[0] >= 1 if wanted.local else len(free) >= size)


def test_shares_go_to_the_fullest_gpu_with_room():
    cluster = CountingCluster([machine("a", 3)])
    cluster.take(0, shape(1, gpu_milli=300), (0,))
    cluster.take(0, shape(1, gpu_milli=700), (2,))
    chosen = policy("best-fit", cluster)
    assert chosen.gpus(0, shape(1, gpu_milli=300)) == (2,)
    assert chosen.gpus(0, shape(1, gpu_milli=500)) == (0,)
    assert chosen.gpus(0, shape(1)) == (1,)


def test_nova_weighers(three):
    """RAM is nearly alike; free CPUs 96, 48, 92 over 96; PCI 0, 3/7, 1."""
    assert picks("nova-spread", three, shape(1)) == 2  # CPU and PCI: 1, 0.5 + 3/7, 92/96 + 1
    assert picks("nova:pci=0", three, shape(1)) == 0
    assert picks("nova-pack", three, shape(1)) == 2  # -1, -0.5 + 3/7, -92/96 + 1
    assert picks("nova:cpu=-1,pci=0", three, shape(1)) == 1


def test_nova_draws_among_equals_and_in_the_subset(three):
    def drawn(name, wanted):
        chosen = policies.choose_policies([name])[name].make(three, random.Random(1), HALVES)
        fits = three.fits(wanted)
        return collections.Counter(chosen.node(wanted, fits) for _ in range(300))

    assert set(drawn("nova-random", shape(1))) == {0, 1, 2}
    assert set(drawn("nova:subset=2", shape(1))) == {0, 2}
    assert set(drawn("nova:ram=0,cpu=0,pci=0,subset=0", shape(2))) == {0, 1}


def test_nova_takes_any_devices():
    cluster = CountingCluster([machine("a", 8)])
    chosen = simulated.Nova(cluster, random.Random(0), HALVES, simulated.Multipliers())
    seen = {tuple(sorted(chosen.gpus(0, shape(2)))) for _ in range(500)}
    assert len(seen) == 28  # every pair of eight


@pytest.mark.parametrize(
    "name", ["novel", "nova:", "nova:ram", "nova:disk=1", "nova:ram=x", "nova:subset=-1",
             "nova:subset=1.5", "nova:ram=inf"]
)  # fmt: skip
def test_unknown_policies_are_refused(name):
    with pytest.raises(ValueError, match=r"polic"):
        policies.choose_policies([name])
