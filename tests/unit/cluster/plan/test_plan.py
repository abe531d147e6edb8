# SPDX-License-Identifier: Apache-2.0
"""What the planner says of fabrics that a reader can follow."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from nova_hpc.cluster.plan import Gang, GangMiss, GangPlan, GangPolicy, GangRefusal, plan_gang
from nova_hpc.cluster.plan.groups import MOST_WORK, GroupBudget
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace, Rail

LEAF, BLOCK, SPINE = FabricLevel.LEAF, FabricLevel.BLOCK, FabricLevel.SPINE


def fabric(leaves: Mapping[str, int], size: int = 4) -> FabricMap:
    """A spine; leaf ``b1l2`` is in block ``b1`` and has so many hosts."""
    return FabricMap(
        places=tuple(
            FabricPlace(host=f"{leaf}n{number}", leaf=leaf, block=leaf.split("l")[0], spine="spine")
            for leaf, hosts in leaves.items()
            for number in range(1, hosts + 1)
        )
    )


def ask(leaves: Mapping[str, int], members: int, **more: object) -> GangPlan | GangRefusal:
    """One member fits on each host."""
    found = fabric(leaves)
    return plan_gang(found, dict.fromkeys(found.hosts(), 1), Gang(members=members, **more))


def planned(leaves: Mapping[str, int], members: int, **more: object) -> GangPlan:
    answer = ask(leaves, members, **more)
    assert isinstance(answer, GangPlan), answer
    return answer


def refused(leaves: Mapping[str, int], members: int, **more: object) -> GangRefusal:
    answer = ask(leaves, members, **more)
    assert isinstance(answer, GangRefusal), answer
    return answer


def test_the_leaf_that_fits_best() -> None:
    answer = planned({"b1l1": 9, "b1l2": 5, "b2l1": 6, "b2l2": 4}, 5)
    assert answer.domain == "b1l2"
    assert (answer.level, answer.reached, answer.proven) == ("leaf", True, True)
    assert answer.why == "5 members on 5 hosts in leaf b1l2"
    assert dict(answer.around)[BLOCK] == "b1"
    assert FabricLevel.CORE not in dict(answer.around)


def test_a_refusal_names_the_nearest_miss_and_what_would_help() -> None:
    answer = refused({"b1l1": 12, "b1l2": 8, "b2l1": 11}, 16)
    assert answer.nearest == GangMiss("leaf", "b1l1", 12)
    assert answer.instead == GangMiss("block", "b1", 20)
    assert answer.reason == "leaf b1l1 holds 12 of 16; block b1 holds 20"


def test_a_gang_that_is_too_large_for_everything() -> None:
    answer = refused({"b1l1": 4, "b1l2": 3}, 16)
    assert answer.reason == "leaf b1l1 holds 4 of 16; all hosts together hold 7"
    answer = refused({"b1l1": 4, "b1l2": 3}, 16, policy=GangPolicy.PREFERRED)
    assert answer.reason == "all hosts together hold 7 of 16 members"


def test_preferred_takes_the_next_larger_domain_and_says_so() -> None:
    answer = planned({"b1l1": 4, "b1l2": 4, "b2l1": 5, "b2l2": 4}, 8, policy="preferred")
    assert (answer.level, answer.domain, answer.reached) == ("block", "b1", False)
    assert answer.why == "8 members on 8 hosts of 2 leaves in block b1: leaf b2l1 holds 5 of 8"


def test_fewer_leaves_come_before_a_better_fit() -> None:
    # b1 has exactly 8 places, in four leaves.
    leaves = {"b1l1": 2, "b1l2": 2, "b1l3": 2, "b1l4": 2, "b2l1": 7, "b2l2": 6}
    answer = planned(leaves, 8, level=BLOCK)
    assert answer.domain == "b2"
    assert len(answer.leaves) == 2


def test_the_largest_leaves_stay_whole_and_the_rest_is_in_one_piece() -> None:
    answer = planned({"b1l1": 10, "b1l2": 7, "b1l3": 7, "b1l4": 3}, 13, level=BLOCK)
    # 10 + 3 would fit without a rest, but there would be no leaf for a gang of 10 any more.
    assert sorted(answer.leaves.values()) == [6, 7]
    assert set(answer.leaves) == {"b1l2", "b1l3"}


def test_few_blocks_come_before_small_leaves() -> None:
    leaves = {"b1l1": 6, "b1l2": 6, "b2l1": 5, "b2l2": 1, "b3l1": 5, "b3l2": 5, "b3l3": 1}
    answer = planned(leaves, 15, level=SPINE)
    assert len(answer.leaves) == 3
    assert len({leaf[:2] for leaf in answer.leaves}) == 2


def test_spread_over_the_hosts_of_the_same_leaves() -> None:
    found = fabric({"b1l1": 4, "b1l2": 4})
    capacity = dict.fromkeys(found.hosts(), 3)
    packed = plan_gang(found, capacity, Gang(members=6))
    spread = plan_gang(found, capacity, Gang(members=6, order="spread"))
    assert isinstance(packed, GangPlan)
    assert isinstance(spread, GangPlan)
    assert sorted(packed.hosts.values()) == [3, 3]
    assert sorted(spread.hosts.values()) == [1, 1, 2, 2]
    assert len(packed.leaves) == len(spread.leaves) == 1


def test_at_most_so_many_on_a_host() -> None:
    found = fabric({"b1l1": 3})
    capacity = dict.fromkeys(found.hosts(), 4)
    answer = plan_gang(found, capacity, Gang(members=3, max_per_host=1))
    assert isinstance(answer, GangPlan)
    assert set(answer.hosts.values()) == {1}
    answer = plan_gang(found, capacity, Gang(members=4, max_per_host=1))
    assert isinstance(answer, GangRefusal)
    assert "holds 3 of 4" in answer.reason


def test_hosts_with_too_few_rails_do_not_count() -> None:
    rails = tuple(Rail(f"mlx5_{number}") for number in range(8))
    found = FabricMap(
        places=(
            FabricPlace("n1", leaf="l", rails=rails),
            FabricPlace("n2", leaf="l", rails=rails[1:]),
        )
    )
    answer = plan_gang(found, {"n1": 1, "n2": 1}, Gang(members=2, rails=8))
    assert isinstance(answer, GangRefusal)
    assert answer.reason == "leaf l holds 1 of 2; all hosts together hold 1"


def test_a_host_that_nobody_knows_serves_only_those_who_prefer() -> None:
    found = fabric({"b1l1": 1})
    capacity = {"b1l1n1": 1, "stranger": 1}
    assert isinstance(plan_gang(found, capacity, Gang(members=2, level=SPINE)), GangRefusal)
    answer = plan_gang(found, capacity, Gang(members=2, policy="preferred"))
    assert isinstance(answer, GangPlan)
    assert (answer.level, answer.domain, answer.reached) == ("anywhere", "", False)
    answer = plan_gang(FabricMap(), {"stranger": 1}, Gang(members=1))
    assert isinstance(answer, GangRefusal)
    assert answer.reason == "no host with free places has a known leaf"


def test_the_next_member_comes_beside_the_others() -> None:
    found = fabric({"b1l1": 4, "b1l2": 2, "b2l1": 1})
    capacity = dict.fromkeys(set(found.hosts()) - {"b1l1n1"}, 1)
    one = Gang(members=1, level=BLOCK, policy="preferred", placed={"b1l1n1": 1})
    answer = plan_gang(found, capacity, one)
    assert isinstance(answer, GangPlan)
    assert set(answer.leaves) == {"b1l1"}
    answer = plan_gang(found, capacity, Gang(members=4, level=BLOCK, placed={"b1l1n1": 1}))
    assert isinstance(answer, GangPlan)
    assert dict(answer.leaves) == {"b1l1": 3, "b1l2": 1}
    answer = plan_gang(found, capacity, Gang(members=4, placed={"b1l1n1": 1}))
    assert isinstance(answer, GangRefusal)
    assert answer.reason == "leaf b1l1 holds 3 of 4; block b1 holds 5"


def test_members_that_are_apart_are_named() -> None:
    found = fabric({"b1l1": 2, "b1l2": 2})
    placed = {"b1l1n1": 1, "b1l2n1": 1}
    answer = plan_gang(found, {"b1l1n2": 1}, Gang(members=1, placed=placed))
    assert isinstance(answer, GangRefusal)
    assert answer.reason.startswith("members of the gang are already in b1l1, b1l2, not all in one")
    answer = plan_gang(found, {"b1l1n2": 1}, Gang(members=1, placed={"moved": 1}))
    assert isinstance(answer, GangRefusal)
    assert "already outside any known leaf" in answer.reason


def test_the_search_has_an_end_and_says_when_it_met_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks that are equally large and all different, so that nothing can be left out.
    leaves = {f"b{block}l{leaf}": 9 + (block >> leaf) % 2 for block in range(16) for leaf in (0, 1)}
    leaves |= {
        f"b{block}l{leaf}": 9 - (block >> leaf - 2) % 2 for block in range(16) for leaf in (2, 3)
    }
    whole = planned(leaves, 70, level=SPINE)
    assert whole.proven
    monkeypatch.setattr(GroupBudget.__init__, "__defaults__", (3, True))
    short = planned(leaves, 70, level=SPINE)
    assert MOST_WORK > 3
    assert not short.proven
    assert len(short.leaves) == len(whole.leaves)
    assert sum(short.hosts.values()) == 70


@pytest.mark.parametrize(
    ("field", "value"),
    [("members", 0), ("members", True), ("members", "4"), ("max_per_host", 0), ("rails", -1)],
)
def test_numbers_that_make_no_sense_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value!r}; it must be a number from"):
        Gang(**{"members": 1, field: value})


def test_of_equal_leaves_that_one_is_not_used_up_with_which_fewer_hosts_do() -> None:
    places = [FabricPlace(f"a{number}", leaf="a", block="b") for number in range(2)]
    places += [FabricPlace(f"b{number}", leaf="b", block="b") for number in range(4)]
    capacity = {place.host: 2 if place.leaf == "a" else 1 for place in places}
    answer = plan_gang(FabricMap(places=tuple(places)), capacity, Gang(members=6, level=BLOCK))
    assert isinstance(answer, GangPlan)
    # Two places of b stay free: of a they would cost one more host.
    assert dict(answer.leaves) == {"a": 4, "b": 2}


def test_a_leaf_satisfies_a_wish_for_a_spine_that_nobody_knows() -> None:
    """A fabric of one tier has no spine, and its leaves are narrower than any."""
    places = [FabricPlace(f"n{number}", leaf=f"l{number // 4}") for number in range(8)]
    found = FabricMap(places)
    capacity = dict.fromkeys(found.hosts(), 1)
    answer = plan_gang(found, capacity, Gang(members=4, level=SPINE))
    assert isinstance(answer, GangPlan)
    assert (answer.level, len(answer.leaves), answer.reached) == ("leaf", 1, True)
    assert answer.enclosing(SPINE) == (FabricLevel.LEAF, answer.domain)
    refusal = plan_gang(found, capacity, Gang(members=5, level=SPINE))
    assert isinstance(refusal, GangRefusal)
    assert refusal.reason == "leaf l0 holds 4 of 5"
    # A leaf whose spine is known is no part of one whose spine is not.
    mixed = FabricMap([*places[:4], *(attrs.evolve(each, spine="s") for each in places[4:])])
    spread = plan_gang(mixed, capacity, Gang(members=5, level=SPINE))
    assert isinstance(spread, GangRefusal)


def test_a_host_that_is_called_like_a_leaf_is_no_part_of_it() -> None:
    found = FabricMap([FabricPlace("l1", spine="s"), FabricPlace("n1", leaf="l1", spine="s")])
    answer = plan_gang(found, {"l1": 2, "n1": 2}, Gang(members=4, level=SPINE))
    assert isinstance(answer, GangPlan)
    assert dict(answer.leaves) == {"l1": 2}
    assert answer.why == (
        "4 members on 2 hosts of 1 leaf and 1 host whose leaf is unknown in spine s"
    )
