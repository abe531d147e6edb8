# SPDX-License-Identifier: Apache-2.0
"""What bounds a pass over hosts: counts before choices, one class a choice, a budget."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given, settings

from nova_hpc.placement import between_hosts
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import DevicePool, FreeHost, HostNode, Nvlink, Ports, Request
from nova_hpc.placement.profile import DEFAULT, UNMEASURED, FlavorShape, Profile
from nova_hpc.placement.solver import costs, solve
from nova_hpc.placement.solver.costs import PassWork
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import survey_host
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.solve import Solver
from nova_hpc.placement.solver.spanning import iterate_set_choices, read_linked_sets
from nova_hpc_common.level import AffinityPolicy, Level
from tests.unit.placement.examples import DGX, adapters, ask, gpus, host, spot
from tests.unit.placement.worlds import cases

MANY = settings(max_examples=100, deadline=None)


def all_linked(found: FreeHost) -> FreeHost:
    """Every two GPUs are an NVLink set, as below NVSwitches."""
    names = [pool.id for pool in found.pools if "gpu" in pool.serves]
    return attrs.evolve(
        found, nvlink=tuple(frozenset(pair) for pair in itertools.combinations(names, 2))
    )


@pytest.mark.parametrize("wish", [Nvlink.REQUIRED, Nvlink.PREFERRED])
@pytest.mark.parametrize(
    ("found", "asked"),
    [
        # Fourteen GPUs on one NUMA node, and cells on four of them.
        (
            attrs.evolve(host(*gpus(*[n // 7 for n in range(14)])), nodes=(HostNode(0, 0),)),
            ask(Level.NUMA, groups=4, cells=4, gpu=2),
        ),
        # Two nodes, neither of which has the CPUs.
        (
            host(*gpus(*[n // 4 for n in range(14)]), cpus=(4, 4)),
            ask(Level.NUMA, groups=4, cells=2, gpu=2),
        ),
        # All that is free is on one node, and half of the groups have to be on the other.
        (
            host(*gpus(*[n // 7 for n in range(14)])),
            ask(Level.NUMA, groups=4, cells=2, gpu=2),
        ),
    ],
)
def test_what_does_not_fit_without_nvlink_is_not_enumerated(
    found: FreeHost, asked: Request, wish: Nvlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = []
    grow = solve.Forest.grow

    def counted(self: object, *arguments: object) -> object:
        grown.append(arguments)
        return grow(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(solve.Forest, "grow", counted)
    answer = choose_device_sets(attrs.evolve(asked, nvlink=wish), all_linked(found))
    assert not answer.sets
    assert answer.miss is not None
    assert grown == []
    # The same without NVLink: it is the counts that do not allow it.
    assert not choose_device_sets(asked, found).sets


def test_a_device_of_no_set_serves_what_needs_none() -> None:
    """The switch has the second name from a device that could serve the first, too."""
    both = DevicePool("both", "both", spot(2), 1, frozenset({"gpu", "vf"}))
    found = attrs.evolve(
        host(*gpus(1, 2), both), nvlink=tuple(frozenset({f"gpu0{n}"}) for n in (0, 1))
    )
    asked = attrs.evolve(ask(Level.SWITCH, gpu=1, vf=1), nvlink=Nvlink.REQUIRED)
    (best,) = choose_device_sets(asked, found, 1, Profile()).sets
    assert {pick.want: pick.pool for pick in best.picks} == {"gpu": "gpu01", "vf": "both"}
    assert best.level is Level.SWITCH


@MANY
@given(cases())
def test_no_floor_is_above_what_is_found(case: tuple[Request, FreeHost]) -> None:
    """What counts allow is never less than what the whole search finds without asking them."""
    request, found = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Solver, "_floor", lambda self: Level.SWITCH)
        without = choose_device_sets(request, found, 1, Profile()).sets
    assert choose_device_sets(request, found, 1, Profile()).sets == without


def test_choices_of_one_class_are_grown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight linked GPUs: 420 ways to take two of 28 pairs, in three classes."""
    grown = []
    grow = solve.Forest.grow

    def counted(self: object, *arguments: object) -> object:
        grown.append(arguments)
        return grow(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(solve.Forest, "grow", counted)
    request = attrs.evolve(ask(Level.NUMA, groups=2, gpu=2), nvlink=Nvlink.REQUIRED)
    (found,) = choose_device_sets(request, all_linked(host(*gpus(0, 0, 1, 1, 2, 2, 3, 3)))).sets
    assert found.level is Level.SWITCH
    assert len(grown) < 10


@MANY
@given(cases())
def test_choices_with_one_sketch_are_of_one_class(case: tuple[Request, FreeHost]) -> None:
    """A sketch stands for the tree that it saves: none of another class is passed over."""
    request, found = case
    request = attrs.evolve(request, nvlink=Nvlink.PREFERRED, ports=())
    demand = Demand.of(request)
    site = survey_host(demand, found)
    solver = Solver(
        SearchProblem.of(request, demand, site, DEFAULT),
        read_linked_sets(request, demand, site, found),
    )
    if solver.wide:
        return
    seen: dict[object, int] = {}
    for count in (1, 2):
        for sets in itertools.islice(iterate_set_choices(solver.links.sets, count), 40):
            if any(item.unit for members in sets for item in members):
                continue
            marks = {item.id: solve.HIT for members in sets for item in members}
            root = solver.forest.grow(marks, sets, solver.local)
            sketch = (count, solver._sketch(sets))
            assert seen.setdefault(sketch, root.cls.number) == root.cls.number


SOLD = Profile(
    (FlavorShape({"gpu": 2}, level=Level.SWITCH), FlavorShape({"gpu": 4}, level=Level.NUMA))
)
LABELLED = tuple(attrs.evolve(pool, role=min(pool.serves)) for pool in DGX)


def test_a_pass_that_has_no_steps_left_measures_no_damage() -> None:
    """The level and the distance are as good as before; what is left to others is not seen."""
    request = ask(groups=2, cells=2, gpu=1, vf=1)
    broken = host(*(each for each in LABELLED if each.id != "gpu05"))
    full = choose_device_sets(request, broken, profile=SOLD).sets[0]
    work = PassWork(0)
    (found,) = choose_device_sets(request, broken, profile=SOLD, work=work).sets
    assert found.score[:4] == full.score[:4]
    assert (full.measured, found.measured) == (True, False)
    assert full.score[4] > 0
    assert found.score[4:6] == (0, 0)
    # Also on a host of which no shape names anything, where default shapes are the rule.
    assert choose_device_sets(request, host(*DGX)).sets[0].score[5] > 0
    assert choose_device_sets(request, host(*DGX), work=work).sets[0].score[4:6] == (0, 0)


def test_the_steps_of_a_pass_are_counted() -> None:
    request = ask(groups=2, cells=2, gpu=1, vf=1)
    work = PassWork()
    choose_device_sets(request, host(*DGX), work=work)
    spent = costs.PASS_WORK - work.left
    assert 0 < spent < costs.MAX_WORK
    choose_device_sets(request, host(*DGX), work=work)
    assert costs.PASS_WORK - work.left == 2 * spent
    few = PassWork(spent + 1)
    assert choose_device_sets(request, host(*DGX), work=few).sets[0].measured
    assert choose_device_sets(request, host(*DGX), work=few).sets[0].measured
    assert not choose_device_sets(request, host(*DGX), work=few).sets[0].measured


def test_ports_take_from_the_same_steps() -> None:
    pools = tuple(
        attrs.evolve(pool, serves=frozenset({"port"}) if "vf" in pool.serves else pool.serves)
        for pool in DGX
    )
    request = attrs.evolve(ask(groups=2, gpu=1), ports=(Ports("port", "port", 2),))
    work = PassWork()
    assert choose_device_sets(request, host(*pools), work=work).sets[0].measured
    assert work.left < costs.PASS_WORK
    assert not choose_device_sets(request, host(*pools), work=PassWork(0)).sets[0].measured


def test_without_steps_the_search_has_a_small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take long even without damage is left to the bounded choice."""
    monkeypatch.setattr("nova_hpc.placement.choose.SPARE_WORK", 10)
    request = ask(groups=4, cells=2, gpu=1, vf=1)
    exact = choose_device_sets(request, host(*DGX)).sets[0]
    (found,) = choose_device_sets(request, host(*DGX), work=PassWork(0)).sets
    assert found.score[:3] == exact.score[:3]
    assert not found.measured


def test_hosts_whose_damage_is_unknown_come_after_those_of_which_it_is_known() -> None:
    coarse = between_hosts.damage_grain_of(SOLD)
    damaged = (0, 0, 0, 1, 9 * coarse, 0, 0, 1, 0)
    harmless = (0, 0, 0, 1, 0, 0, 0, 1, 0)
    wider = (3, 0, 0, 1, 0, 0, 0, 1, 0)

    def rank(score: tuple[int, ...], measured: bool = True) -> tuple[int, ...]:
        return between_hosts.rank_device_set(score, Level.SWITCH, coarse, measured)

    assert rank(harmless) < rank(damaged) < rank(harmless, False) < rank(wider)
    assert rank(harmless, False) < rank((0, 0, 1, 1, 0, 0, 0, 1, 0), False)


def test_a_profile_that_measures_nothing() -> None:
    assert not UNMEASURED.measured
    found = choose_device_sets(ask(gpu=1), host(*gpus(0, 0, 1)), profile=UNMEASURED).sets[0]
    assert found.score[4:6] == (0, 0)
    # What is left under the same switch still counts.
    assert found.picks[0].pool == "gpu02"


def test_the_same_devices_are_offered_once() -> None:
    """A cell on either node, and devices that may be anywhere: only the cell would differ."""
    request = ask(Level.HOST, AffinityPolicy.PREFERRED, groups=1, cells=1, gpu=2)
    sets = choose_device_sets(request, host(*gpus(0, 2)), limit=5).sets
    assert [sorted(pick.pool for pick in one.picks) for one in sets] == [["gpu00", "gpu01"]]
    several = choose_device_sets(request, host(*gpus(0, 0, 2, 2), *adapters(1)), limit=5).sets
    offered = [tuple(sorted(pick.pool for pick in one.picks)) for one in several]
    assert len(offered) > 1
    assert len(set(offered)) == len(offered)


@MANY
@given(cases())
def test_no_alternative_has_the_devices_of_another(case: tuple[Request, FreeHost]) -> None:
    request, found = case
    offered = [
        tuple(sorted((pick.want, pick.pool) for pick in one.picks))
        for one in choose_device_sets(request, found, 5).sets
    ]
    assert len(set(offered)) == len(offered)
