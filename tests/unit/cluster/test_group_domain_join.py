# SPDX-License-Identifier: Apache-2.0
"""Members that join, in any order, beside reapers, and killed at any step."""

from __future__ import annotations

import contextlib
import itertools
import random
import uuid
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc.cluster.group_domain import membership as joining
from nova_hpc.cluster.group_domain.domain_choice import FabricSeat, Ground
from nova_hpc.cluster.group_domain.membership import Ask, GroupDomains, Joined, JoinOffer, Refused
from nova_hpc.cluster.group_domain.model import (
    EVERYWHERE,
    RECORD_PREFIX,
    ROOM_PREFIX,
    TICKET_PREFIX,
    GroupDomain,
)
from nova_hpc.cluster.group_domain.records import (
    PlacementSilentError,
    ProviderAnswer,
    ProviderRecords,
    ServerPresence,
    SweptProviders,
    sweep_domain_tree,
)
from nova_hpc.fabric.model import FabricLevel, FabricPlace
from tests.unit.cluster.placement_model import Client, Turns, World, records

LEAVES = [GroupDomain("leaf", f"ib/leaf{number}") for number in range(4)]


@pytest.fixture(autouse=True)
def _as_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock that processes do not share."""
    monkeypatch.setattr(joining, "_LOCKS", (contextlib.nullcontext(),))


def offer(*fits: int, block: str | None = None, **keywords: object) -> JoinOffer:
    """So many servers fit into each leaf, on one host."""
    seats = tuple(
        FabricSeat(FabricPlace(f"host{number}", leaf=f"leaf{number}", block=block), "ib", fit)
        for number, fit in enumerate(fits)
    )
    return JoinOffer(Ground(seats), FabricLevel.LEAF, **keywords)


def groups(world: World, client: Client | None = None) -> GroupDomains:
    return GroupDomains(records(client or Client(world)), world)


def reap(world: World) -> SweptProviders:
    total = SweptProviders()
    for tree in world.trees():
        total += sweep_domain_tree(records(Client(world)), world, tree)
    return total


def left(world: World) -> list[str]:
    return [
        name for kind in (ROOM_PREFIX, RECORD_PREFIX, TICKET_PREFIX) for name in world.names(kind)
    ]


def test_members_of_a_group_have_one_domain() -> None:
    world = World()
    first, second = world.server(), world.server()
    one = groups(world).join(Ask(first, "g", 2), offer(2, 9))
    assert one == Joined(LEAVES[0].uuid, step=0)
    # The smallest that holds both was taken; a member that sees others follows.
    assert groups(world).join(Ask(second, "g", 2), offer(1, 9)) == Joined(LEAVES[0].uuid)
    # Asked again (a retry, a move) it has its ticket.
    assert groups(world).join(Ask(second, "g", 2), offer(9, 9)) == Joined(LEAVES[0].uuid, new=False)
    assert groups(world).where(first) == LEAVES[0].uuid
    assert groups(world).where(world.server()) is None


def test_no_domain_is_large_enough() -> None:
    world = World()
    found = groups(world).join(Ask(world.server(), "g", 5), offer(4, 3))
    assert isinstance(found, Refused)
    assert found.nearest is not None
    assert (found.nearest.domain, found.nearest.left) == (LEAVES[0], 4)
    assert world.providers == {}
    assert groups(world).join(Ask(world.server(), "g"), offer()) == Refused()


def test_a_domain_is_not_promised_twice() -> None:
    world = World()
    for name in ("g", "h"):
        joined = groups(world).join(Ask(world.server(), name, 4), offer(4, 4))
        assert isinstance(joined, Joined)
    assert world.domains_of("g") != world.domains_of("h")
    found = groups(world).join(Ask(world.server(), "i", 1), offer(4, 4))
    assert isinstance(found, Refused)
    assert found.nearest is not None
    assert (found.nearest.free, found.nearest.promised) == (4, 4)


def test_members_that_have_their_place_are_not_counted_twice() -> None:
    """A place is kept, or taken and not offered any more."""
    world = World()
    members = [world.server() for _ in range(4)]
    for each in members:
        groups(world).join(Ask(each, "g", 4), offer(6))
    newcomer = Ask(world.server(), "h", 2)
    # One has claimed after the hosts were looked at: its host was offered as free.
    world.allocations[members[0]] = "host0"
    assert isinstance(groups(world).join(newcomer, offer(5, seen={"host0": ()})), Refused)
    assert isinstance(groups(world).join(newcomer, offer(5)), Joined)
    world2 = World()
    world2.states_[members[0]] = ServerPresence.THERE
    groups(world2).join(Ask(members[0], "g", 2), offer(8))
    world2.allocations[members[0]] = "host0"
    seen = {"host0": {members[0]}}
    newcomer = Ask(world2.server(), "h", 2)
    assert isinstance(groups(world2).join(newcomer, offer(3, seen=seen)), Joined)


def test_a_wider_domain_where_that_will_do() -> None:
    world = World()
    block = GroupDomain("block", "ib/b")
    seats = (*offer(2, 1, block="b").ground.seats, FabricSeat(FabricPlace("far"), fit=1))
    for members, domain in ((2, LEAVES[0]), (3, block), (9, EVERYWHERE)):
        found = groups(world).join(
            Ask(world.server(), f"g{members}", members, flexible=True),
            JoinOffer(Ground(seats), FabricLevel.LEAF),
        )
        assert found == Joined(domain.uuid, step={2: 0, 3: 1, 9: 4}[members])
    # A block's room is not a leaf's: each level keeps its own.
    assert len(world.names(ROOM_PREFIX)) == 3


def test_a_domain_without_a_host_for_a_member() -> None:
    world = World()
    first, late = world.server(), world.server()
    groups(world).join(Ask(first, "g", 2), offer(2, 9))
    assert groups(world).join(Ask(late, "g", 2), offer(0, 9)) == Refused(LEAVES[0].uuid)
    assert len(world.names(TICKET_PREFIX)) == 1
    joined = groups(world).join(Ask(late, "g", 2, flexible=True), offer(0, 9))
    assert joined == Joined(LEAVES[0].uuid)


def test_a_group_whose_members_are_gone_is_decided_anew() -> None:
    world = World()
    old = [world.server() for _ in range(3)]
    for each in old:
        groups(world).join(Ask(each, "g", 3), offer(3, 9))
    for each in old:
        del world.states_[each]
    ask = Ask(world.server(), "g", 3, alone=True)
    assert groups(world).join(ask, offer(2, 9)) == Joined(LEAVES[1].uuid, step=0)
    assert len(left(world)) == 3
    # The same domain again, though it is not the smallest, where the group fits.
    del world.states_[ask.server]
    ask = Ask(world.server(), "g", 3, alone=True)
    assert groups(world).join(ask, offer(3, 9)) == Joined(LEAVES[1].uuid, step=0)


def test_a_member_that_is_being_built_keeps_the_record() -> None:
    world = World()
    groups(world).join(Ask(world.server(), "g", 3), offer(3, 9))
    late = Ask(world.server(), "g", 3, alone=True)
    assert groups(world).join(late, offer(1, 9)) == Joined(LEAVES[0].uuid)
    assert groups(world).join(Ask(world.server(), "g", 3, alone=True), offer(0, 9)) == Refused(
        LEAVES[0].uuid
    )


def test_who_is_marked_as_deleted_and_has_an_allocation_is_there() -> None:
    world = World()
    server = world.server()
    groups(world).join(Ask(server, "g"), offer(3))
    world.allocations[server] = "host0"
    world.states_[server] = ServerPresence.LEAVING
    assert reap(world) == SweptProviders()
    del world.allocations[server]
    assert reap(world) == SweptProviders(tickets=1, records=1, rooms=1)
    assert left(world) == []


def test_a_member_that_finds_no_host_leaves_nothing() -> None:
    world = World()
    first, second = world.server(), world.server()
    for each in (first, second):
        groups(world).join(Ask(each, "g", 2), offer(2))
    groups(world).leave(second)
    assert len(left(world)) == 3
    groups(world).leave(first)
    assert left(world) == []
    groups(world).leave(first)


# --- any order -----------------------------------------------------------------


def _play(
    sizes: list[int], capacity: int, schedulers: int, reapers: int, choose: random.Random
) -> tuple[World, dict[str, list[Joined | Refused]]]:
    """Groups of these sizes, each decided by several schedulers, and merciless reapers."""
    # UUIDs decide who gives way: the same choices have to be the same play.
    bits = random.Random(choose.randrange(1 << 16))
    made = mock.Mock(side_effect=lambda: uuid.UUID(int=bits.getrandbits(128), version=4))
    with mock.patch.object(uuid, "uuid4", made):
        return _played(sizes, capacity, schedulers, reapers, choose)


def _played(
    sizes: list[int], capacity: int, schedulers: int, reapers: int, choose: random.Random
) -> tuple[World, dict[str, list[Joined | Refused]]]:
    world = World()
    turns = Turns(world, lambda most: choose.randrange(most))
    found: dict[str, list[Joined | Refused]] = {}

    def member(name: str, size: int) -> None:
        server = world.server()

        def act(client: Client) -> None:
            answer = groups(world, client).join(
                Ask(server, name, size), offer(*(capacity,) * len(LEAVES))
            )
            found.setdefault(name, []).append(answer)

        turns.add(act)

    for number, size in enumerate(sizes):
        for _ in range(schedulers):
            member(f"g{number}", size)

    def reaper(client: Client) -> None:
        for _ in range(3):
            for leaf in LEAVES:
                sweep_domain_tree(records(client), world, records(client).tree(leaf.uuid))

    for _ in range(reapers):
        turns.add(reaper)
    turns.run()
    return world, found


@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(4, 6),
    st.integers(0, 1),
    st.randoms(use_true_random=False),
)
def test_any_order_of_requests(
    sizes: list[int], capacity: int, reapers: int, choose: random.Random
) -> None:
    world, found = _play(sizes, capacity, 2, reapers, choose)
    for name, answers in found.items():
        domains = {each.domain for each in answers if isinstance(each, Joined)}
        # Everybody believes in one domain, and it is the one with the tickets.
        assert len(domains) <= 1
        assert world.domains_of(name) == domains
    for tree in world.trees():
        kept = {room.group: room.members for room in tree.rooms if room.record is not None}
        assert sum(kept.values()) <= capacity
        assert len(kept) == sum(room.record is not None for room in tree.rooms)
    # There is a leaf for each group, so nobody may be refused.
    assert all(isinstance(each, Joined) for answers in found.values() for each in answers)


@settings(max_examples=max(5, settings.default.max_examples // 10))
@given(st.integers(0, 1), st.randoms(use_true_random=False))
def test_twenty_groups_for_one_leaf(reapers: int, choose: random.Random) -> None:
    """As many get it as have room; the others are refused, whatever the order of requests."""
    bits = random.Random(choose.randrange(1 << 16))
    made = mock.Mock(side_effect=lambda: uuid.UUID(int=bits.getrandbits(128), version=4))
    with mock.patch.object(uuid, "uuid4", made):
        world = World()
        turns = Turns(world, lambda most: choose.randrange(most))
        found: dict[str, Joined | Refused] = {}

        def member(name: str) -> None:
            server = world.server()

            def act(client: Client) -> None:
                found[name] = groups(world, client).join(Ask(server, name, 4), offer(16))

            turns.add(act)

        for number in range(20):
            member(f"g{number}")
        for _ in range(reapers):
            turns.add(
                lambda client: sweep_domain_tree(
                    records(client), world, records(client).tree(LEAVES[0].uuid)
                )
            )
        turns.run()
    joined = [name for name, each in found.items() if isinstance(each, Joined)]
    assert len(found) == 20
    assert len(joined) == 4
    (tree,) = world.trees()
    assert sum(room.members for room in tree.rooms if room.record) == 16
    refused = [each for each in found.values() if isinstance(each, Refused)]
    assert all(each.nearest and each.nearest.free == 16 for each in refused)
    assert len(world.names(ROOM_PREFIX)) == 4


def test_500_groups_whose_only_member_comes_to_nothing() -> None:
    """It fails to be scheduled, or goes while it is built: who decides next sweeps it."""
    world = World()
    most = 0
    for number in range(500):
        server = world.server()
        found = groups(world).join(Ask(server, f"g{number}", 4), offer(4))
        assert isinstance(found, Joined), number
        most = max(most, len(world.names(ROOM_PREFIX)))
        if number % 2:
            del world.states_[server]
        else:
            world.states_[server] = ServerPresence.LEAVING
    assert most == 1
    reap(world)
    assert left(world) == []


def test_a_member_deleted_while_its_group_grows() -> None:
    """Its place goes to the one that replaces it, and to no other group."""
    world = World()
    members = [world.server() for _ in range(3)]
    for each in members[:2]:
        groups(world).join(Ask(each, "g", 3), offer(3, 9))
    del world.states_[members[0]]
    other = groups(world).join(Ask(world.server(), "h", 1), offer(3, 9))
    assert other == Joined(LEAVES[1].uuid, step=0)
    for each in (members[2], world.server()):
        assert groups(world).join(Ask(each, "g", 3), offer(3, 9)) == Joined(LEAVES[0].uuid)
    assert world.domains_of("g") == {LEAVES[0].uuid}


# --- killed, and without an answer ----------------------------------------------


@pytest.mark.parametrize("dies_at", range(12))
def test_a_scheduler_dies_before_any_request(dies_at: int) -> None:
    """What it leaves stops nobody, keeps no place for ever, and is swept."""
    world = World()
    victim, heir, other = world.server(), world.server(), world.server()
    turns = Turns(world, lambda most: 0)
    turns.add(
        lambda client: groups(world, client).join(Ask(victim, "g", 4), offer(4)) and None, dies_at
    )
    turns.run()
    # The only leaf is promised where the victim has its ticket, and otherwise not.
    rival = groups(world).join(Ask(other, "h", 4), offer(4))
    assert isinstance(rival, Joined) == (not world.domains_of("g"))
    groups(world).leave(other)
    assert isinstance(groups(world).join(Ask(heir, "g", 4), offer(4)), Joined)
    assert len(world.domains_of("g")) == 1
    for each in (victim, heir, other):
        world.states_.pop(each, None)
    reap(world)
    assert left(world) == []


@pytest.mark.parametrize("lost_at", range(1, 10))
@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("status", [0, 500, 503])
def test_an_answer_that_is_lost(lost_at: int, effect: bool, status: int) -> None:
    world = World()
    numbers = itertools.count(1)
    client = Client(
        world,
        before=lambda method, path: (
            ProviderAnswer(status) if next(numbers) == lost_at and not effect else None
        ),
        after=lambda method, path, answer: (
            ProviderAnswer(status) if client.calls == lost_at else answer
        ),
    )
    server = world.server()
    assert groups(world, client).join(Ask(server, "g", 4), offer(4)) == Joined(
        LEAVES[0].uuid, step=0
    )
    assert len(left(world)) == 3


def test_a_record_that_goes_while_a_ticket_is_written_is_a_500() -> None:
    """The foreign key fails inside Placement, which answers 500: the record is gone."""
    world = World()
    first = world.server()
    groups(world).join(Ask(first, "g", 2), offer(4, 4))
    old = world.domains_of("g")

    def before(method: str, path: str) -> ProviderAnswer | None:
        if method == "POST" and not done:
            done.append(1)
            del world.states_[first]
            reap(world)
            return ProviderAnswer(500)
        return None

    done: list[int] = []
    joined = groups(world, Client(world, before=before)).join(
        Ask(world.server(), "g", 2), offer(4, 4)
    )
    assert isinstance(joined, Joined)
    assert joined.step == 0
    assert world.domains_of("g") == {joined.domain} <= {each.uuid for each in LEAVES[:2]}
    assert old


@pytest.mark.parametrize("status", [0, 500])
def test_placement_that_does_not_answer(status: int) -> None:
    world = World()
    client = Client(world, before=lambda method, path: ProviderAnswer(status))
    with pytest.raises(PlacementSilentError, match="within 30 seconds"):
        GroupDomains(records(client, limit=30.0), world).join(Ask(world.server(), "g"), offer(4))


@pytest.mark.parametrize("status", [0, 500])
def test_placement_that_reads_and_does_not_write(status: int) -> None:
    world = World()
    client = Client(
        world, before=lambda method, path: ProviderAnswer(status) if method == "POST" else None
    )
    with pytest.raises(PlacementSilentError, match="within 30 seconds"):
        GroupDomains(records(client, limit=30.0), world).join(Ask(world.server(), "g"), offer(4))


def test_slow_answers_are_answers() -> None:
    """The limit is for what one request waits for, not for all of them together."""
    world = World()
    asked: set[tuple[str, str]] = set()
    now = [0.0]

    def before(method: str, path: str) -> ProviderAnswer | None:
        now[0] += 6.0
        if (method, path) in asked:
            return None
        asked.add((method, path))
        return ProviderAnswer(503)

    slow = ProviderRecords(
        Client(world, before=before), limit=30.0, clock=lambda: now[0], sleep=lambda seconds: None
    )
    joined = GroupDomains(slow, world).join(Ask(world.server(), "g", 2), offer(4, 4))
    assert isinstance(joined, Joined)
    assert now[0] > 60.0


@pytest.mark.parametrize(
    "answer", [ProviderAnswer(401), ProviderAnswer(200, {"resource_providers": [{}]})]
)
def test_something_else_that_answers(answer: ProviderAnswer) -> None:
    world = World()
    client = Client(world, before=lambda method, path: answer)
    with pytest.raises(PlacementSilentError, match="Placement answered"):
        groups(world, client).join(Ask(world.server(), "g"), offer(4))


def test_a_request_that_placement_refuses_for_good() -> None:
    world = World()
    client = Client(
        world, before=lambda method, path: ProviderAnswer(400) if method == "POST" else None
    )
    with pytest.raises(PlacementSilentError, match="refuses hpc-fabric"):
        groups(world, client).join(Ask(world.server(), "g"), offer(4))


def test_rooms_of_dead_schedulers_everywhere() -> None:
    """500 that died between room and record: their rooms go when somebody needs the place."""
    world = World()
    for number in range(500):
        client = Client(world)
        made = records(client)
        domain = LEAVES[number % 2]
        if domain.uuid not in world.providers:
            made.make_domain(domain)
        made.make(f"{ROOM_PREFIX}4/1/:g{number}:{number:08x}", f"u{number}", domain.uuid)
    assert isinstance(groups(world).join(Ask(world.server(), "g", 4), offer(4, 4)), Joined)
    assert len(world.names(ROOM_PREFIX)) <= 251
