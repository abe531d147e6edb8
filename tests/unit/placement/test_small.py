# SPDX-License-Identifier: Apache-2.0
"""What the solver is made of, piece by piece: examples with one answer."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.model import DevicePool, FreeHost, HostNode, Nvlink, WantedCell
from nova_hpc.placement.profile import FlavorShape, HostProfile, Profile
from nova_hpc.placement.solver.cells import fits_on_node, lack_of_node
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import settle_locations, survey_host
from nova_hpc.placement.solver.spanning import read_linked_sets
from nova_hpc_common.level import Level, Location
from tests.unit.placement.examples import ask

PAIR = Demand.of(ask(Level.HOST, gpu=2))


def pool(name: str, free: int = 1, **more: object) -> DevicePool:
    """A pool of GPUs."""
    made = DevicePool(name, name, Location(numa=0, root="r"), free, frozenset({"gpu"}))
    return attrs.evolve(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "short"),
    [
        (WantedCell(0, dedicated_cpus=8, memory_kib=10 * 2048, page_kib=2048), ""),
        (WantedCell(0, dedicated_cpus=9), "8 free dedicated CPUs (needs 9)"),
        (
            WantedCell(0, memory_kib=11 * 2048, page_kib=2048),
            "10 free pages of 2048 KiB (needs 11)",
        ),
        (
            WantedCell(0, memory_kib=10 * 2048 + 1, page_kib=2048),
            "10 free pages of 2048 KiB (needs 11)",
        ),
        (WantedCell(0, memory_kib=2048, page_kib=1048576), "0 free pages of 1048576 KiB (needs 1)"),
        # Without a page size Nova takes ordinary memory, of which nothing is known here.
        (WantedCell(0, memory_kib=1 << 40), ""),
    ],
)
def test_what_a_node_lacks_for_a_cell(cell: WantedCell, short: str) -> None:
    node = HostNode(3, 0, 8, {2048: 10})
    assert lack_of_node(cell, node) == short
    assert fits_on_node(cell, node) is (not short)
    assert fits_on_node(cell, HostNode(3))
    assert fits_on_node(attrs.evolve(cell, host_node=3), node)
    assert not fits_on_node(attrs.evolve(cell, host_node=4), HostNode(3))


def test_a_place_that_contradicts_itself_is_not_believed() -> None:
    here, there = (Location(numa=n, socket=0, root="r", switches=("s",)) for n in (0, 1))
    apart = Location(numa=1, socket=0, root="q", switches=("t",))
    sockets = {0: 0, 1: 0}
    assert settle_locations([here, apart], sockets) == [here, apart]
    bare = [Location(numa=n, socket=0) for n in (0, 1)]
    assert settle_locations([here, there, apart], sockets) == [*bare, apart]


def test_of_a_pool_that_is_listed_twice_the_smaller_count_is_believed() -> None:
    for frees in ((3, 2), (2, 3)):
        pools = tuple(pool("a", free) for free in frees)
        site = survey_host(PAIR, FreeHost("h", (*pools, pool("b"))))
        assert [(item.name, item.free) for item in site.items] == [("a", 2), ("b", 1)]
        assert site.ignored == ()
    other = survey_host(PAIR, FreeHost("h", (pool("a"), pool("a", serves=frozenset()), pool("b"))))
    assert [item.name for item in other.items] == ["b"]
    assert other.ignored == ("a is listed twice with different data",)


def test_a_unit_with_a_device_that_is_not_wanted_is_not_used() -> None:
    site = survey_host(
        PAIR,
        FreeHost("h", (pool("a", unit="u"), pool("b", unit="u", serves=frozenset()), pool("c"))),
    )
    assert [item.name for item in site.items] == ["c"]
    assert site.useless == ("a",)


@pytest.mark.parametrize(
    ("memory", "groups"), [(0, 5), (2048, 4), (2049, 4), (2048 * 2, 4), (2048 * 2 + 1, 3)]
)
def test_a_cell_takes_whole_pages_from_later_servers(memory: int, groups: int) -> None:
    """Ten pages; a group needs two, of which a part is as good as lost."""
    sold = Profile((FlavorShape({"gpu": 1}, memory_kib=2 * 2048, page_kib=2048),))
    profile = HostProfile.of(sold, frozenset({"gpu"}), frozenset({"gpu"}))
    node = HostNode(0, 0, None, {2048: 10})
    cell = WantedCell(0, memory_kib=memory, page_kib=2048)
    assert profile.limits_of(node, cell) == (groups,)
    assert profile.limits_of(node) == (5,)


def test_an_nvlink_set_of_which_a_member_is_not_free_is_none() -> None:
    request = attrs.evolve(ask(Level.HOST, gpu=2), nvlink=Nvlink.REQUIRED)
    pools = (pool("a"), pool("b"), pool("c", free=0))
    for members, whole in (("ab", 1), ("abc", 0), ("ac", 0), ("a", 0)):
        host = FreeHost("h", pools, nvlink=(frozenset(members),))
        assert len(read_linked_sets(request, PAIR, survey_host(PAIR, host), host).sets) == whole
