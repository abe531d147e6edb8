# SPDX-License-Identifier: Apache-2.0
"""Which of several hosts is best."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement import between_hosts
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc_common.level import Level

COARSE = between_hosts.damage_grain_of(
    Profile((FlavorShape({"gpu": 1}, weight=75), FlavorShape({"gpu": 2}, weight=25)))
)


def score(level, damage, misses=0, distance=0, spread=0):
    return (int(level), misses, distance, spread, damage, 0, 0, 0, 0)


def better(one, other, asked):
    return between_hosts.rank_device_set(one, asked, COARSE) < between_hosts.rank_device_set(
        other, asked, COARSE
    )


def test_damage_decides_where_the_level_is_reached():
    assert COARSE == 4
    assert better(score(Level.NUMA, 0), score(Level.SWITCH, 5), Level.NUMA)
    # What makes no difference to others leaves it to the closer devices.
    assert better(score(Level.SWITCH, 4), score(Level.NUMA, 1), Level.NUMA)


def test_a_level_that_is_not_reached_comes_first():
    assert better(score(Level.SWITCH, 500), score(Level.NUMA, 0), Level.SWITCH)
    assert better(score(Level.NUMA, 500), score(Level.HOST, 0), Level.SWITCH)


def test_nvlink_sets_come_before_damage():
    assert better(score(Level.NUMA, 500), score(Level.NUMA, 0, misses=1), Level.NUMA)


SCORES = st.builds(
    score,
    st.sampled_from(list(Level)),
    st.integers(0, 40),
    st.integers(0, 2),
    st.integers(0, 4),
    st.integers(0, 4),
)


@given(SCORES, st.sampled_from(list(Level)), st.integers(1, 40))
def test_less_damage_on_the_same_devices_is_never_worse(found, asked, less):
    lower = (*found[:4], found[4] - less, *found[5:])
    assert not better(found, lower, asked)


@given(
    SCORES,
    SCORES,
    st.sampled_from(list(Level)),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_free_cpus_decide_last(one, other, asked, free, more):
    here = between_hosts.rank_device_set(one, asked, COARSE, free=free)
    there = between_hosts.rank_device_set(other, asked, COARSE, free=more)
    if here[:-1] == there[:-1]:
        assert (here < there) == (free < more)
    else:
        assert (here < there) == (here[:-1] < there[:-1])


RANKS = st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 3)))
HOSTS = st.lists(
    st.tuples(
        RANKS,
        st.sampled_from([-20000.0, -1.0, 0.0, 2.5, 10000.0]),
        # Nova's multipliers of weights between 0 and 1, added up.
        st.sampled_from([-1.0, 0.0, 1 / 3, 2 / 3, 1.0, 100.0]),
    ),
    min_size=1,
    max_size=7,
)


@given(HOSTS)
def test_wishes_decide_before_packing(hosts):
    found = between_hosts.packing_scores_of(*zip(*hosts, strict=True))
    scored = list(zip(found, hosts, strict=True))
    for one, (_, mine, wish) in scored:
        for other, (_, theirs, another) in scored:
            if wish > another and (mine or theirs):
                assert one > other


@given(HOSTS)
def test_without_wishes_it_is_what_nova_would_add(hosts):
    """The same as weights that are brought to 0 to 1 and multiplied."""
    ranks, multipliers, _ = zip(*hosts, strict=True)
    found = between_hosts.packing_scores_of(ranks, multipliers, [1.0] * len(hosts))
    known = sorted({rank for rank in ranks if rank is not None})
    tiers = sorted({rank[:-1] for rank in known})

    def place(rank):
        if rank is None:
            return len(tiers)
        alike = [each for each in known if each[:-1] == rank[:-1]]
        return tiers.index(rank[:-1]) + alike.index(rank) / len(alike) / 2

    raw = [-place(rank) for rank in ranks]
    low, high = min(raw), max(raw)
    for each, weight, multiplier in zip(found, raw, multipliers, strict=True):
        part = (weight - low) / (high - low) if high > low else 0.0
        assert abs(each - part * multiplier) < 1e-6


@given(HOSTS)
def test_what_differs_in_the_last_part_alone_pushes_nothing_closer_together(hosts):
    """At least half of what it would be if nobody had a last part."""
    ranks = [rank for rank, _, _ in hosts]
    equal = [1.0] * len(ranks)
    found = between_hosts.packing_scores_of(ranks, [100.0] * len(ranks), equal)
    without = between_hosts.packing_scores_of(
        [r and (*r[:-1], 0) for r in ranks], [100.0] * len(ranks), equal
    )
    for (one, before), (other, after) in itertools.combinations(
        zip(found, without, strict=True), 2
    ):
        if before != after:
            assert (one - other) / (before - after) >= 0.5 - 1e-9


def test_wishes_that_differ_by_rounding_alone_are_equal():
    assert between_hosts.packing_scores_of([(1,), (0,)], [10.0, 10.0], [0.1 + 0.2, 0.3]) == [
        0.0,
        10.0,
    ]


RANKED = st.lists(
    st.tuples(
        st.one_of(
            st.none(),
            st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 4), st.integers(0, 2)),
        ),
        st.sampled_from([0.0, 1.0]),
    ),
    min_size=1,
    max_size=9,
)


@given(RANKED, st.integers(1, 6), st.text("ab", max_size=3))
def test_the_best_hosts_are_mixed_and_no_others(hosts, among, seed):
    """Compared with the words of the docstring, host by host."""
    ranks, wishes = zip(*hosts, strict=True)
    names = [f"host{index}" for index in range(len(hosts))]
    found = between_hosts.mix_best_ranks(ranks, wishes, names, among, seed)
    top = max(wishes)
    mine = [i for i, rank in enumerate(ranks) if rank is not None and wishes[i] == top]
    changed = [i for i in range(len(hosts)) if found[i] != ranks[i]]
    if among == 1 or len(mine) < 2:
        assert not changed
        return
    best = min(ranks[i] for i in mine)
    alike = [i for i in mine if ranks[i][:2] == best[:2]]
    assert len(changed) == min(among, len(alike))
    assert set(changed) <= set(alike)
    for one in changed:
        # Nobody who stays behind was better, and nobody who stays behind is now.
        assert all(ranks[one] <= ranks[i] for i in alike if i not in changed)
        assert all(found[one] < found[i] for i in mine if i not in changed)
    assert len({found[i] for i in changed}) == len(changed)


def test_servers_mix_differently_and_the_order_of_hosts_does_not_matter():
    names = [f"host{index}" for index in range(8)]
    ranks, wishes = [(0, 0, 5)] * 8, [1.0] * 8

    def first(seed, order):
        some = between_hosts.mix_best_ranks(ranks, wishes, [names[i] for i in order], 4, seed)
        return names[order[min(range(8), key=lambda number: some[number])]]

    found = [first(str(seed), range(8)) for seed in range(64)]
    assert set(found) == set(names)
    assert found == [first(str(seed), range(7, -1, -1)) for seed in range(64)]
