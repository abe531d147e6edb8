# SPDX-License-Identifier: Apache-2.0
"""Which domain a group gets and how it is filled, and what operators see of all domains."""

from __future__ import annotations

import itertools
import random

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.cluster.group_domain.domain_choice import FabricSeat, Ground
from nova_hpc.cluster.group_domain.membership import Ask, GroupDomains, Joined, JoinOffer, Refused
from nova_hpc.cluster.group_domain.model import (
    EVERYWHERE,
    RECORD_PREFIX,
    ROOM_PREFIX,
    TICKET_PREFIX,
    GroupDomain,
    room_name,
)
from nova_hpc.cluster.group_domain.records import ServerPresence, SweptProviders, find_dead_tickets
from nova_hpc.cluster.plan import Gang, GangPolicy
from nova_hpc.fabric.model import FabricLevel, FabricPlace
from nova_hpc_tools.snapshot.group_fleet import (
    DomainFleet,
    GroupLine,
    list_group_lines,
    reap_all_domains,
)
from tests.unit.cluster.placement_model import Client, World, records
from tests.unit.cluster.plan.fabrics import Case, cases, planned

LEAF = GroupDomain("leaf", "ib/leaf1")


def ground(*fits: int, leaves: int | None = None) -> Ground:
    """Hosts of one block, so many servers on each; of so many leaves, or each of its own."""
    return Ground(
        tuple(
            FabricSeat(
                FabricPlace(f"n{number}", leaf=f"leaf{number % (leaves or len(fits))}", block="b"),
                "ib",
                fit,
            )
            for number, fit in enumerate(fits)
        )
    )


# --- the planner decides ---------------------------------------------------------


@given(cases(), st.sampled_from(["", "5f1f9bb8-4a4e-4a4b-8b9b-0a4c9f6f3d11", "g2"]), st.booleans())
def test_the_domain_is_that_of_the_plan(case: Case, group: str, flexible: bool) -> None:
    """Any fabric, any free places: a map for the planner, seats for the scheduler."""
    fabric, capacity, gang = case
    seats = [
        FabricSeat(
            fabric.place(host) or FabricPlace(host), fabric.name if fabric.place(host) else "", fit
        )
        for host, fit in capacity.items()
    ]
    random.Random(gang.members).shuffle(seats)
    offer = JoinOffer(Ground(tuple(seats)), gang.level)
    policy = GangPolicy.PREFERRED if flexible else GangPolicy.REQUIRED
    wanted = Gang(members=gang.members, level=gang.level, group=group, policy=policy)
    said = planned(fabric, capacity, wanted)
    chosen = offer.ground.choose(gang.level, gang.members, group, flexible=flexible)
    if not said["fits"]:
        assert chosen == ((len(FabricLevel) - gang.level, EVERYWHERE) if flexible else None)
        return
    assert chosen is not None
    step, domain = chosen
    shared = FabricPlace("?", **said["around"])
    levels = [each for each in FabricLevel if each >= gang.level]
    around = [
        GroupDomain(enclosing[0].word, f"fabric/{enclosing[1]}")
        for each in levels
        if (enclosing := shared.enclosing(each)) is not None
    ]
    assert domain == (around[0] if around else EVERYWHERE)
    assert flexible or step == 0
    # And the protocol records the same.
    world = World()
    server = world.server()
    found = GroupDomains(records(Client(world)), world).join(
        Ask(server, group or server, gang.members, flexible=flexible), offer
    )
    if group:
        assert found == Joined(domain.uuid, step=step)
    else:
        assert isinstance(found, Joined)


def test_groups_of_one_moment_do_not_all_want_the_same_domain() -> None:
    here = ground(*[16] * 32)
    firsts = {here.choose(FabricLevel.LEAF, 16, f"group{number}") for number in range(20)}
    assert len(firsts) > 10


def test_the_domain_that_the_group_had_comes_first() -> None:
    here = ground(4, 3, 9)
    had = GroupDomain("leaf", "ib/leaf2")
    assert here.choose(FabricLevel.LEAF, 3, "g") == (0, LEAF)
    assert here.choose(FabricLevel.LEAF, 3, "g", before=had.uuid) == (0, had)
    assert here.choose(FabricLevel.LEAF, 10, "g", before=had.uuid) is None
    cut = {had.uuid: 2}
    assert here.choose(FabricLevel.LEAF, 3, "g", before=had.uuid, cut=cut) == (0, LEAF)


