# SPDX-License-Identifier: Apache-2.0
"""Where the guest's cells belong once the devices are claimed, against trying everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import attrs
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from nova_hpc.placement import numa_choice
from nova_hpc.placement.judge import judge_claimed_devices
from nova_hpc.placement.model import (
    DeviceGroup,
    DevicePool,
    FreeHost,
    HostNode,
    Request,
    Want,
    WantedCell,
)
from nova_hpc_common.level import AffinityPolicy, Level, Location
from tests.unit.placement.worlds import cases


def _claimed(
    request: Request, host: FreeHost, rng: random.Random
) -> tuple[FreeHost, Mapping[str, Sequence[str]]] | None:
    """Any devices that serve the wants, and a host with nothing else."""
    free = {pool.id: pool.free for pool in host.pools}
    claimed: dict[str, list[str]] = {}
    for want in request.wants:
        serving = [p.id for p in host.pools if want.key in p.serves for _ in range(free[p.id])]
        if len(serving) < want.count:
            return None
        claimed[want.key] = rng.sample(serving, want.count)
        for one in claimed[want.key]:
            free[one] -= 1
    mine = [each for ids in claimed.values() for each in ids]
    pools = tuple(
        attrs.evolve(pool, free=mine.count(pool.id), unit=None)
        for pool in host.pools
        if pool.id in mine
    )
    return attrs.evolve(host, pools=pools, nvlink=()), claimed


@given(cases(), st.randoms(use_true_random=False))
def test_every_choice_of_nodes_once_and_the_best_first(
    case: tuple[Request, FreeHost], rng: random.Random
) -> None:
    request, host = case
    got = _claimed(request, host, rng)
    if got is None or not request.cells or len(host.nodes) < len(request.cells):
        return
    host, claimed = got
    found = numa_choice.order_node_tiers(request, host, claimed)
    places = [tier.place for tier in found.judged()]
    assert len(set(places)) == len(places)
    count = len(request.cells)
    chosen = [choice for choices in found for choice in choices]
    every = list(itertools.combinations(sorted(node.id for node in host.nodes), count))
    assert sorted(chosen) == sorted(every)
    # Which cell is on which of the nodes makes no difference.
    place_of: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    for mapping in itertools.permutations(sorted(node.id for node in host.nodes), count):
        cells = dict(zip((cell.id for cell in request.cells), mapping, strict=True))
        answer = judge_claimed_devices(numa_choice.fix_request_cells(request, cells), host, claimed)
        place = numa_choice.place_of_set(answer.sets[0]) if answer.sets else None
        assert place == place_of.setdefault(tuple(sorted(mapping)), place)
    # Better ones first, and what does not satisfy the request last.
    order = [{place_of[choice] for choice in choices} for choices in found]
    assert all(len(tier) == 1 for tier in order)
    ranked = [place for (place,) in order]
    assert ranked == sorted(ranked, key=lambda place: (place is None, place or ()))
    event(f"{len(order)} tiers of {len(every)} choices")


def _gpu(number: int, numa: int, socket: int) -> DevicePool:
    place = Location(numa=numa, socket=socket, root=f"root{number}", switches=(f"sw{number}",))
    return DevicePool(f"gpu{number}", f"gpu{number}", place, 1, frozenset({"gpu"}))


def _ask(gpus: int, cells: int, level: Level) -> Request:
    share = DeviceGroup({"gpu": gpus // cells})
    return Request(
        (Want("gpu", "gpu", gpus),),
        (share,) * cells,
        level,
        AffinityPolicy.REQUIRED,
        tuple(WantedCell(number) for number in range(cells)),
    )


def test_the_node_of_the_devices_then_its_socket_then_the_rest() -> None:
    host = FreeHost("one", (_gpu(0, 2, 1),), tuple(HostNode(n, n // 2) for n in range(4)))
    found = numa_choice.order_node_tiers(_ask(1, 1, Level.SOCKET), host, {"gpu": ["gpu0"]})
    assert list(found) == [((2,),), ((3,),), ((0,), (1,))]
    assert [tier.place is None for tier in found.judged()] == [False, False, True]


def test_the_node_of_most_groups_comes_first() -> None:
    """One GPU on node 1 and three on node 3, for a flavor that takes what there is."""
    gpus = (_gpu(0, 1, 0), *(_gpu(number, 3, 1) for number in (1, 2, 3)))
    host = FreeHost("one", gpus, tuple(HostNode(n, n // 2) for n in range(4)))
    request = attrs.evolve(
        _ask(4, 1, Level.NUMA),
        groups=(DeviceGroup({"gpu": 1}),) * 4,
        policy=AffinityPolicy.PREFERRED,
    )
    first, *_, last = numa_choice.order_node_tiers(request, host, {"gpu": [gpu.id for gpu in gpus]})
    assert (first, last) == (((3,),), ((0,),))


@pytest.mark.long
def test_a_host_of_very_many_nodes_is_bounded() -> None:
    """32 NUMA nodes, as with one for each L3 cache, and a guest of eight cells."""
    gpus = tuple(_gpu(number, number * 2, number // 8) for number in range(16))
    host = FreeHost("one", gpus[:8], tuple(HostNode(n, n // 16) for n in range(32)))
    found = numa_choice.order_node_tiers(
        _ask(8, 8, Level.NUMA), host, {"gpu": [gpu.id for gpu in gpus[:8]]}
    )
    assert sum(len(tier.ways) for tier in found.judged()) <= numa_choice.MOST
    assert next(iter(found)) == (tuple(range(0, 16, 2)),)
