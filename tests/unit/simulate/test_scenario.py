# SPDX-License-Identifier: Apache-2.0
"""Whole simulations, small enough to work out by hand."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc_common.level import Level
from nova_hpc_simulate import model, results
from nova_hpc_simulate.model import (
    SimulatedTask,
    draw_arrivals,
    round_to_whole_gpus,
    typical_shapes_of,
    with_levels,
)
from nova_hpc_simulate.policies import POLICIES, choose_policies
from nova_hpc_simulate.scenario import (
    build_simulation_document,
    play_scenario,
    prepare_scenario,
    summarise_outcomes,
)
from tests.unit.simulate.build import machine, shape

SPREAD = "nova:ram=1,cpu=1,pci=0"
OPTIONS = {"whole": True, "demand": 150, "levels": 0.0, "added": 0}


def tasks(count, wanted, **more):
    return [SimulatedTask(f"t{number}", wanted, **more) for number in range(count)]


def test_demand_and_refusals():
    """Two hosts of four GPUs, 150 per cent in pairs: six arrive, four find a place."""
    scenario = prepare_scenario([machine("a", 4), machine("b", 4)], tasks(3, shape(2)), **OPTIONS)
    found = play_scenario(scenario, "nova-pack", 0)
    assert (found.arrived, found.refused, found.refused_several) == (6, 2, 2)
    assert (found.refused_gpus, found.allocated, found.fragmented) == (4.0, 100.0, 0.0)
    assert [(one.at, one.allocated) for one in found.samples][:2] == [(25, 25.0), (50, 50.0)]
    assert found.allocated_at_100 == 100.0


def test_more_nodes_and_the_same_demand():
    machines = model.add_machines([machine("a", 4), machine("b", 4)], 1)
    scenario = prepare_scenario(machines, tasks(3, shape(2)), **{**OPTIONS, "added": 1})
    found = play_scenario(scenario, "nova-pack", 0)
    assert (found.arrived, found.refused, found.allocated) == (6, 0, 100.0)
    with pytest.raises(ValueError, match="no node of type 'x'; there are node"):
        model.add_machines(machines, 1, "x")


def test_spreading_fragments_what_packing_keeps():
    """Two singles, then what is left of two hosts of two: one pair, or none."""
    wanted = [*tasks(2, shape(1)), *tasks(1, shape(2))]
    timed = [attrs.evolve(task, arrives=float(n)) for n, task in enumerate(wanted)]
    scenario = prepare_scenario(
        [machine("a", 2), machine("b", 2)], timed, whole=True, demand=None, levels=0.0, added=0
    )
    assert play_scenario(scenario, "nova-hpc", 0).refused == 0
    assert play_scenario(scenario, SPREAD, 0, choose_policies([SPREAD])[SPREAD]).refused == 1


def test_departures():
    """One GPU: the second task finds it taken, the third finds it free again."""
    one = shape(1)
    wanted = [
        SimulatedTask("a", one, 0.0, 60.0),
        SimulatedTask("b", one, 50.0),
        SimulatedTask("c", one, 100.0, 200.0),
    ]
    scenario = prepare_scenario(
        [machine("n", 1)], wanted, whole=True, demand=None, levels=0.0, added=0
    )
    found = play_scenario(scenario, "nova-pack", 0)
    assert (found.arrived, found.refused) == (3, 1)
    assert [sample.allocated for sample in found.samples] == [100.0] * 59 + [0.0] * 40 + [100.0]


def test_arrivals():
    wanted = [SimulatedTask(f"t{n}", shape(n % 3)) for n in range(30)]
    some = draw_arrivals(wanted, 12_000, 1)
    assert sum(task.shape.gpus for task in some[:-1]) < 12 <= sum(t.shape.gpus for t in some)
    assert len(set(some)) == len(some)
    many = draw_arrivals(wanted, 90_000, 1)
    assert set(many[:30]) == set(wanted)
    assert many[: len(some)] == some
    assert draw_arrivals(wanted, 90_000, 2) != many


def test_shares_are_rounded_up():
    assert round_to_whole_gpus(tasks(1, shape(1, gpu_milli=300))) == tasks(1, shape(1))


@pytest.mark.parametrize("policy", POLICIES)
def test_shares_of_one_gpu_share_it(policy):
    """Four halves on two hosts of one GPU: the third and the fourth find no GPU wholly free."""
    machines = [machine("a", 1), machine("b", 1)]
    halves = tasks(4, shape(1, gpu_milli=500))
    scenario = prepare_scenario(machines, halves, **{**OPTIONS, "whole": False, "demand": 100})
    outcome = play_scenario(scenario, policy, 0)
    assert (outcome.arrived, outcome.refused, outcome.allocated) == (4, 0, 100.0)


def test_levels():
    wanted = [*tasks(1000, shape(4)), *tasks(1000, shape(2)), *tasks(10, shape(1))]
    drawn = [task.shape for task in with_levels(wanted, 0, 0.5, 2, 4)]
    assert 400 < sum(one.local for one in drawn[:1000]) < 600
    kinds = {(one.gpus, one.level, one.group_size, one.groups) for one in drawn}
    assert kinds == {
        (4, Level.HOST, 4, 1), (4, Level.SWITCH, 2, 2), (4, Level.NUMA, 4, 1),
        (2, Level.HOST, 2, 1), (2, Level.SWITCH, 2, 1), (2, Level.NUMA, 2, 1),
        (1, Level.HOST, 1, 1),
    }  # fmt: skip


def test_typical_shapes_cover_what_they_must():
    wanted = [*tasks(60, shape(1)), *tasks(35, shape(2)), *tasks(5, shape(4))]
    assert [(one.shape.gpus, one.frequency) for one in typical_shapes_of(wanted)] == [
        (1, pytest.approx(60 / 95)),
        (2, pytest.approx(35 / 95)),
    ]


@pytest.mark.parametrize(
    ("machines", "wanted", "more", "message"),
    [
        ([machine("a", 0)], tasks(1, shape(1)), {}, "no node has a free GPU"),
        ([machine("a", 1)], tasks(1, shape(0)), {}, "no request contains a GPU"),
        ([machine("a", 1)], tasks(1, shape(1)), {"demand": None}, "have no times"),
        ([machine("a", 2)], tasks(1, shape(2, level=Level.NUMA)), {}, "no node has a topology"),
        ([machine("a", 2)], tasks(1, shape(2)), {"levels": 0.5}, "no node has a topology"),
    ],
)
def test_senseless_scenarios(machines, wanted, more, message):
    with pytest.raises(ValueError, match=message):
        prepare_scenario(machines, wanted, **{**OPTIONS, **more})


def test_processes_change_nothing():
    machines = model.all_dgx([machine("a", 8), machine("b", 4)])
    wanted = [SimulatedTask(f"t{n}", shape(1 + n % 4)) for n in range(40)]
    scenario = prepare_scenario(machines, wanted, **{**OPTIONS, "levels": 0.5})
    names = ["nova:subset=0", "nova-pack", "nova-hpc"]
    alone = results.play_all(scenario, choose_policies(names), range(2), 1)
    assert alone == results.play_all(scenario, choose_policies(names), range(2), 2)
    assert [(one.policy, one.seed) for one in alone] == [(n, s) for n in names for s in (0, 1)]
    assert [one.policy for one in summarise_outcomes(alone)] == names
    result = build_simulation_document(scenario, alone, {})
    assert len(result["runs"]) == 6
    mean = result["policies"][0]["figures"]["refused"]["mean"]
    assert mean == sum(one.refused for one in alone[:2]) / 2