def test_places_that_are_kept_for_others_do_not_count() -> None:
    here = ground(4, 3, 9)
    cut: dict[str, int] = {}
    found = []
    while (chosen := here.choose(FabricLevel.LEAF, 3, "g", cut=cut)) is not None:
        found.append(chosen[1].name)
        cut[chosen[1].uuid] = 2
    assert found == ["ib/leaf1", "ib/leaf0", "ib/leaf2"]
    # What is left of the leaves counts in their block.
    assert here.choose(FabricLevel.BLOCK, 6, "g", cut=cut) == (0, GroupDomain("block", "ib/b"))
    assert here.choose(FabricLevel.BLOCK, 7, "g", cut=cut) is None
    assert here.choose(FabricLevel.LEAF, 6, "g", flexible=True, cut=cut) == (
        1,
        GroupDomain("block", "ib/b"),
    )
    assert here.choose(FabricLevel.LEAF, 7, "g", flexible=True, cut=cut) == (4, EVERYWHERE)
    cut[EVERYWHERE.uuid] = 0
    assert here.choose(FabricLevel.LEAF, 7, "g", flexible=True, cut=cut) is None


def test_two_maps_may_have_leaves_of_one_name() -> None:
    one, two = ground(2).seats[0], ground(3).seats[0]
    two = attrs.evolve(two, place=attrs.evolve(two.place, host="m0"), map="eth")
    here = Ground((one, two))
    assert here.choose(FabricLevel.LEAF, 4, "g") is None
    assert here.choose(FabricLevel.LEAF, 3, "g") == (0, GroupDomain("leaf", "eth/leaf0"))
    assert here.choose(FabricLevel.LEAF, 2, "g") == (0, GroupDomain("leaf", "ib/leaf0"))
    assert here.free_in(GroupDomain("leaf", "eth/leaf0")) == 3


def test_a_host_with_two_nodes_has_the_places_of_both() -> None:
    seat = ground(2).seats[0]
    here = Ground((seat, seat))
    assert here.choose(FabricLevel.LEAF, 4, "g") == (0, GroupDomain("leaf", "ib/leaf0"))
    assert here.hosts[GroupDomain("leaf", "ib/leaf0").uuid] == 2


# --- where in it the next member goes ----------------------------------------------


def _fill(seats: Ground, members: int) -> dict[str, int]:
    """Members that come one after the other: host -> how many of them."""
    now, used = seats, dict[str, int]()
    for number in range(members):
        scores = now.scores(used, members - number, "g")
        first = max(sorted(scores), key=lambda host: scores[host])
        used[first] = used.get(first, 0) + 1
        now = Ground(
            tuple(
                attrs.evolve(each, fit=each.fit - (each.place.host == first)) for each in now.seats
            )
        )
    return used


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 20))
def test_the_fewest_leaves_are_filled(rooms: list[int], members: int) -> None:
    """Against all sets of leaves."""
    members = min(members, sum(rooms))
    used = _fill(ground(*rooms), members)
    fewest = next(
        count
        for count in range(len(rooms) + 1)
        if any(sum(each) >= members for each in itertools.combinations(rooms, count))
    )
    assert len(used) == fewest


@given(cases())
def test_one_after_the_other_they_use_as_many_leaves_as_the_plan(case: Case) -> None:
    fabric, capacity, gang = case
    seats = [
        FabricSeat(place, fabric.name, capacity.get(place.host, 0))
        for place in fabric.places
        if place.leaf is not None
    ]
    total = sum(each.fit for each in seats)
    members = min(gang.members, total)
    if not members:
        return
    fits = {each.place.host: each.fit for each in seats}
    said = planned(fabric, fits, Gang(members=members, policy=GangPolicy.PREFERRED))
    used = _fill(Ground(tuple(seats)), members)
    leaves = {each.place.leaf for each in seats if each.place.host in used}
    assert len(leaves) == len(said["leaves"])


