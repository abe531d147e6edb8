# SPDX-License-Identifier: Apache-2.0
"""Examples: what is chosen on hosts that people know."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import DeviceGroup, DevicePool, HostNode, Request, Want
from nova_hpc.placement.spread import rotate_devices
from nova_hpc_common.level import AffinityPolicy, Distance, Level
from tests.unit.placement.examples import DGX, adapters, ask, gpus, host, unit


@pytest.mark.parametrize(
    ("pools", "request_", "expected"),
    [
        # One GPU goes where a switch is broken already.
        (gpus(0, 0, 1, 2, 2), ask(gpu=1), {"gpu02"}),
        # Two go to the pair, and leave the three alone.
        (gpus(0, 0, 0, 1, 1), ask(gpu=2), {"gpu03", "gpu04"}),
        # One of three costs no pair, one of two would.
        (gpus(0, 0, 1, 1, 1), ask(gpu=1), {"gpu02"}),
        # A NUMA node that is broken already, although all switches are alike.
        (gpus(0, 0, 1, 1, 2, 2), ask(gpu=2), {"gpu04", "gpu05"}),
        # The virtual function is the GPU's neighbour.
        ((*gpus(3), *adapters(0, 1, 2, 3)), ask(gpu=1, vf=1), {"gpu00", "pf03"}),
        # Two adapters equally near: one function of each.
        ((*gpus(0, 0), *adapters(0, 0)), ask(gpu=2, vf=2), {"gpu00", "gpu01", "pf00", "pf01"}),
        (adapters(0, 0, 0), ask(vf=3), {"pf00", "pf01", "pf02"}),
        # NUMA level: two whole switches rather than parts of three.
        (gpus(0, 0, 0, 1, 1, 1), ask(Level.NUMA, gpu=3), {"gpu00", "gpu01", "gpu02"}),
    ],
)
def test_the_least_damage(
    pools: tuple[DevicePool, ...], request_: Request, expected: set[str]
) -> None:
    (found,) = choose_device_sets(request_, host(*pools)).sets
    assert {pick.pool for pick in found.picks} == expected
    assert found.level is Level.SWITCH


def test_the_adapter_shared_least_is_used() -> None:
    busy = attrs.evolve(adapters(0)[0], free=3)
    idle = attrs.evolve(adapters(0)[0], id="idle", name="zz")
    (found,) = choose_device_sets(ask(vf=1), host(busy, idle)).sets
    assert found.picks[0].pool == "idle"


def test_four_groups_of_one_gpu_and_one_function() -> None:
    request = ask(groups=4, cells=2, gpu=1, vf=1)
    (found,) = choose_device_sets(request, host(*DGX)).sets
    assert found.cells == {0: 0, 1: 1}
    assert (found.level, found.distance) == (Level.SWITCH, Distance.PIX)
    on_cell = {
        cell: sorted(pick.pool for pick in found.picks if pick.cell == cell) for cell in (0, 1)
    }
    assert on_cell == {
        0: ["gpu00", "gpu01", "pf00", "pf00"],
        1: ["gpu04", "gpu05", "pf02", "pf02"],
    }
    assert found.reason == "4 groups of 1 gpu and 1 vf under one switch (PIX)"


def test_groups_come_from_the_node_whose_cpus_are_free() -> None:
    request = ask(cells=1, cpus=8, gpu=2)
    (found,) = choose_device_sets(request, host(*DGX, cpus=(4, 32))).sets
    assert found.cells == {0: 1}
    assert {pick.pool for pick in found.picks} == {"gpu04", "gpu05"}


def test_unknown_cpus_and_pages_reject_nothing() -> None:
    request = ask(cells=2, cpus=1000, groups=2, gpu=1)
    unknown = attrs.evolve(host(*DGX), nodes=(HostNode(0), HostNode(1)))
    assert choose_device_sets(request, unknown).sets
    assert choose_device_sets(request, attrs.evolve(host(*DGX), nodes=())).sets
    assert not choose_device_sets(request, host(*DGX)).sets


def test_preferred_takes_the_next_best_and_says_so() -> None:
    request = ask(Level.SWITCH, AffinityPolicy.PREFERRED, gpu=4)
    (found,) = choose_device_sets(request, host(*DGX)).sets
    assert found.level is Level.NUMA
    assert found.distance is Distance.NODE
    assert found.reason == (
        "4 gpu on one NUMA node (NODE); not under one switch: "
        "8 gpu free, but at most 2 under one switch (needs 4)"
    )
    (found,) = choose_device_sets(
        attrs.evolve(request, policy=AffinityPolicy.PREFERRED), host(*gpus(0, 1, 2, 3))
    ).sets
    assert found.level is Level.HOST


def test_preferred_keeps_as_many_groups_as_tight_as_possible() -> None:
    request = ask(Level.SWITCH, AffinityPolicy.PREFERRED, groups=3, gpu=2)
    pools = gpus(0, 0, 0, 1, 1, 1)
    (found,) = choose_device_sets(request, host(*pools)).sets
    place = {pool.id: pool.location.switches for pool in pools}
    groups = [{place[p.pool] for p in found.picks if p.group == n} for n in range(3)]
    assert sorted(len(switches) for switches in groups) == [1, 1, 2]
    assert found.level is Level.NUMA


def test_a_device_off_the_cell_is_not_near_it() -> None:
    """The pair is on one switch, but not next to the guest's CPUs."""
    request = ask(Level.SWITCH, cells=1, gpu=2)
    far = host(*gpus(0, 0), cpus=(0, 32))
    assert not choose_device_sets(request, far).sets
    preferred = attrs.evolve(request, policy=AffinityPolicy.PREFERRED)
    (found,) = choose_device_sets(preferred, far).sets
    assert found.level is Level.HOST
    assert "not next to CPUs and memory for every cell" in found.reason
    one_socket = attrs.evolve(
        far,
        pools=tuple(
            attrs.evolve(p, location=attrs.evolve(p.location, socket=0)) for p in far.pools
        ),
        nodes=tuple(attrs.evolve(node, socket=0) for node in far.nodes),
    )
    (found,) = choose_device_sets(preferred, one_socket).sets
    assert found.level is Level.SOCKET
    assert not choose_device_sets(attrs.evolve(preferred, on_cells=True), one_socket).sets


