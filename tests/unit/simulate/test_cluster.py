# SPDX-License-Identifier: Apache-2.0
"""The sums that are kept up to date are those of the state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.level import Level
from nova_hpc_simulate.cluster import SimulatedCluster, gpus_together
from nova_hpc_simulate.model import all_dgx, dgx_layout
from tests.unit.simulate.build import machine, shape

SHAPES = [
    shape(1), shape(1, gpu_milli=300), shape(2), shape(4), shape(0, cpus=8),
    shape(2, level=Level.SWITCH), shape(4, level=Level.NUMA), shape(4, level=Level.SWITCH, group=2),
]  # fmt: skip


def possible(cluster, node, wanted):
    """Whether some set of free GPUs satisfies the request; tries them all."""
    if cluster.cpu[node] < wanted.cpu_milli or cluster.memory[node] < wanted.memory_mib:
        return False
    able = [n for n, left in enumerate(cluster.gpu[node]) if left >= wanted.gpu_milli]
    if not wanted.local:
        return len(able) >= wanted.gpus
    layout = cluster.machines[node].layout
    groups = [
        frozenset(group)
        for group in itertools.combinations(able, wanted.group_size)
        if len({layout[n].domain(wanted.level) for n in group}) == 1
    ]
    return any(
        len(frozenset().union(*chosen)) == wanted.gpus
        for chosen in itertools.combinations(groups, wanted.groups)
    )


@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.randoms(use_true_random=False)), max_size=25))
def test_random_histories(steps):
    machines = all_dgx([machine("a", 8, 20), machine("b", 4, 20), machine("c", 1, 9)])
    cluster = SimulatedCluster(machines)
    running = []
    for wanted, rng in steps:
        fits = cluster.fits(wanted)
        assert fits.tolist() == [possible(cluster, node, wanted) for node in range(3)]
        if running and rng.random() < 0.3:
            cluster.give(*running.pop(rng.randrange(len(running))))
        fits = cluster.fits(wanted)
        if fits.any():
            node = int(rng.choice(np.flatnonzero(fits).tolist()))
            order = list(range(8))
            rng.shuffle(order)
            if wanted.exclusive:
                chosen = gpus_together(cluster, node, wanted, order)
            else:
                chosen = (next(n for n in order if cluster.gpu[node][n] >= wanted.gpu_milli),)
            cluster.take(node, wanted, chosen)  # refuses what is not together
            running.append((node, wanted, chosen))
        assert (cluster.idle == cluster.gpu.sum(axis=1)).all()
        assert (cluster.whole == (cluster.gpu == 1000).sum(axis=1)).all()
        assert (cluster.most == cluster.gpu.max(axis=1)).all()
    for one in running:
        cluster.give(*one)
    fresh = SimulatedCluster(machines)
    assert (cluster.gpu == fresh.gpu).all()
    assert (cluster.cpu == fresh.cpu).all()


def test_a_policy_cannot_cheat():
    cluster = SimulatedCluster(all_dgx([machine("a", 8)]))
    with pytest.raises(ValueError, match="not together"):
        cluster.take(0, shape(2, level=Level.SWITCH), (1, 2))
    cluster.take(0, shape(2, level=Level.SWITCH), (2, 3))
    with pytest.raises(ValueError, match="does not fit"):
        cluster.take(0, shape(1), (2,))
    with pytest.raises(ValueError, match="does not fit"):
        cluster.take(0, shape(2), (1, 1))


def test_the_built_in_host():
    places = dgx_layout(8)
    assert [place.socket for place in places] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert len({place.switches for place in places}) == 4
    assert [place.socket for place in dgx_layout(4)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="at most 8"):
        dgx_layout(9)


def test_busy_gpus_stay_busy():
    cluster = SimulatedCluster([machine("a", 4, busy=(1, 3))])
    assert cluster.capacity == 2000
    assert cluster.free(0) == (0, 2)


def test_an_unknown_place_is_alone():
    cluster = SimulatedCluster([machine("a", 4)])
    assert cluster.room(Level.NUMA, 2).tolist() == [0]
    assert cluster.room(Level.HOST, 2).tolist() == [2]
