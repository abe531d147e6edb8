# SPDX-License-Identifier: Apache-2.0
"""One seed of the published comparison; all of it takes minutes (see the docs)."""

from __future__ import annotations

from benchmarks.simulate.policies import POLICIES
from nova_hpc_tools.simulate import results
from nova_hpc_tools.simulate.scenario import play_scenario, prepare_scenario


def test_best_fit_is_as_published(captures):
    """Published: 95.54 to 96.03 per cent over ten seeds."""
    machines, tasks, _ = results.read_simulation_inputs(
        captures / "openb" / "openb_node_list_gpu_node.csv.gz",
        captures / "openb" / "openb_pod_list_multigpu50.csv.gz",
        None,
        "gpu",
    )
    scenario = prepare_scenario(machines, tasks, whole=False, demand=130, levels=0.0, added=0)
    assert (len(machines), scenario.capacity) == (1213, 6_212_000)
    best_fit = POLICIES["best-fit"]
    assert 95.3 < play_scenario(scenario, "best-fit", 0, best_fit).allocated < 96.3
