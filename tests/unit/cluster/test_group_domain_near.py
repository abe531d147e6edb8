# SPDX-License-Identifier: Apache-2.0
"""In which order the parts of a domain are filled, and what operators see of all domains."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.cluster.group_domain.fleet import Fleet, GroupLine, lines, reap
from nova_hpc.cluster.group_domain.model import (
    RECORD_PREFIX,
    ROOM_PREFIX,
    TICKET_PREFIX,
    Domain,
    room_name,
)
from nova_hpc.cluster.group_domain.near import part_order, scores
from nova_hpc.cluster.group_domain.records import Swept
from tests.unit.cluster.placement_model import Client, World, records

LEAF = Domain("leaf", "ib/leaf1")


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 20))
def test_the_fewest_parts_are_filled(rooms: list[int], members: int) -> None:
    """Against all sets of parts."""
    free = {f"leaf{number}": room for number, room in enumerate(rooms)}
    members = min(members, sum(rooms))
    used: dict[str, int] = {}
    for number in range(members):
        first = part_order(free, used, members - number)[0]
        free[first] -= 1
        used[first] = used.get(first, 0) + 1
    fewest = next(
        count
        for count in range(len(rooms) + 1)
        if any(sum(each) >= members for each in itertools.combinations(rooms, count))
    )
    assert len(used) == fewest


def test_members_stay_beside_those_that_are_there() -> None:
    assert part_order({"a": 1, "b": 9, "c": 3}, {"b": 1}, 2) == ["b", "c", "a"]
    # The smallest for all of them.
    assert part_order({"a": 1, "b": 9, "c": 3}, {}, 2) == ["c", "b", "a"]
    assert part_order({"a": 0}, {"a": 4}, 2) == []


def test_the_first_is_well_above_the_others() -> None:
    found = scores(["a", "b", "c"])
    assert found["a"] == 1.0
    assert 0.5 >= found["b"] > found["c"] > 0


def test_what_operators_see() -> None:
    world = World()
    made = records(Client(world))
    made.make_domain(LEAF)
    there = world.server()
    made.make(room_name("g", 4), "r1", LEAF.uuid)
    made.make(f"{RECORD_PREFIX}g", "x1", "r1")
    made.make(TICKET_PREFIX + there, there, "x1")
    made.make(TICKET_PREFIX + "gone", "gone", "x1")
    made.make(room_name("h", 2), "r2", LEAF.uuid)
    made.make("somebody's", "z", LEAF.uuid)
    made.make("compute1", "c")
    fleet = Fleet.of(made.providers())
    assert fleet.tickets == {there, "gone"}
    assert lines(fleet, world.states(fleet.tickets)) == (
        GroupLine("g", "leaf", "ib/leaf1", 4, 1, 1, "decided"),
        GroupLine("h", "leaf", "ib/leaf1", 2, 0, 0, "undecided"),
    )
    found = reap(lambda: records(Client(world)), world)
    assert found.swept == Swept(tickets=1, records=0, rooms=1)
    assert (found.domains, found.strange) == (0, ("somebody's (z)",))
    made.remove("z")
    del world.states_[there]
    found = reap(lambda: records(Client(world)), world)
    assert (found.swept, found.domains) == (Swept(1, 1, 1), 1)
    assert [each.name for each in made.providers()] == ["compute1"]
    assert not world.names(ROOM_PREFIX)
