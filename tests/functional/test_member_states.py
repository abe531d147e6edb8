# SPDX-License-Identifier: Apache-2.0
"""Nova's own statuses, tasks and power states are those of the table for members of clusters."""

from __future__ import annotations

import inspect

import pytest
from nova.api.openstack import common
from nova.compute import api, power_state, task_states, vm_states
from nova.objects import fields

from nova_hpc_client.cluster.members import server_state
from nova_hpc_client.cluster.members.server_state import STATUSES, Standing

TASKS = (None, *fields.InstanceTaskState.ALL)


def test_every_status_of_nova_is_in_the_table() -> None:
    """A new status fails here: say what it means for a cluster."""
    shown = {word for words in common._STATE_MAP.values() for word in words.values()}
    assert shown | {"UNKNOWN"} == set(STATUSES)
    assert set(common._STATE_MAP) == set(fields.InstanceState.ALL)


@pytest.mark.parametrize("state", fields.InstanceState.ALL)
def test_only_an_active_server_runs(state: str) -> None:
    for task in TASKS:
        status = common.status_from_state(state, task)
        meaning = server_state.judge_server(status, task or "", power_state.RUNNING)
        runs = state == vm_states.ACTIVE and (task is None or task in server_state.RUNNING_TASKS)
        assert (meaning.standing is Standing.RUNS) == runs, (state, task)
        goes = state in (vm_states.DELETED, vm_states.SOFT_DELETED) or task in (
            task_states.DELETING,
            task_states.SOFT_DELETING,
        )
        assert (meaning.standing is Standing.LEAVES) == goes, (state, task)
        assert meaning.standing is not Standing.UNKNOWN, (state, task)


def test_words_are_nova_s() -> None:
    assert set(server_state.LEAVING_TASKS) | set(server_state.RUNNING_TASKS) <= set(TASKS)
    assert (server_state.RUNNING, server_state.PAUSED) == (power_state.RUNNING, power_state.PAUSED)
    for power in set(power_state.STATE_MAP) - {power_state.RUNNING}:
        assert server_state.judge_server("ACTIVE", "", power).standing is not Standing.RUNS


def test_statuses_in_which_metadata_changes() -> None:
    """Of a status that several states show, each one has to take it."""
    function, states = api.API.update_instance_metadata, None
    while function is not None and states is None:
        names = inspect.getclosurevars(function).nonlocals
        states = names.get("vm_state")
        function = getattr(function, "__wrapped__", None)
    assert states
    for state in fields.InstanceState.ALL:
        for task in TASKS:
            status = common.status_from_state(state, task)
            if state == vm_states.ERROR and status == "REBUILD":
                continue  # Nova refuses it, and the command says so.
            assert (status in server_state.CHANGEABLE) == (state in states), (state, task)
