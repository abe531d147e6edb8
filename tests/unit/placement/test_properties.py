# SPDX-License-Identifier: Apache-2.0
"""The solver against the reference that tries everything."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.judge import judge_claimed_devices
from nova_hpc.placement.model import (
    DeviceGroup,
    DevicePool,
    DeviceSet,
    FreeHost,
    HostNode,
    Nvlink,
    Request,
    Want,
)
from nova_hpc.placement.profile import Profile
from nova_hpc.placement.solver import costs
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import survey_host
from nova_hpc.placement.solver.measure import measure_choice
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.spanning import read_linked_sets
from nova_hpc.placement.spread import groups_of_set, rotate_devices
from nova_hpc_common.level import AffinityPolicy, Level, Location, common_level
from tests.unit.placement import brute
from tests.unit.placement.worlds import cases, profiles

#: The nightly run sets more.
EXAMPLES = int(os.environ.get("NOVA_HPC_EXAMPLES", "200"))


def thorough(test: Callable[..., None]) -> Callable[..., None]:
    """Generated cases without a deadline, because the reference is slow."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=checks)(test)


def claims(request: Request, found: DeviceSet) -> dict[str, list[str]]:
    claimed: dict[str, list[str]] = {want.key: [] for want in request.wants}
    for pick in found.picks:
        claimed[pick.want].append(pick.pool)
    return claimed


def check_set(request: Request, host: FreeHost, found: DeviceSet) -> None:
    """A set is what it says it is, by the definitions and not by the solver."""
    pools = {pool.id: pool for pool in host.pools}
    nodes = {node.id: node for node in host.nodes}
    used: dict[str, int] = {}
    groups: dict[int, dict[str, int]] = {n: {} for n in range(len(request.groups))}
    for pick in found.picks:
        used[pick.pool] = used.get(pick.pool, 0) + 1
        counts = groups[pick.group]
        counts[pick.want] = counts.get(pick.want, 0) + 1
        assert pick.want in pools[pick.pool].serves
    assert all(count <= pools[one].free for one, count in used.items())
    assert groups == {n: dict(group.counts) for n, group in enumerate(request.groups)}
    touched = {pools[one].unit for one in used} - {None}
    assert all(used.get(p.id) == p.free for p in host.pools if p.unit in touched)

    assert set(found.cells) == {cell.id for cell in request.cells}
    assert len(set(found.cells.values())) == len(request.cells)
    for cell in request.cells:
        node = nodes[found.cells[cell.id]]
        if cell.host_node is not None:
            assert node.id == cell.host_node
        else:
            assert node.dedicated_cpus is None or cell.dedicated_cpus <= node.dedicated_cpus
            if cell.page_kib is not None and node.pages is not None:
                assert cell.memory_kib <= node.pages.get(cell.page_kib, 0) * cell.page_kib
    level = Level.SWITCH
    shares = {cell.id: 0 for cell in request.cells}
    for number in groups:
        mine = [pick for pick in found.picks if pick.group == number]
        places = [pools[pick.pool].location for pick in mine]
        level = max(level, common_level(places))
        (cell_id,) = {pick.cell for pick in mine}
        if not request.cells:
            assert cell_id is None
            continue
        assert cell_id is not None
        shares[cell_id] += 1
        node = nodes[found.cells[cell_id]]
        for place in places:
            if place.numa != node.id:
                assert not request.on_cells
                near = node.socket is not None and place.socket == node.socket
                level = max(level, Level.SOCKET if near else Level.HOST)
    assert not shares or max(shares.values()) - min(shares.values()) <= 1
    assert found.level == level
    assert brute.allowed(request, found.level)


@thorough
@given(cases(), profiles())
def test_as_good_as_trying_everything(case: tuple[Request, FreeHost], profile: Profile) -> None:
    request, host = case
    reference = brute.best(request, host, profile)
    answer = choose_device_sets(request, host, profile=profile)
    event("fits" if reference else "does not fit")
    event(f"groups: {len(request.groups)}, cells: {len(request.cells)}")
    if reference is None:
        assert not answer.sets
        assert answer.miss is not None
        assert answer.miss.operator
        assert answer.miss.user
        return
    assert answer.miss is None
    (found,) = answer.sets
    check_set(request, host, found)
    assert (found.level, found.distance) == (reference.level, reference.distance)
    assert found.score == reference.score


@thorough
@given(cases(), st.integers(2, 8))
def test_every_alternative_is_valid_and_another(case: tuple[Request, FreeHost], limit: int) -> None:
    request, host = case
    answer = choose_device_sets(request, host, limit)
    assert len(answer.sets) <= limit
    for found in answer.sets:
        check_set(request, host, found)
    assert len({str((found.picks, found.cells)) for found in answer.sets}) == len(answer.sets)
    firsts = {str(found.cells): found for found in reversed(answer.sets)}
    mapped = answer.sets[: len(firsts)]
    assert len({str(found.cells) for found in mapped}) == len(mapped)
    assert [found.score for found in mapped] == sorted(found.score for found in mapped)
    assert choose_device_sets(request, host).sets == answer.sets[:1]
    event(f"{len(answer.sets)} sets")


