# SPDX-License-Identifier: Apache-2.0
"""Examples: what a choice leaves for others: NVLink sets, profiles, damage."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import Nvlink, WantedCell
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc_common.level import AffinityPolicy, Level
from tests.unit.placement.examples import DGX, QUADS, adapters, ask, gpus, host


@pytest.mark.parametrize("policy", AffinityPolicy)
def test_nvlink_comes_after_the_level_and_before_the_distance(policy: AffinityPolicy) -> None:
    """The pair below one switch is no set; the sets cross the sockets."""
    pools = gpus(0, 0, 1, 1, 2, 2, 3, 3)
    linked = attrs.evolve(host(*pools), nvlink=QUADS)
    request = ask(Level.HOST, policy, gpu=4)
    (plain,) = choose_device_sets(request, linked).sets
    assert plain.level is Level.NUMA
    (found,) = choose_device_sets(attrs.evolve(request, nvlink=Nvlink.REQUIRED), linked).sets
    assert {pick.pool for pick in found.picks} in QUADS
    assert found.level is Level.HOST
    assert found.reason.endswith("; a whole NVLink set")
    (found,) = choose_device_sets(attrs.evolve(request, nvlink=Nvlink.PREFERRED), linked).sets
    assert (found.level, found.score[1]) == (Level.NUMA, 1)
    assert found.reason.endswith("; 1 group not a whole NVLink set")


def test_devices_beside_an_nvlink_set() -> None:
    """Two groups of a linked pair and one function each, on both sockets."""
    pairs = (frozenset({"gpu00", "gpu02"}), frozenset({"gpu05", "gpu06"}))
    linked = attrs.evolve(host(*DGX), nvlink=pairs)
    request = attrs.evolve(ask(Level.NUMA, groups=2, cells=2, gpu=2, vf=1), nvlink=Nvlink.REQUIRED)
    (found,) = choose_device_sets(request, linked).sets
    for number, pair in enumerate(pairs):
        picks = [pick for pick in found.picks if pick.group == number]
        assert {pick.pool for pick in picks if pick.want == "gpu"} == pair
        assert {pick.cell for pick in picks} == {number}
    assert found.level is Level.NUMA


def test_the_profile_decides_what_stays_whole() -> None:
    """With pairs for sale the pair stays; with single GPUs only, names decide."""
    pools = tuple(attrs.evolve(pool, role="gpu") for pool in gpus(0, 0, 1))
    pairs = Profile((FlavorShape({"gpu": 2}, level=Level.SWITCH),))
    singles = Profile((FlavorShape({"gpu": 1}, level=Level.SWITCH),))
    (found,) = choose_device_sets(ask(gpu=1), host(*pools), profile=pairs).sets
    assert (found.picks[0].pool, found.score[4]) == ("gpu02", 0)
    (found,) = choose_device_sets(ask(gpu=1), host(*pools), profile=singles).sets
    assert found.score[4] == 1


def test_the_documented_example() -> None:
    """Three GPUs below one switch and four below another; one is wanted."""
    pools = tuple(attrs.evolve(pool, role="gpu") for pool in gpus(0, 0, 0, 1, 1, 1, 1))
    sold = Profile(
        (FlavorShape({"gpu": 2}, level=Level.SWITCH), FlavorShape({"gpu": 4}, level=Level.NUMA))
    )
    (found,) = choose_device_sets(ask(gpu=1), host(*pools), profile=sold).sets
    assert found.picks[0].pool == "gpu00"
    assert found.score[4:6] == (2, 0)
    (found,) = choose_device_sets(ask(gpu=1), host(*pools[2:5]), profile=sold).sets
    # Neither pairs nor fours could use the GPU that is alone.
    assert (found.picks[0].pool, found.score[4]) == ("gpu02", 0)


def test_a_host_that_is_too_small_for_a_shape_is_worth_nothing_to_it() -> None:
    """With four CPUs gone the host has none left for the pair; with two gone it has."""
    pools = tuple(attrs.evolve(pool, role="gpu") for pool in gpus(0, 0, 1))
    sold = Profile((FlavorShape({"gpu": 2}, level=Level.SWITCH, cpus=8),))
    for cpus, expected in (((6, 6), 0), ((6, 5), 2)):
        request = attrs.evolve(ask(gpu=1), cells=(WantedCell(0, 4),))
        (found,) = choose_device_sets(request, host(*pools, cpus=cpus), profile=sold).sets
        assert (found.picks[0].pool, found.score[4]) == ("gpu02", expected)


def test_devices_that_nobody_asked_for_count_as_damage() -> None:
    """A function next to a GPU is worth keeping where both are sold together."""
    pools = tuple(attrs.evolve(pool, role="gpu", serves=frozenset()) for pool in gpus(0))
    ports = tuple(attrs.evolve(pool, role="vf") for pool in adapters(0, 1, functions=1))
    both = Profile((FlavorShape({"gpu": 1, "vf": 1}, level=Level.SWITCH),))
    (found,) = choose_device_sets(ask(vf=1), host(*pools, *ports), profile=both).sets
    assert (found.picks[0].pool, found.score[4]) == ("pf01", 0)


def test_free_cpus_limit_what_a_node_is_worth() -> None:
    """Node 0 has CPUs for none of the shapes: its GPUs are the ones to give away."""
    pools = tuple(attrs.evolve(pool, role="gpu") for pool in gpus(0, 2))
    shape = Profile((FlavorShape({"gpu": 1}, level=Level.NUMA, cpus=8),))
    for cpus, expected in (((4, 32), "gpu00"), ((32, 4), "gpu01")):
        (found,) = choose_device_sets(ask(gpu=1), host(*pools, cpus=cpus), profile=shape).sets
        assert found.picks[0].pool == expected


@pytest.mark.parametrize(
    "shape",
    [
        FlavorShape({}),
        FlavorShape({"gpu": 0}),
        FlavorShape({"gpu": 1}, groups=0),
        FlavorShape({"gpu": 1}, weight=-1),
    ],
)
def test_a_profile_that_makes_no_sense(shape: FlavorShape) -> None:
    with pytest.raises(ValueError, match="shape"):
        choose_device_sets(ask(gpu=1), host(*DGX), profile=Profile((shape,)))
