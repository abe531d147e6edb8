# SPDX-License-Identifier: Apache-2.0
"""What the planner is compared with does what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given

from benchmarks.gangs import Shape
from benchmarks.gangs_rivals import first_fit, kueue, leaves, links, ours
from nova_hpc.cluster.plan import Gang, GangPolicy
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from tests.unit.cluster.plan.fabrics import Case, cases

PREFERRED = GangPolicy.PREFERRED
LEAF, BLOCK = FabricLevel.LEAF, FabricLevel.BLOCK


def fabric(*rooms: int) -> tuple[FabricMap, dict[str, int]]:
    """One block; each leaf has one host with so many places."""
    places = [
        FabricPlace(f"n{number}", leaf=f"l{number}", block="b") for number in range(len(rooms))
    ]
    return FabricMap(places=tuple(places)), {f"n{n}": room for n, room in enumerate(rooms)}


@pytest.mark.parametrize(
    ("rooms", "gang", "expected"),
    [
        # The tightest domain that is enough; the first of several.
        ((9, 5, 6, 5), Gang(5), {"n1": 5}),
        ((9, 5, 6), Gang(10), None),
        # The one with most room first, and the tightest that is enough at last.
        ((9, 5, 6), Gang(12, policy=PREFERRED), {"n0": 9, "n1": 3}),
        ((9, 5, 6), Gang(16, BLOCK), {"n0": 9, "n2": 6, "n1": 1}),
        ((9, 5, 6), Gang(21, policy=PREFERRED), None),
    ],
)
def test_kueue(rooms: tuple[int, ...], gang: Gang, expected: dict[str, int] | None) -> None:
    assert kueue(*fabric(*rooms), gang) == expected


def test_the_planner_keeps_what_kueue_breaks() -> None:
    found = fabric(10, 7, 7, 3)
    gang = Gang(13, BLOCK)
    assert kueue(*found, gang) == {"n0": 10, "n3": 3}
    planned = ours(*found, gang)
    assert planned is not None
    assert set(planned) == {"n1", "n2"}


def test_first_fit() -> None:
    assert first_fit(*fabric(3, 9, 5), Gang(5)) == {"n1": 5}
    assert first_fit(*fabric(3, 4, 5), Gang(6)) is None
    assert first_fit(*fabric(3, 4, 5), Gang(6, policy=PREFERRED)) == {"n0": 3, "n1": 3}


def test_what_a_placement_costs() -> None:
    shape = Shape(spines=2, blocks=1, leaves=2, hosts=4).build()
    hosts = {"n0-0-0-0": 2, "n0-0-1-0": 1, "n1-0-0-0": 3}
    assert leaves(shape, hosts) == 3
    # Leaves 2 + 1 + 3, blocks 3 + 3, spines 3 + 3; all are in one core.
    assert links(shape, hosts) == 6 + 6 + 6
    assert links(shape, {"n0-0-0-0": 5}) == 0


@given(cases())
def test_no_way_gives_what_is_not_there(case: Case) -> None:
    found, capacity, gang = case
    gang = Gang(gang.members, policy=PREFERRED)
    for place in (first_fit, kueue):
        hosts = place(found, capacity, gang)
        if hosts is not None:
            assert sum(hosts.values()) == gang.members
            assert all(0 < number <= capacity[host] for host, number in hosts.items())
