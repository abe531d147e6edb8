# SPDX-License-Identifier: Apache-2.0
"""Examples: the sentences of the nearest miss, and what is refused."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import DeviceGroup, DevicePool, HostNode, Nvlink, Request, WantedCell
from nova_hpc_common.level import AffinityPolicy, Level
from tests.unit.placement.examples import BROKEN, DGX, QUADS, adapters, ask, gpus, host, spot


@pytest.mark.parametrize(
    ("pools", "request_", "text"),
    [
        (DGX, ask(gpu=9), "8 gpu free (needs 9)"),
        ((), ask(gpu=1, vf=2), "0 gpu free (needs 1), 0 vf free (needs 2)"),
        (DGX, ask(gpu=4), "8 gpu free, but at most 2 under one switch (needs 4)"),
        (DGX, ask(Level.NUMA, gpu=6), "8 gpu free, but at most 4 on one NUMA node (needs 6)"),
        (
            (*gpus(0, 0), *adapters(1)),
            ask(gpu=2, vf=1),
            "2 gpu and 16 vf free, but at most 2 gpu with 0 vf under one switch "
            "(needs 2 gpu with 1 vf)",
        ),
        (
            gpus(0, 0, 1, 2, 2),
            ask(groups=3, gpu=2),
            "5 gpu free (needs 6)",
        ),
        (
            gpus(0, 0, 1, 2, 2, 3),
            ask(groups=3, gpu=2),
            "6 gpu free, but only 2 groups of 2 gpu fit under one switch each (needs 3 groups)",
        ),
        (
            DGX,
            ask(cells=1, cpus=64, gpu=2),
            "too few NUMA nodes with 64 dedicated CPUs and 100 pages of 2048 KiB free",
        ),
        (DGX, ask(cells=3, gpu=2), "3 guest NUMA cells, but too few NUMA nodes"),
        (
            gpus(0, 0, 0, 1),
            ask(Level.NUMA, groups=4, cells=2, gpu=1),
            "the devices fit on one NUMA node, but not next to free CPUs and memory for "
            "2 guest NUMA cells (needs 4 groups of 1 gpu, spread evenly over "
            "2 guest NUMA cells, at most 2 each)",
        ),
    ],
)
def test_the_nearest_miss(pools: tuple[DevicePool, ...], request_: Request, text: str) -> None:
    answer = choose_device_sets(request_, host(*pools))
    assert not answer.sets
    assert answer.miss is not None
    assert answer.miss.user == text
    assert "node7" not in answer.miss.user
    assert "gpu0" not in answer.miss.user


def test_the_operator_reads_which_node_lacks_what() -> None:
    answer = choose_device_sets(ask(cells=1, gpu=2), host(*gpus(0, 0, 1, 1), cpus=(4, 32)))
    assert answer.miss is not None
    assert answer.miss.operator == (
        "NUMA node 0 has devices for 1 group but 4 free dedicated CPUs (needs 8); "
        "NUMA node 1 has devices for 0 groups (needs 1 group of 2 gpu)"
    )


def test_the_nearest_miss_does_not_depend_on_the_order_of_the_cells() -> None:
    cells = (WantedCell(0, 64), WantedCell(1, 1, 2048 * 2000, 2048))
    request = attrs.evolve(ask(gpu=2), cells=cells)
    turned = attrs.evolve(request, cells=cells[::-1])
    miss = choose_device_sets(request, host(*DGX)).miss
    assert miss is not None
    assert "with 1 dedicated CPUs and 2000 pages of 2048 KiB, and with 64" in miss.user
    assert choose_device_sets(turned, host(*DGX)).miss == miss


@pytest.mark.parametrize(
    ("sets", "counts", "text"),
    [
        ((), {"gpu": 2}, "no NVLink sets are known or wholly free here"),
        ((QUADS[0],), {"vf": 1}, "none of the requested devices is in an NVLink set"),
        (QUADS, {"gpu": 2}, "no whole NVLink set of 2 free (needs 1 group of 2 gpu)"),
        ((frozenset({"gpu00", "gone"}),), {"gpu": 2}, "no whole NVLink set of 2 free"),
        (QUADS, {"gpu": 4}, "2 whole NVLink sets of 4 gpu free (needs 1 apart, on one NUMA"),
    ],
)
def test_the_nearest_miss_of_nvlink(
    sets: tuple[frozenset[str], ...], counts: dict[str, int], text: str
) -> None:
    linked = attrs.evolve(host(*DGX), nvlink=sets)
    request = attrs.evolve(ask(Level.NUMA, **counts), nvlink=Nvlink.REQUIRED)
    answer = choose_device_sets(request, linked)
    assert answer.miss is not None
    assert answer.miss.user.startswith(text)


def test_nonsense_on_the_host_is_not_believed() -> None:
    answer = choose_device_sets(ask(Level.HOST, gpu=1, cells=1, on_cells=True), host(*BROKEN))
    assert not answer.sets
    assert answer.miss is not None
    # A root whose devices claim several NUMA nodes is no place to rely on.
    one, other = gpus(0, 0)
    torn = host(one, attrs.evolve(other, location=attrs.evolve(spot(0), numa=1)))
    assert not choose_device_sets(ask(gpu=2), torn).sets
    assert choose_device_sets(ask(gpu=1), torn).sets


def test_a_device_that_is_listed_twice_is_one_device() -> None:
    (one,) = gpus(0)
    assert not choose_device_sets(ask(gpu=2), host(one, one, attrs.evolve(one, free=4))).sets
    assert choose_device_sets(ask(gpu=1), host(one, one)).sets


@pytest.mark.parametrize(
    "request_",
    [
        Request((), (), Level.HOST, AffinityPolicy.REQUIRED),
        attrs.evolve(ask(gpu=2), groups=(DeviceGroup({"gpu": 1}),)),
        attrs.evolve(ask(gpu=3), groups=(DeviceGroup({"gpu": 1}), DeviceGroup({"gpu": 2}))),
        attrs.evolve(ask(gpu=1), groups=(DeviceGroup({"vf": 1}),)),
    ],
)
def test_a_request_that_contradicts_itself(request_: Request) -> None:
    with pytest.raises(ValueError, match=r"group|want"):
        choose_device_sets(request_, host(*DGX))


def test_contradictions_of_the_host_are_named() -> None:
    (one,) = gpus(0)
    other = attrs.evolve(one, location=spot(2))
    answer = choose_device_sets(ask(gpu=1), host(one, other))
    assert answer.miss is not None
    assert "gpu00 is listed twice with different data" in answer.miss.operator
    many = attrs.evolve(one, free=10**9)
    answer = choose_device_sets(ask(gpu=1), host(many))
    assert answer.miss is not None
    assert "gpu00 has the impossible number of 1000000000 free devices" in answer.miss.operator
    twice = attrs.evolve(host(one), nodes=(HostNode(0, 0, 1), HostNode(0, 0, 2)))
    with pytest.raises(ValueError, match="NUMA node 0 twice"):
        choose_device_sets(ask(gpu=1), twice)
