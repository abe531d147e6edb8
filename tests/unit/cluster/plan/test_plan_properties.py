# SPDX-License-Identifier: Apache-2.0
"""The planner against a reference that looks at every way to deal the members.

``NOVA_HPC_EXAMPLES`` sets how many cases each property gets; the full set takes 20,000.
"""

from __future__ import annotations

import os
import random

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_hpc.cluster.plan import Gang, GangPlan, GangPolicy, GangRefusal, plan_gang
from nova_hpc.fabric.model import FabricLevel, FabricMap
from tests.unit.cluster.plan.brute import Question, best
from tests.unit.cluster.plan.fabrics import Case, cases

EXAMPLES = int(os.environ.get("NOVA_HPC_EXAMPLES", "400"))
checked = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@checked
@given(cases())
def test_no_way_to_deal_the_members_is_better(case: Case) -> None:
    fabric, capacity, gang = case
    wanted = best(fabric, capacity, gang)
    answer = plan_gang(fabric, capacity, gang)
    if wanted is None:
        assert isinstance(answer, GangRefusal)
        return
    assert isinstance(answer, GangPlan), answer
    assert answer.proven
    question = Question(fabric, capacity, gang)
    given_ = dict(answer.hosts)
    assert any(given_ == way for way in question.ways())
    assert question.worth(given_) == wanted


@checked
@given(cases(most=30), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(case: Case, rng: random.Random) -> None:
    fabric, capacity, gang = case
    places, hosts = list(fabric.places), list(capacity.items())
    rng.shuffle(places)
    rng.shuffle(hosts)
    assert plan_gang(FabricMap(places=tuple(places)), dict(hosts), gang) == plan_gang(
        fabric, capacity, gang
    )


@checked
@given(cases(most=20))
def test_a_refusal_names_the_nearest_miss(case: Case) -> None:
    fabric, capacity, gang = case
    answer = plan_gang(fabric, capacity, gang)
    if not isinstance(answer, GangRefusal):
        return
    question = Question(fabric, capacity, gang)
    assert answer.total == sum(question.free.values())
    held: dict[tuple[FabricLevel, str], int] = {}
    for host, free in question.free.items():
        name = question.place[host].enclosing(gang.level)
        if name is not None:
            held[name] = held.get(name, 0) + free
    if gang.policy is GangPolicy.PREFERRED:
        assert answer.nearest is not None
        assert answer.nearest.holds == answer.total < gang.members
    elif held:
        assert answer.nearest is not None
        assert answer.nearest.holds == max(held.values()) < gang.members
        assert f"holds {answer.nearest.holds} of {gang.members}" in answer.reason
    else:
        assert answer.nearest is None
    if answer.instead is not None:
        wider = attrs.evolve(gang, level=FabricLevel.from_word(answer.instead.level))
        assert isinstance(plan_gang(fabric, capacity, wider), GangPlan)


@checked
@given(cases(most=20), st.integers(1, 6))
def test_a_gang_that_grows_stays_together(case: Case, more: int) -> None:
    fabric, capacity, gang = case
    first = plan_gang(fabric, capacity, gang)
    if not isinstance(first, GangPlan):
        return
    left = {host: free - first.hosts.get(host, 0) for host, free in capacity.items()}
    grown = attrs.evolve(gang, members=more, placed=first.hosts)
    answer = plan_gang(fabric, left, grown)
    beside = _beside(fabric, left, grown, first)
    if isinstance(answer, GangRefusal):
        assert gang.policy is GangPolicy.REQUIRED or answer.total < more
        return
    hosts = {*first.hosts, *answer.hosts}
    assert sum(answer.hosts.values()) == more
    for host, members in answer.hosts.items():
        assert members <= left[host]
        if gang.max_per_host:
            assert members + first.hosts.get(host, 0) <= gang.max_per_host
    if gang.policy is GangPolicy.REQUIRED:
        places = [fabric.place(host) for host in hosts]
        assert len({place and place.enclosing(gang.level) for place in places}) == 1
    # One NVLink domain is nearer than one leaf, and it may cross leaves.
    if beside >= more and answer.level not in ("host", "nvlink_domain", "sub_domain"):
        assert set(answer.leaves) <= set(first.leaves)


def _beside(fabric: FabricMap, left: dict[str, int], gang: Gang, first: GangPlan) -> int:
    """How many more fit in the leaves that the gang has, without leaving its own domain."""
    question = Question(fabric, left, attrs.evolve(gang, placed={}, max_per_host=None))
    places = [fabric.place(host) for host in first.hosts]
    own = {place.domain(gang.level) for place in places if place is not None}
    total = 0
    for host, free in question.free.items():
        place = question.place[host]
        # An NVLink domain has hosts of several leaves, and a leaf those of several domains.
        if place.domain(gang.level) not in own:
            continue
        if gang.max_per_host is not None:
            free = min(free, gang.max_per_host - first.hosts.get(host, 0))
        if free > 0 and (place.leaf or host) in first.leaves and first.level in ("leaf", "host"):
            total += free
    return total