def test_members_stay_beside_those_that_are_there() -> None:
    # n1 has a member already; the others are two leaves of the same block.
    here = ground(1, 9, 3)

    def order(used: dict[str, int], left: int) -> list[str]:
        found = here.scores(used, left, "g")
        return sorted(found, key=lambda host: -found[host])

    assert order({"n1": 1}, 2)[0] == "n1"
    # The smallest for all of them.
    assert order({}, 2)[0] == "n2"
    # A member on a host that nobody knows decides nothing.
    assert order({"stranger": 4}, 2)[0] == "n2"


def test_in_a_leaf_nothing_is_decided_but_for_its_nvlink_domains() -> None:
    assert ground(1, 5, leaves=1).scores({}, 3, "g") == {"n0": 1.0, "n1": 1.0}
    seats = [
        FabricSeat(
            FabricPlace(f"n{number}", leaf="leaf", nvlink_domain=f"nv{number // 2}"), "ib", 2
        )
        for number in range(4)
    ]
    found = Ground(tuple(seats)).scores({"n3": 1}, 2, "g")
    assert found["n2"] == found["n3"] > found["n0"] == found["n1"] > 0


def test_the_first_is_well_above_the_others() -> None:
    found = ground(1, 2, 3).scores({}, 3, "g")
    assert found["n2"] == 1.0
    assert all(0 < found[each] <= 0.5 for each in ("n0", "n1"))


def test_a_domain_that_is_full_of_promises_is_left_out() -> None:
    """The next best one is asked for, with what is left of the first."""
    world = World()
    here = JoinOffer(ground(6, 5), FabricLevel.LEAF)
    one = GroupDomains(records(Client(world)), world).join(Ask(world.server(), "g", 4), here)
    two = GroupDomains(records(Client(world)), world).join(Ask(world.server(), "h", 2), here)
    three = GroupDomains(records(Client(world)), world).join(Ask(world.server(), "i", 5), here)
    assert one == Joined(GroupDomain("leaf", "ib/leaf1").uuid, step=0)
    assert two == Joined(GroupDomain("leaf", "ib/leaf0").uuid, step=0)
    assert isinstance(three, Refused)
    assert three.nearest is not None
    assert three.nearest.left == 4


# --- what operators see --------------------------------------------------------------


def test_what_operators_see() -> None:
    world = World()
    made = records(Client(world))
    made.make_domain(LEAF)
    there = world.server()
    made.make(room_name("g", 4), "r1", LEAF.uuid)
    made.make(f"{RECORD_PREFIX}g", "x1", "r1")
    made.make(TICKET_PREFIX + there, there, "x1")
    made.make(TICKET_PREFIX + "gone", "gone", "x1")
    # Deleted, and Nova has its row until the database is archived; one that is being deleted.
    left, leaving = world.server(), world.server()
    for each in (left, leaving):
        world.states_[each] = ServerPresence.LEAVING
        made.make(TICKET_PREFIX + each, each, "x1")
    world.allocations[leaving] = "c"
    made.make(room_name("h", 2), "r2", LEAF.uuid)
    made.make("somebody's", "z", LEAF.uuid)
    made.make("compute1", "c")
    fleet = DomainFleet.of(made.providers())
    assert fleet.tickets == {there, "gone", left, leaving}
    assert list_group_lines(fleet, find_dead_tickets(made, world, fleet.tickets)) == (
        GroupLine("g", "leaf", "ib/leaf1", 4, 2, 2, "decided"),
        GroupLine("h", "leaf", "ib/leaf1", 2, 0, 0, "undecided"),
    )
    found = reap_all_domains(lambda: records(Client(world)), world)
    assert found.swept == SweptProviders(tickets=2, records=0, rooms=1)
    assert (found.domains, found.strange) == (0, ("somebody's (z)",))
    made.remove("z")
    del world.states_[there], world.allocations[leaving]
    found = reap_all_domains(lambda: records(Client(world)), world)
    assert (found.swept, found.domains) == (SweptProviders(2, 1, 1), 1)
    assert [each.name for each in made.providers()] == ["compute1"]
    assert not world.names(ROOM_PREFIX)
