# SPDX-License-Identifier: Apache-2.0
"""Which owners are told of planned work: each once, and none of a time that has passed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.watch.planned import (
    PlannedChange,
    decide_planned_changes,
    find_planned_times,
)

DAYS = [f"2026-12-0{day}T08:00Z" for day in range(1, 6)]
NOW = "2026-12-03T07:59Z"
SERVERS = ("one", "two", "three")
TIMES = st.dictionaries(st.sampled_from(SERVERS), st.frozensets(st.sampled_from(DAYS), min_size=1))
TOLD = st.dictionaries(st.sampled_from(SERVERS), st.sampled_from(DAYS))


def test_the_new_time_comes_before_the_end_of_the_old_one() -> None:
    assert decide_planned_changes({"one": frozenset({DAYS[3]})}, {"one": DAYS[4]}, NOW) == [
        PlannedChange("one", DAYS[3], present=True),
        PlannedChange("one", DAYS[4], present=False),
    ]


def test_a_passed_time_stays_told_and_is_told_to_no_other() -> None:
    passed = {"one": frozenset({DAYS[0]}), "two": frozenset({DAYS[0]})}
    assert decide_planned_changes(passed, {"one": DAYS[0]}, NOW) == []


@given(TIMES, TOLD)
def test_afterwards_each_owner_knows_the_earliest_time(
    times: dict[str, frozenset[str]], told: dict[str, str]
) -> None:
    tags = {server: {time} for server, time in told.items()}
    for change in decide_planned_changes(times, told, NOW):
        present = tags.setdefault(change.server, set())
        assert (change.time in present) != change.present
        (present.add if change.present else present.remove)(change.time)
        assert not change.present or change.time > NOW
    for server in SERVERS:
        allowed = [time for time in times.get(server, ()) if time > NOW or told.get(server) == time]
        assert tags.get(server, set()) == set(sorted(allowed)[:1])
    after = {server: min(present) for server, present in tags.items() if present}
    assert decide_planned_changes(times, after, NOW) == []


def test_work_on_a_physical_function_concerns_its_virtual_functions() -> None:
    users = {"vf0": "one", "vf1": "two", "gpu": "two", "other": "three"}
    planned = {"pf": DAYS[3], "gpu": DAYS[2], "free": DAYS[1]}
    parents = {"vf0": "pf", "vf1": "pf"}
    assert find_planned_times(planned, users, parents.get) == {
        "one": {DAYS[3]},
        "two": {DAYS[2], DAYS[3]},
    }
