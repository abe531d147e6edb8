# SPDX-License-Identifier: Apache-2.0
"""Our policy asks the scheduler's functions, and keeps their answers rightly."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc.placement import between_hosts, model, shape_mix
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.profile import FlavorShape as Sold
from nova_hpc.placement.profile import Profile
from nova_hpc_common.level import AffinityPolicy, Level, Location
from nova_hpc_simulate.cluster import SimulatedCluster
from nova_hpc_simulate.model import Typical, all_dgx
from nova_hpc_simulate.ours import Ours, learned_profile_of
from nova_hpc_simulate.policy import Multipliers, Nova
from tests.unit.simulate.build import machine, shape

WORKLOAD = (
    Typical(shape(1, cpus=2, memory_mib=0), 0.5),
    Typical(shape(2, cpus=8, memory_mib=0, level=Level.SWITCH), 0.2),
    Typical(shape(4, cpus=16, memory_mib=0), 0.2),
    Typical(shape(8, cpus=40, memory_mib=0), 0.1),
)


def test_single_gpus_come_from_broken_switches():
    cluster = SimulatedCluster(all_dgx([machine("a", 8)]))
    cluster.take(0, shape(1), (5,))
    policy = Ours(cluster, random.Random(0), WORKLOAD)
    assert policy.gpus(0, shape(1)) == (4,)
    assert policy.gpus(0, shape(2, level=Level.SWITCH)) in {(0, 1), (2, 3), (6, 7)}


def test_the_damage_is_that_of_choose():
    """Without a layout: one NUMA node with all GPUs and CPUs, as one may write it down."""
    cluster = SimulatedCluster([machine("a", 8, 40), machine("b", 8, 32), machine("c", 2, 64)])
    cluster.take(1, shape(3, cpus=4), (0, 1, 2))
    policy = Ours(cluster, random.Random(0), WORKLOAD)
    wanted = shape(2, cpus=8)
    profile = Profile(
        tuple(
            Sold(
                {"gpu": one.shape.gpus},
                level=one.shape.level,
                cpus=one.shape.cpu_milli,
            )
            for one in WORKLOAD
        )
    )
    damage, ranks = [], []
    for gpus, cpus in ((8, 40), (5, 28), (2, 64)):
        pools = tuple(
            model.DevicePool(str(n), str(n), Location(numa=0), 1, frozenset({"g"}), role="gpu")
            for n in range(gpus)
        )
        host = model.FreeHost("h", pools, (model.HostNode(0, 0, cpus * 1000),))
        request = model.Request(
            (model.Want("g", "g", 2),),
            (model.DeviceGroup({"g": 2}),),
            Level.HOST,
            AffinityPolicy.REQUIRED,
            (model.WantedCell(0, 8000),),
        )
        score = choose_device_sets(request, host, 1, profile).sets[0].score
        damage.append(score[4])
        ranks.append(
            between_hosts.rank_device_set(score, Level.HOST, between_hosts.damage_grain_of(profile))
        )
    scores = policy.scores.of(wanted, cluster.fits(wanted))
    assert np.argsort(-scores).tolist() == sorted(range(3), key=ranks.__getitem__)
    assert len(set(damage)) == len(set(scores.tolist())) == 3
    assert policy.node(wanted, cluster.fits(wanted)) == damage.index(min(damage))


def test_gpus_of_a_node_without_memory_go_first():
    """No other server could use them."""
    sold = (Typical(shape(1, cpus=1, memory_mib=4000), 1.0),)
    cluster = SimulatedCluster([machine("a", 2), machine("b", 2, memory_mib=1500)])
    wanted = shape(1, memory_mib=1000)
    assert Ours(cluster, random.Random(0), sold).node(wanted, cluster.fits(wanted)) == 1


# Each step asks the solver anew for every host.
@settings(max_examples=max(10, settings().max_examples // 10))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([one.shape for one in WORKLOAD]),
            st.integers(0, 1000),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_kept_answers_are_those_of_a_fresh_question(steps):
    cluster = SimulatedCluster(
        all_dgx([machine("a", 8, 48), machine("b", 8, 48), machine("c", 2, 12)])
    )
    kept = Ours(cluster, random.Random(0), WORKLOAD)
    for wanted, number in steps:
        nodes = np.flatnonzero(cluster.fits(wanted))
        if not nodes.size:
            continue
        fresh = Ours(cluster, random.Random(0), WORKLOAD)
        mine = kept.scores.of(wanted, cluster.fits(wanted))[nodes]
        assert mine.tolist() == fresh._compute(wanted, nodes).tolist()
        node = int(nodes[number % len(nodes)])
        assert kept.gpus(node, wanted) == fresh.gpus(node, wanted)
        cluster.take(node, wanted, kept.gpus(node, wanted))


def test_whole_hosts_stay_whole():
    cluster = SimulatedCluster(all_dgx([machine("a", 8, 96), machine("b", 8, 96)]))
    policy = Ours(cluster, random.Random(0), WORKLOAD)
    for _ in range(8):
        wanted = shape(1, cpus=2)
        node = policy.node(wanted, cluster.fits(wanted))
        cluster.take(node, wanted, policy.gpus(node, wanted))
    assert sorted(cluster.whole.tolist()) == [0, 8]


def test_hosts_are_ranked_by_damage_and_devices_by_distance():
    """A pair that may be anywhere comes from a broken host, though there it is apart."""
    cluster = SimulatedCluster(all_dgx([machine("whole", 8), machine("broken", 8)]))
    cluster.take(1, shape(6), (1, 3, 4, 5, 6, 7))
    wanted = shape(2)
    fits = cluster.fits(wanted)
    assert Ours(cluster, random.Random(0), WORKLOAD).node(wanted, fits) == 1
    # Where a level is asked for, hosts that reach it come first.
    close = shape(2, level=Level.SWITCH)
    assert cluster.fits(close).tolist() == [True, False]


def test_of_hosts_that_serve_alike_the_one_with_the_fewest_cpus_is_taken():
    """Nova's weighers would take the emptiest, and use CPUs up on all hosts at once."""
    cluster = SimulatedCluster([machine("a", 8, 96), machine("b", 8, 64), machine("c", 8, 96)])
    wanted = shape(1, cpus=2)
    fits = cluster.fits(wanted)
    sold = (Typical(shape(1, cpus=2, memory_mib=0), 1.0),)
    assert Ours(cluster, random.Random(0), sold).node(wanted, fits) == 1


