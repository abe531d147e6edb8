# SPDX-License-Identifier: Apache-2.0
"""The profile of what is sold: summed, merged, and the same for everybody."""

from __future__ import annotations

import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement import shape_mix
from nova_hpc.placement.profile import DEFAULT, FlavorShape
from nova_hpc_common.level import Level
from nova_hpc_simulate.model import Typical
from nova_hpc_simulate.ours import learned_profile_of
from tests.unit.simulate.build import shape as workload_shape

SHAPES = st.lists(
    st.builds(
        FlavorShape,
        st.dictionaries(st.sampled_from(["gpu", "vf"]), st.integers(1, 8), min_size=1),
        st.integers(1, 4),
        st.sampled_from(Level),
        st.integers(0, 50),
        st.integers(0, 64),
        st.integers(0, 64).map(lambda pages: pages * 2048),
        st.just(2048),
    ),
    max_size=20,
)


def test_equal_flavors_are_one_shape() -> None:
    assert shape_mix.merge_shapes(
        [FlavorShape({"gpu": 2}), FlavorShape({"gpu": 1}, weight=4), FlavorShape({"gpu": 2})]
    ) == (
        FlavorShape({"gpu": 1}, weight=4),
        FlavorShape({"gpu": 2}, weight=2),
    )


def test_nothing_that_is_sold_is_the_default() -> None:
    assert shape_mix.build_mixed_profile([]) is DEFAULT
    assert shape_mix.build_mixed_profile([FlavorShape({"gpu": 1}, weight=0)]) is DEFAULT


@given(SHAPES, st.integers(1, 12), st.randoms(use_true_random=False))
def test_no_weight_is_lost_and_no_order_matters(
    shapes: list[FlavorShape], most: int, rng: random.Random
) -> None:
    found = shape_mix.merge_shapes(shapes, most)
    assert len(found) <= most
    assert sum(one.weight for one in found) == sum(one.weight for one in shapes)
    assert shape_mix.merge_shapes(rng.sample(shapes, len(shapes)), most) == found
    # Twice is once: schedulers may get the result of one another.
    assert shape_mix.merge_shapes(found, most) == found
    # Amounts and counts are those of flavors that there are.
    bare = {attrs.evolve(one, weight=1) for one in shapes}
    assert {attrs.evolve(one, weight=1) for one in found} <= bare
    if len(bare) <= most:
        kept = {attrs.evolve(one, weight=1) for one in shapes if one.weight}
        assert {attrs.evolve(one, weight=1) for one in found} == kept


@pytest.mark.parametrize(
    ("shapes", "left"),
    [
        # Memory differs less than the number of devices.
        (
            [
                FlavorShape({"gpu": 1}, memory_kib=1000, page_kib=4),
                FlavorShape({"gpu": 1}, memory_kib=1004, page_kib=4),
                FlavorShape({"gpu": 2}, memory_kib=1000, page_kib=4),
            ],
            {(1, Level.HOST, 1004, 2), (2, Level.HOST, 1000, 1)},
        ),
        # The number of devices less than the level; the heavier one stays.
        (
            [
                FlavorShape({"gpu": 4}, level=Level.NUMA, weight=3),
                FlavorShape({"gpu": 8}, level=Level.NUMA),
                FlavorShape({"gpu": 8}, level=Level.SWITCH),
            ],
            {(4, Level.NUMA, 0, 4), (8, Level.SWITCH, 0, 1)},
        ),
    ],
)
def test_what_differs_least_becomes_one(
    shapes: list[FlavorShape], left: set[tuple[int, Level, int, int]]
) -> None:
    found = shape_mix.merge_shapes(shapes, 2)
    assert {(one.counts["gpu"], one.level, one.memory_kib, one.weight) for one in found} == left


def test_a_large_server_that_is_sold_seldom_stays() -> None:
    """Before, the 32 heaviest shapes were taken, and it was none of them."""
    small = [
        FlavorShape({"gpu": 1}, weight=100, cpus=8, memory_kib=n * 2048, page_kib=2048)
        for n in range(1, 41)
    ]
    found = shape_mix.build_mixed_profile(
        [*small, FlavorShape({"gpu": 8}, weight=1, cpus=64)]
    ).shapes
    assert len(found) == shape_mix.MOST
    assert FlavorShape({"gpu": 8}, weight=1, cpus=64) in found


def test_the_simulation_has_the_profile_of_the_scheduler() -> None:
    """The same function, on the shapes that the scheduler makes of such flavors."""
    workload = tuple(
        Typical(workload_shape(gpus, cpus=gpus * more, memory_mib=512 * more), 1 / 60)
        for gpus in (1, 2, 4)
        for more in range(1, 21)
    )
    running = {one.shape: 10 * number for number, one in enumerate(workload)}
    weights = shape_mix.learn_weights(running)
    flavors = [
        FlavorShape(
            {"gpu": one.shape.gpus},
            weight=weights[one.shape],
            cpus=one.shape.cpu_milli,
            memory_kib=one.shape.memory_mib * 1024,
            page_kib=1024,
        )
        for one in workload
    ]
    learned = learned_profile_of(workload, 1, running)
    assert learned == shape_mix.build_mixed_profile(flavors)
    assert len(learned.shapes) == shape_mix.MOST
    equal = [attrs.evolve(each, weight=1) for each in flavors]
    assert learned_profile_of(workload, 1, {}) == shape_mix.build_mixed_profile(equal)
    # On two NUMA nodes a server takes its part from each.
    assert [one.cpus for one in learned_profile_of(workload, 2, running).shapes] == [
        2 * one.cpus for one in learned.shapes
    ]


RUNNING = st.dictionaries(st.text(max_size=3), st.integers(0, 10**6), max_size=12)


@given(RUNNING)
def test_learned_weights_are_few_and_in_the_order_of_what_runs(running: dict[str, int]) -> None:
    found = shape_mix.learn_weights(running)
    assert found.keys() == running.keys()
    # A power of two, from 1 to 1024.
    assert set(found.values()) <= {1 << n for n in range(11)}
    for one, other in zip(running, list(running)[1:], strict=False):
        if running[one] >= running[other]:
            assert found[one] >= found[other]
    if not any(running.values()):
        assert set(found.values()) <= {1}


@given(RUNNING)
def test_learned_weights_are_shares_within_a_root_of_two(running: dict[str, int]) -> None:
    total = sum(running.values()) + shape_mix.PRIOR * len(running)
    if not any(running.values()):
        return
    for name, weight in shape_mix.learn_weights(running).items():
        share = 1024 * (running[name] + shape_mix.PRIOR) / total
        assert max(share, 0.5) / 2**0.5001 <= weight <= max(share, 1) * 2**0.5001


def test_a_few_servers_more_change_no_weight() -> None:
    """Otherwise each scheduler would forget what it knows of all hosts whenever it counts."""
    before = shape_mix.learn_weights({"gpu1": 600, "gpu2": 100, "gpu8": 40})
    assert before == shape_mix.learn_weights({"gpu1": 640, "gpu2": 108, "gpu8": 38})
    assert before != shape_mix.learn_weights({"gpu1": 600, "gpu2": 300, "gpu8": 40})
