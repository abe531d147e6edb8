# SPDX-License-Identifier: Apache-2.0
"""Which of several hosts is best."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement import between_hosts
from nova_hpc.placement.profile import Profile, Shape
from nova_hpc.topology.level import Level

COARSE = between_hosts.grain(Profile((Shape({"gpu": 1}, weight=75), Shape({"gpu": 2}, weight=25))))


def score(level, damage, misses=0, distance=0, spread=0):
    return (int(level), misses, distance, spread, damage, 0, 0, 0, 0)


def better(one, other, asked):
    return between_hosts.rank(one, asked, COARSE) < between_hosts.rank(other, asked, COARSE)


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
