# SPDX-License-Identifier: Apache-2.0
"""What the solver is made of, piece by piece: examples with one answer."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.model import Cell, Host, HostNode, Nvlink, Pool
from nova_hpc.placement.profile import HostProfile, Profile, Shape
from nova_hpc.placement.solver.cells import fits, lacks
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import settle, survey
from nova_hpc.placement.solver.spanning import links
from nova_hpc.topology.level import Level, Location
from tests.unit.placement.examples import ask

PAIR = Demand.of(ask(Level.HOST, gpu=2))


def pool(name: str, free: int = 1, **more: object) -> Pool:
    """A pool of GPUs."""
    made = Pool(name, name, Location(numa=0, root="r"), free, frozenset({"gpu"}))
    return attrs.evolve(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "short"),
    [
        (Cell(0, dedicated_cpus=8, memory_kib=10 * 2048, page_kib=2048), ""),
        (Cell(0, dedicated_cpus=9), "8 free dedicated CPUs (needs 9)"),
        (Cell(0, memory_kib=11 * 2048, page_kib=2048), "10 free pages of 2048 KiB (needs 11)"),
        (Cell(0, memory_kib=10 * 2048 + 1, page_kib=2048), "10 free pages of 2048 KiB (needs 11)"),
        (Cell(0, memory_kib=2048, page_kib=1048576), "0 free pages of 1048576 KiB (needs 1)"),
        # Without a page size Nova takes ordinary memory, of which nothing is known here.
        (Cell(0, memory_kib=1 << 40), ""),
    ],
)
def test_what_a_node_lacks_for_a_cell(cell: Cell, short: str) -> None:
    node = HostNode(3, 0, 8, {2048: 10})
    assert lacks(cell, node) == short
    assert fits(cell, node) is (not short)
    assert fits(cell, HostNode(3))
    assert fits(attrs.evolve(cell, host_node=3), node)
    assert not fits(attrs.evolve(cell, host_node=4), HostNode(3))


def test_a_place_that_contradicts_itself_is_not_believed() -> None:
    here, there = (Location(numa=n, socket=0, root="r", switches=("s",)) for n in (0, 1))
    apart = Location(numa=1, socket=0, root="q", switches=("t",))
    sockets = {0: 0, 1: 0}
    assert settle([here, apart], sockets) == [here, apart]
    bare = [Location(numa=n, socket=0) for n in (0, 1)]
    assert settle([here, there, apart], sockets) == [*bare, apart]


def test_of_a_pool_that_is_listed_twice_the_smaller_count_is_believed() -> None:
    for frees in ((3, 2), (2, 3)):
        pools = tuple(pool("a", free) for free in frees)
        site = survey(PAIR, Host("h", (*pools, pool("b"))))
        assert [(item.name, item.free) for item in site.items] == [("a", 2), ("b", 1)]
        assert site.ignored == ()
    other = survey(PAIR, Host("h", (pool("a"), pool("a", serves=frozenset()), pool("b"))))
    assert [item.name for item in other.items] == ["b"]
    assert other.ignored == ("a is listed twice with different data",)


def test_a_unit_with_a_device_that_is_not_wanted_is_not_used() -> None:
    site = survey(
        PAIR,
        Host("h", (pool("a", unit="u"), pool("b", unit="u", serves=frozenset()), pool("c"))),
    )
    assert [item.name for item in site.items] == ["c"]
    assert site.useless == ("a",)


@pytest.mark.parametrize(
    ("memory", "groups"), [(0, 5), (2048, 4), (2049, 4), (2048 * 2, 4), (2048 * 2 + 1, 3)]
)
def test_a_cell_takes_whole_pages_from_later_servers(memory: int, groups: int) -> None:
    """Ten pages; a group needs two, of which a part is as good as lost."""
    sold = Profile((Shape({"gpu": 1}, memory_kib=2 * 2048, page_kib=2048),))
    profile = HostProfile.of(sold, frozenset({"gpu"}), frozenset({"gpu"}))
    node = HostNode(0, 0, None, {2048: 10})
    cell = Cell(0, memory_kib=memory, page_kib=2048)
    assert profile.limits_of(node, cell) == (groups,)
    assert profile.limits_of(node) == (5,)


def test_an_nvlink_set_of_which_a_member_is_not_free_is_none() -> None:
    request = attrs.evolve(ask(Level.HOST, gpu=2), nvlink=Nvlink.REQUIRED)
    pools = (pool("a"), pool("b"), pool("c", free=0))
    for members, whole in (("ab", 1), ("abc", 0), ("ac", 0), ("a", 0)):
        host = Host("h", pools, nvlink=(frozenset(members),))
        assert len(links(request, PAIR, survey(PAIR, host), host).sets) == whole
