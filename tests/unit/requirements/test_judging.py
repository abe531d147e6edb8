# SPDX-License-Identifier: Apache-2.0
"""Verdicts: met, not met and not known for each id, and none for what makes no sense."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_requirements import judging, trial
from nova_hpc_requirements.catalog import REQUIREMENTS, RequirementRights
from nova_hpc_requirements.judging import choose_requirements, judge_requirement
from nova_hpc_requirements.step_context import StepContext, StepOptions
from nova_hpc_requirements.step_names import EVIDENCE_NAMES
from nova_hpc_requirements.verdicts import RequirementEvidence, RequirementState, StepEvidence
from tests.unit.requirements.cases import CHANGES, GOOD, build_evidence, change_output

BY_ID = {item.id: item for item in REQUIREMENTS}
#: Nobody has what they ask for, or it is not the cloud's.
NEVER_MET = {"CAP05-01", "VMAAS12-01"}
#: Where there is nothing that could be wrong about it.
NEVER_WRONG = {"VMAAS12-01", "CNP06-03", "NET02-02"}


def test_the_table_is_whole():
    # The suite's 19 ids of VMs, and those that the project answers beside them.
    assert len(BY_ID) == len(REQUIREMENTS) == 32
    assert set(BY_ID) == {*judging._JUDGES, *judging.OUTSIDE}
    assert {step for item in REQUIREMENTS for step in item.steps} <= set(EVIDENCE_NAMES)
    for item in REQUIREMENTS:
        assert item.steps or item.rights is RequirementRights.NOBODY
        assert "{" not in item.command, item.command


@pytest.mark.parametrize("number", BY_ID)
def test_what_meets_everything(number):
    verdict = judge_requirement(BY_ID[number], build_evidence())
    expected = {"CAP05-01": "not met", "VMAAS12-01": "not ours"}.get(number, "met")
    assert verdict.state == expected, verdict
    assert verdict.found


@pytest.mark.parametrize(
    ("number", "step", "path", "value", "state", "part"),
    CHANGES,
    ids=[f"{change[0]}-{'.'.join(map(str, change[2]))}-{change[4]}" for change in CHANGES],
)
def test_what_one_change_makes_of_it(number, step, path, value, state, part):
    verdict = judge_requirement(BY_ID[number], build_evidence(change_output(step, path, value)))
    assert verdict.state == state, verdict
    assert part in verdict.found, verdict
    assert verdict.cure or state == "not known", verdict


def test_each_id_has_each_state():
    states = {(change[0], change[4]) for change in CHANGES}
    states |= {
        (number, "not known")
        for number in BY_ID
        if judge_requirement(BY_ID[number], RequirementEvidence()).state == "not known"
    }
    for number in BY_ID:
        assert ((number, "not known") in states) is (number != "VMAAS12-01"), number
        assert ((number, "not met") in states) is (number not in NEVER_WRONG), number


@pytest.mark.parametrize("number", sorted(set(BY_ID) - {"VMAAS12-01"}))
def test_without_a_step_nothing_is_met(number):
    for step in BY_ID[number].steps:
        outputs = {name: value for name, value in GOOD.items() if name != step}
        optional = number in ("VMAAS06-01",) and step == "describe_instance"
        state = judge_requirement(BY_ID[number], build_evidence(outputs)).state
        assert state == "met" if optional else state == "not known", step


def test_the_reason_of_a_step_is_the_reason():
    evidence = RequirementEvidence({"launch_instance": StepEvidence(reason="no flavor x")})
    verdict = judge_requirement(BY_ID["CNP01-09"], evidence)
    assert (verdict.state, verdict.found) == ("not known", "no flavor x")
    assert verdict.cure == BY_ID["CNP01-09"].command


def test_the_console_says_that_a_machine_started_anew():
    outputs = change_output("reboot_instance", ("reboot_confirmed",), None)
    outputs["reboot_instance"]["console_restarted"] = True
    assert judge_requirement(BY_ID["CNP01-13"], build_evidence(outputs)).state == "met"


def test_a_guest_that_wrote_since_has_started():
    outputs = change_output("start_instance", ("ssh_ready",), False)
    assert judge_requirement(BY_ID["CNP01-15"], build_evidence(outputs)).state == "met"
    outputs["start_instance"]["console_length"] = 0
    assert judge_requirement(BY_ID["CNP01-15"], build_evidence(outputs)).state == "not known"


def test_text_of_others_is_harmless():
    outputs = change_output("launch_instance", ("state",), "up\x1b[2J\nmet" + "x" * 1000)
    verdict = judge_requirement(BY_ID["CNP01-09"], build_evidence(outputs))
    assert "\x1b" not in verdict.found
    assert "\n" not in verdict.found
    assert len(verdict.found) < 500


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, dict | list) else ():
        if isinstance(inner, dict | list):
            paths += _list_paths(inner, (*path, key))
        else:
            paths.append((*path, key))
    return paths


PATHS = [(step, path) for step, output in GOOD.items() for path in _list_paths(output)]


@given(st.sampled_from(PATHS), _JSON)
def test_whatever_evidence_says_there_is_a_verdict(place, value):
    outputs = change_output(*place, value)
    for item in REQUIREMENTS:
        verdict = judge_requirement(item, build_evidence(outputs))
        assert isinstance(verdict.state, RequirementState)
        if place[1] == ("success",) and value is False and place[0] in item.steps[:1]:
            assert verdict.state != "met"


@given(st.dictionaries(st.sampled_from(EVIDENCE_NAMES), st.dictionaries(st.text(), _JSON)))
def test_garbage_meets_nothing(outputs):
    for item in REQUIREMENTS:
        assert judge_requirement(item, build_evidence(outputs)).state != "met"


def test_evidence_is_not_changed_by_judging():
    before = copy.deepcopy(GOOD)
    for item in REQUIREMENTS:
        judge_requirement(item, build_evidence())
    assert before == GOOD


def test_ids_are_chosen_in_the_order_of_the_table():
    chosen = choose_requirements(["net01-01", " CNP01-09 "])
    assert [item.id for item in chosen] == ["CNP01-09", "NET01-01"]
    assert choose_requirements([]) == REQUIREMENTS
    with pytest.raises(
        judging.UnknownRequirementError, match=r"id XX\\u001b; this project answers"
    ):
        choose_requirements(["xx\x1b"])


def test_a_guest_that_prints_no_report_says_why(monkeypatch):
    output = {"success": True, "guest_check_error": "nova-hpc-guest: this machine has none"}
    monkeypatch.setattr(trial, "run_step", lambda *_: StepEvidence(output))
    context = StepContext(StepOptions(server="mine"), lambda: None)
    evidence = trial.gather_evidence(("describe_instance",), context, {}, False)
    verdict = judge_requirement(BY_ID["VMAAS06-01"], evidence)
    assert verdict.state is RequirementState.UNKNOWN
    assert "missing (nova-hpc-guest: this machine has none): hand in" in verdict.found


@pytest.mark.parametrize(
    ("source", "state"),
    [
        ("address", "met"),
        ("device", "met"),
        (None, "not known"),
        ("other", "not met"),
        ([], "not met"),
    ],
)
def test_where_metadata_is_from(source, state):
    guest = {**GOOD["describe_instance"]["guest"], "metadata_http": None}
    evidence = RequirementEvidence(
        {"describe_instance": StepEvidence({"guest": {**guest, "metadata_source": source}})}
    )
    assert judge_requirement(BY_ID["BOOT02-02"], evidence).state.value == state