def test_alternatives_lie_elsewhere() -> None:
    sets = choose_device_sets(ask(cells=1, gpu=2), host(*DGX), limit=8).sets
    assert [sorted(pick.pool for pick in one.picks) for one in sets] == [
        ["gpu00", "gpu01"],
        ["gpu04", "gpu05"],
        # Equals, on other devices of the same nodes.
        ["gpu02", "gpu03"],
        ["gpu06", "gpu07"],
    ]
    assert [one.cells for one in sets] == [{0: 0}, {0: 1}, {0: 0}, {0: 1}]
    assert len({one.score for one in sets}) == 1


def test_alternatives_of_another_class_come_before_equals() -> None:
    """One GPU: from the broken switch, then a whole one, then the other whole one."""
    sets = choose_device_sets(ask(gpu=1), host(*gpus(0, 0, 1, 1, 2)), limit=8).sets
    assert [pick.pool for one in sets for pick in one.picks] == ["gpu04", "gpu00", "gpu02"]
    assert sets[0].score < sets[1].score == sets[2].score


def test_a_packed_host_scores_better_than_a_whole_one() -> None:
    request = ask(gpu=1)
    whole = choose_device_sets(request, host(*gpus(0, 0, 1, 1, 2, 2, 3, 3))).sets[0]
    broken = choose_device_sets(request, host(*gpus(0, 1, 1))).sets[0]
    last = choose_device_sets(request, host(*gpus(0))).sets[0]
    assert last.score < broken.score < whole.score


def test_a_unit_is_given_whole_or_not_at_all() -> None:
    (gpu,), (adapter,) = gpus(0), adapters(0, functions=1)
    both = unit(0, gpu, adapter)
    assert choose_device_sets(ask(gpu=1, vf=1), host(*both)).sets
    answer = choose_device_sets(ask(gpu=1), host(*both))
    assert not answer.sets
    assert answer.miss is not None
    assert answer.miss.user == "0 gpu free (needs 1)"
    assert "gpu00 cannot be given" in answer.miss.operator
    # Both serve something, but there is one too many of it.
    answer = choose_device_sets(ask(gpu=1), host(*unit(0, *gpus(0, 0))))
    assert answer.miss is not None
    assert "2 gpu free, but not in whole IOMMU groups (needs 1 gpu)" in answer.miss.user
    assert choose_device_sets(ask(gpu=2), host(*unit(0, *gpus(0, 0)))).sets


def test_units_add_up() -> None:
    pools = (
        *unit(0, *gpus(0, 0, 0)),
        *unit(1, *(attrs.evolve(p, id=f"x{p.id}", name=f"x{p.name}") for p in gpus(0, 0))),
    )
    for count, fits in ((1, False), (2, True), (3, True), (4, False), (5, True)):
        assert bool(choose_device_sets(ask(gpu=count), host(*pools)).sets) is fits


def test_an_alias_that_is_written_twice() -> None:
    """Nova makes two requests of gpu:1,gpu:1; they are one need of two."""
    request = Request(
        wants=(Want("k1", "gpu", 1), Want("k2", "gpu", 1), Want("k3", "vf", 2)),
        groups=(DeviceGroup({"k1": 1, "k3": 1}), DeviceGroup({"k2": 1, "k3": 1})),
        level=Level.SWITCH,
        policy=AffinityPolicy.REQUIRED,
    )
    pools = tuple(
        attrs.evolve(pool, serves=frozenset({"k1", "k2"} if "gpu" in pool.serves else {"k3"}))
        for pool in (*gpus(0, 3), *adapters(0, 3))
    )
    (found,) = choose_device_sets(request, host(*pools)).sets
    assert {(p.want, p.pool, p.group) for p in found.picks} == {
        ("k1", "gpu00", 0),
        ("k3", "pf00", 0),
        ("k2", "gpu01", 1),
        ("k3", "pf01", 1),
    }


def test_two_aliases_for_one_device() -> None:
    """gpu00 must serve the alias that nothing else serves."""
    first, second = gpus(0, 0)
    both = attrs.evolve(first, serves=frozenset({"gpu", "any"}))
    (found,) = choose_device_sets(ask(gpu=1, any=1), host(both, second)).sets
    assert {(p.want, p.pool) for p in found.picks} == {("any", "gpu00"), ("gpu", "gpu01")}


def test_racing_servers_are_spread_over_equal_devices() -> None:
    request = ask(cells=1, gpu=2)
    (found,) = choose_device_sets(request, host(*DGX)).sets
    places = {
        tuple(sorted(pick.pool for pick in rotate_devices(request, host(*DGX), found, seed).picks))
        for seed in range(40)
    }
    assert places == {(f"gpu{n:02}", f"gpu{n + 1:02}") for n in (0, 2, 4, 6)}