def test_requests_without_gpus_are_novas():
    """The scheduler has no say in flavors without hpc: keys: CPUs, memory and few devices."""
    cluster = SimulatedCluster([machine("a", 8, 96), machine("b", 2, 48), machine("c", 8, 95)])
    wanted = shape(0, cpus=4)
    fits = cluster.fits(wanted)
    nova = Nova(cluster, random.Random(0), WORKLOAD, Multipliers())
    assert Ours(cluster, random.Random(0), WORKLOAD).node(wanted, fits) == nova.node(wanted, fits)


def test_weights_are_learned_from_what_runs_and_forgotten_with_it():
    cluster = SimulatedCluster(all_dgx([machine("a", 8, 400) for _ in range(60)]))
    policy = Ours(cluster, random.Random(0), WORKLOAD)
    assert policy.profiles[2] == learned_profile_of(WORKLOAD, 2, {})
    pair = WORKLOAD[1].shape
    taken = []
    for _ in range(101):
        node = policy.node(pair, cluster.fits(pair))
        taken.append((node, policy.gpus(node, pair)))
        cluster.take(node, pair, taken[-1][1])
    expected = shape_mix.learn_weights({one.shape: 100 * (one.shape == pair) for one in WORKLOAD})
    assert {each.weight for each in policy.profiles[2].shapes} == set(expected.values())
    assert max(policy.profiles[2].shapes, key=lambda each: each.weight).counts == {"gpu": 2}
    for node, gpus in taken:
        cluster.give(node, pair, gpus)
    policy.placed = 200
    policy.node(pair, cluster.fits(pair))
    assert policy.profiles[2] == learned_profile_of(WORKLOAD, 2, {})
