# SPDX-License-Identifier: Apache-2.0
"""Examples: large hosts, and the bounds of the search."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import (
    HostNode,
)
from nova_hpc.placement.solver import costs
from nova_hpc_common.level import Distance, Level, Location
from tests.unit.placement.examples import DGX, adapters, ask, gpus, host, unit


def test_sixteen_gpus_and_their_virtual_functions() -> None:
    """The work grows with domains and counts, not with combinations."""
    switches = [n // 2 for n in range(16)]
    big = host(*gpus(*switches), *adapters(*switches))
    big = attrs.evolve(
        big,
        pools=tuple(
            attrs.evolve(
                pool,
                location=Location(
                    numa=int(pool.location.switches[0][2:]) // 4,
                    socket=0,
                    root=pool.location.root,
                    switches=pool.location.switches,
                ),
            )
            for pool in big.pools
        ),
        nodes=(HostNode(0, 0), HostNode(1, 0)),
    )
    (found,) = choose_device_sets(ask(groups=8, cells=2, gpu=1, vf=1), big).sets
    assert (found.level, found.distance) == (Level.SWITCH, Distance.PIX)
    assert len({pick.pool for pick in found.picks}) == 16
    (found,) = choose_device_sets(ask(Level.HOST, gpu=16, vf=256), big).sets
    assert len(found.picks) == 272
    every = unit(0, *big.pools[:2])
    for number in range(1, 16):
        every += unit(number, *big.pools[number * 2 : number * 2 + 2])
    (found,) = choose_device_sets(
        ask(groups=8, gpu=2),
        attrs.evolve(
            big, pools=tuple(attrs.evolve(p, free=1, serves=frozenset({"gpu"})) for p in every)
        ),
    ).sets
    assert found.level is Level.SWITCH


def test_beyond_its_bound_the_search_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same level and distance, from the bounded choice; never an endless search."""
    request = ask(groups=4, cells=2, gpu=1, vf=1)
    exact_ = choose_device_sets(request, host(*DGX)).sets[0]
    monkeypatch.setattr(costs, "MAX_WORK", 10)
    (found,) = choose_device_sets(request, host(*DGX)).sets
    assert found.score[:3] == exact_.score[:3]
    assert found.score >= exact_.score


def test_a_request_beyond_the_bound_is_answered() -> None:
    """Eight aliases that every device serves: more labellings than can be tried."""
    names = [f"alias{n}" for n in range(8)]
    shared = tuple(
        attrs.evolve(pool, serves=frozenset(names))
        for pool in adapters(*(n // 2 for n in range(16)), functions=5)
    )
    (found,) = choose_device_sets(ask(Level.HOST, **dict.fromkeys(names, 4)), host(*shared)).sets
    assert len(found.picks) == 32


def test_more_wide_units_than_can_be_tried() -> None:
    """The answer is found by counts; which of 12,870 choices of units does not matter."""
    pools = tuple(
        attrs.evolve(pool, unit=f"unit{number // 2}")
        for number, pool in enumerate(gpus(*([0, 1, 2, 3] * 8)))
    )
    (found,) = choose_device_sets(ask(Level.HOST, gpu=16), host(*pools)).sets
    used = {pick.pool for pick in found.picks}
    units = {pool.unit for pool in pools if pool.id in used}
    assert used == {pool.id for pool in pools if pool.unit in units}
