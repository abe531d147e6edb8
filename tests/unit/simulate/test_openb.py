# SPDX-License-Identifier: Apache-2.0
"""One seed of the figures in the docs, from the trace; all of them take minutes."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from nova_hpc_simulate import results
from nova_hpc_simulate.scenario import play_scenario, prepare_scenario

RECORD = Path(__file__).parents[3] / "docs/source/_static/simulation/whole-multigpu50.json"


@pytest.mark.parametrize(
    "policy", ["nova-spread", "nova-pack", pytest.param("nova-hpc", marks=pytest.mark.slow)]
)
def test_the_record_is_what_the_simulation_computes(captures: Path, policy: str) -> None:
    machines, tasks, _ = results.read_simulation_inputs(
        captures / "openb" / "openb_node_list_gpu_node.csv.gz",
        captures / "openb" / "openb_pod_list_multigpu50.csv.gz",
        None,
        "gpu",
    )
    scenario = prepare_scenario(machines, tasks, whole=True, demand=130, levels=0.0, added=0)
    assert (len(machines), scenario.capacity) == (1213, 6_212_000)
    outcome = attrs.asdict(play_scenario(scenario, policy, 0))
    del outcome["samples"]
    runs = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    (recorded,) = (run for run in runs if (run["policy"], run["seed"]) == (policy, 0))
    assert outcome == pytest.approx(recorded)
