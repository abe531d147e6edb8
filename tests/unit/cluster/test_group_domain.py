# SPDX-License-Identifier: Apache-2.0
"""What providers say, and what follows from them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.cluster.group_domain.model import (
    EVERYWHERE,
    DomainTree,
    GroupDomain,
    GroupProvider,
    GroupRecord,
    GroupRoom,
    RoomVerdict,
    Size,
    domain_of,
    judge_new_room,
    room_name,
)

LEAF = GroupDomain("leaf", "leaf1")


def test_a_domain_has_one_name_whatever_databases_make_of_it() -> None:
    """MariaDB takes these for one name: case, accents and blanks at the end do not count."""
    alike = [GroupDomain("leaf", name) for name in ("leaf", "Leaf", "leaf ", "leäf", "l" * 300)]
    names = {each.provider_name for each in alike}
    assert len({name.lower() for name in names}) == len(alike)
    assert all(name.isascii() and len(name) <= 200 for name in names)
    assert GroupDomain("leaf", "a").uuid != GroupDomain("block", "a").uuid
    assert domain_of(LEAF.provider_name) == LEAF
    assert domain_of(EVERYWHERE.provider_name) == EVERYWHERE
    assert domain_of("compute1") is None
    # Records of clouds that run depend on it.
    assert LEAF.uuid == "09272769-3718-5783-ba5f-315f3f69b1e5"


def _providers() -> list[GroupProvider]:
    root = LEAF.uuid
    return [
        GroupProvider(root, LEAF.provider_name, None, root),
        GroupProvider("room1", room_name("g1", 4, Size("ab", 2)), root, root),
        GroupProvider("rec1", "hpc-group:g1", "room1", root),
        GroupProvider("s1", "hpc-member:s1", "rec1", root),
        GroupProvider("s2", "hpc-member:s2", "rec1", root),
        GroupProvider("room2", room_name("g2", 3), root, root),
        GroupProvider("odd1", "somebody", root, root),
        GroupProvider("odd2", "hpc-group:g3", root, root),
        GroupProvider("odd3", "hpc-room:0/0/:g:00000000", root, root),
    ]


@given(st.permutations(_providers()))
def test_a_tree_is_read_whatever_the_order(providers: list[GroupProvider]) -> None:
    tree = DomainTree.of(LEAF.uuid, providers)
    assert tree.rooms == (
        GroupRoom("room1", "g1", 4, Size("ab", 2), GroupRecord("rec1", "g1", ("s1", "s2"))),
        GroupRoom("room2", "g2", 3),
    )
    assert {each.uuid for each in tree.strange} == {"odd1", "odd2", "odd3"}
    assert tree.name == LEAF.provider_name
    assert tree.tickets == ("s1", "s2")


def test_no_tree() -> None:
    assert DomainTree.of(LEAF.uuid, []) == DomainTree(LEAF.uuid)


@pytest.mark.parametrize(
    ("members", "tickets", "placed", "left"),
    [(4, "", "", 4), (4, "ab", "", 4), (4, "ab", "a", 3), (1, "ab", "", 2), (1, "ab", "abc", 0)],
)
def test_what_a_room_still_keeps(members: int, tickets: str, placed: str, left: int) -> None:
    room = GroupRoom("r", "g", members, record=GroupRecord("x", "g", tuple(tickets)))
    assert room.outstanding(placed) == left


def test_servers_of_another_size_count_by_the_hosts_that_they_fill() -> None:
    room = GroupRoom("r", "g", 5, Size("a", 2))
    assert room.cost(Size("a", 1)) == 5
    assert room.cost(Size("b", 1)) == 3
    assert room.cost(Size("b", 8)) == 24


def test_a_group_does_not_stand_in_its_own_way() -> None:
    """Two schedulers decide one group in one domain: the record says who was first."""
    tree = DomainTree("d", rooms=(GroupRoom("a", "g", 4), GroupRoom("b", "g", 4)))
    assert judge_new_room(tree, "a", 4) is RoomVerdict.STAY
    assert judge_new_room(tree, "b", 4) is RoomVerdict.STAY
    assert judge_new_room(tree, "c", 4) is RoomVerdict.GONE


def test_only_one_of_two_without_a_record_yields() -> None:
    tree = DomainTree("d", rooms=(GroupRoom("a", "g", 4), GroupRoom("b", "h", 4)))
    assert judge_new_room(tree, "a", 4) is RoomVerdict.WAIT
    assert judge_new_room(tree, "b", 4) is RoomVerdict.YIELD
    decided = DomainTree(
        "d",
        rooms=(
            GroupRoom("a", "g", 4, record=GroupRecord("x", "g", ("s",))),
            GroupRoom("b", "h", 4),
        ),
    )
    assert judge_new_room(decided, "b", 4) is RoomVerdict.FULL
    assert judge_new_room(decided, "b", 8) is RoomVerdict.STAY
    # Its scheduler may have died before the first ticket.
    unused = DomainTree(
        "d", rooms=(GroupRoom("a", "g", 4, record=GroupRecord("x", "g")), GroupRoom("b", "h", 4))
    )
    assert judge_new_room(unused, "b", 4) is RoomVerdict.YIELD


@given(
    st.integers(1, 12),
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_what_stays_fits_in_any_order(capacity: int, sizes: list[int], rnd: object) -> None:
    """Against brute force over one order of put, read, write or withdraw, for each."""
    steps = [number for number in range(len(sizes)) for _ in range(3)]
    rnd.shuffle(steps)  # type: ignore[attr-defined]
    rooms: dict[str, GroupRoom] = {}
    verdicts: dict[int, RoomVerdict] = {}
    did = itertools.count()
    done = dict.fromkeys(range(len(sizes)), 0)
    for number in steps:
        name, step = f"r{number}", done[number]
        done[number] += 1
        if step == 0:
            rooms[name] = GroupRoom(name, f"g{number}", sizes[number])
        elif step == 1:
            verdicts[number] = judge_new_room(
                DomainTree("d", rooms=tuple(rooms.values())), name, capacity
            )
        elif verdicts[number] is RoomVerdict.STAY:
            rooms[name] = GroupRoom(
                name, f"g{number}", sizes[number], record=GroupRecord(f"x{next(did)}", f"g{number}")
            )
        else:
            del rooms[name]
        stay = sum(sizes[each] for each, verdict in verdicts.items() if verdict is RoomVerdict.STAY)
        assert stay <= capacity
    if sum(sizes) <= capacity:
        assert set(verdicts.values()) == {RoomVerdict.STAY}