@thorough
@given(cases(), st.randoms(use_true_random=False), st.integers(1, 3))
def test_order_of_the_input_does_not_matter(
    case: tuple[Request, FreeHost], rng: random.Random, limit: int
) -> None:
    request, host = case

    def mixed(things: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(rng.sample(things, len(things)))

    other = attrs.evolve(
        host, pools=mixed(host.pools), nodes=mixed(host.nodes), nvlink=mixed(host.nvlink)
    )
    asked = attrs.evolve(request, wants=mixed(request.wants), cells=mixed(request.cells))
    assert choose_device_sets(asked, other, limit) == choose_device_sets(request, host, limit)


@thorough
@given(cases())
def test_judge_accepts_what_was_chosen(case: tuple[Request, FreeHost]) -> None:
    request, host = case
    for found in choose_device_sets(request, host, 4).sets:
        mapped = attrs.evolve(
            request,
            cells=tuple(
                attrs.evolve(cell, host_node=found.cells[cell.id]) for cell in request.cells
            ),
        )
        answer = judge_claimed_devices(mapped, host, claims(request, found))
        assert answer.miss is None
        (judged,) = answer.sets
        assert judged.level <= found.level
        assert {key: sorted(ids) for key, ids in claims(request, judged).items()} == {
            key: sorted(ids) for key, ids in claims(request, found).items()
        }


@thorough
@given(cases(), st.randoms(use_true_random=False))
def test_judge_agrees_with_trying_everything(
    case: tuple[Request, FreeHost], rng: random.Random
) -> None:
    """Any devices at all, such as Nova might have claimed without a filter."""
    request, host = case
    if sum(want.count for want in request.wants) > 8:
        return  # the reference tells every function apart, and would take minutes
    free = {pool.id: pool.free for pool in host.pools}
    claimed: dict[str, list[str]] = {}
    for want in request.wants:
        serving = [p.id for p in host.pools if want.key in p.serves for _ in range(free[p.id])]
        if len(serving) < want.count:
            return
        claimed[want.key] = rng.sample(serving, want.count)
        for one in claimed[want.key]:
            free[one] -= 1
    answer = judge_claimed_devices(request, host, claimed)
    event("accepted" if answer.sets else "refused")
    assert bool(answer.sets) == brute.aligned(request, host, claimed)


@thorough
@given(cases(), profiles(), st.integers(0, 99), st.randoms(use_true_random=False))
def test_rotated_sets_are_equally_good(
    case: tuple[Request, FreeHost], profile: Profile, seed: int, rng: random.Random
) -> None:
    request, host = case
    for found in choose_device_sets(request, host, 1, profile).sets:
        other = rotate_devices(request, host, found, seed)
        check_set(request, host, other)
        assert (other.level, other.score) == (found.level, found.score)
        demand = Demand.of(request)
        site = survey_host(demand, host)
        linked = read_linked_sets(request, demand, site, host)
        problem = SearchProblem.of(request, demand, site, profile)
        measured = measure_choice(problem, linked, groups_of_set(demand, site, other), other.cells)
        assert (measured.level, measured.distance) == (found.level, found.distance)
        assert measured.score == found.score
        turned = attrs.evolve(host, pools=tuple(rng.sample(host.pools, len(host.pools))))
        assert rotate_devices(request, turned, found, seed) == other
        event("moved" if other.picks != found.picks else "stayed")


@thorough
@given(cases())
def test_the_bounded_choice_reaches_the_same_level(case: tuple[Request, FreeHost]) -> None:
    """Where the exact search gives up at once, what follows is valid and as tight."""
    request, host = case
    linked = request.nvlink is not Nvlink.NONE
    with mock.patch.object(costs, "MAX_WORK", -1):
        answer = choose_device_sets(request, host)
    best = choose_device_sets(request, host)
    event("fits" if answer.sets else "does not fit")
    for found in answer.sets:
        check_set(request, host, found)
        assert found.score >= best.sets[0].score
        assert linked or found.level == best.sets[0].level
    assert linked or bool(answer.sets) == bool(best.sets)


@thorough
@given(cases())
def test_devices_apart(case):
    """By group_policy=isolate each device is of another pool, wherever that is possible."""
    request, host = case
    request = attrs.evolve(request, apart=True)
    answer = choose_device_sets(request, host)
    expected = brute.best(request, host)
    assert bool(answer.sets) == (expected is not None)
    if expected is None:
        assert "group_policy=isolate" in answer.miss.operator
        return
    found = answer.sets[0]
    check_set(request, host, found)
    assert len({pick.pool for pick in found.picks}) == len(found.picks)
    assert (found.level, int(found.distance)) == (expected.level, expected.distance)
    event(f"{len(found.picks)} devices")


def test_one_device_of_several_is_no_member_of_an_nvlink_set():
    """A case that Hypothesis found: the limited host had a whole set, and the real one has none."""
    request, host = shared_nvlink_case()
    assert choose_device_sets(attrs.evolve(request, apart=True), host).sets == ()
    # Without the pool of two, it is a whole set.
    pools = tuple(attrs.evolve(pool, free=1) for pool in host.pools)
    assert choose_device_sets(
        attrs.evolve(request, apart=True), attrs.evolve(host, pools=pools)
    ).sets


def shared_nvlink_case() -> tuple[Request, FreeHost]:
    """Two GPUs as an NVLink set, of which one pool has two devices."""
    place = Location(root="pci0000:00")
    pools = tuple(
        DevicePool(name, name, place, free, frozenset({"A"})) for name, free in (("a", 1), ("b", 2))
    )
    request = Request(
        wants=(Want("A", "a", 2),),
        groups=(DeviceGroup({"A": 2}),),
        level=Level.SWITCH,
        policy=AffinityPolicy.PREFERRED,
        nvlink=Nvlink.REQUIRED,
    )
    return request, FreeHost("host", pools, (HostNode(0),), (frozenset({"a", "b"}),))
