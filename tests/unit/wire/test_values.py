# SPDX-License-Identifier: Apache-2.0
"""Values of JSON by their very type, and the parts of the ledger that are made of them."""

from __future__ import annotations

import json

import pytest

from nova_hpc.wire import announcements, reservation, values
from nova_hpc.wire.announcements import Accepted, Maintenance, PlannedDeviceWork

#: Of these no entry is made, whatever they stand for.
WRONG = [None, True, "7", [7], {"7": 7}]
#: What JSON can hold, and a float cannot.
HUGE = 10**400


@pytest.mark.parametrize("wrong", [*WRONG, HUGE, -HUGE, float("nan"), float("inf")])
def test_what_is_no_number_is_refused(wrong):
    with pytest.raises(TypeError):
        values.require_finite(wrong)


@pytest.mark.parametrize("wrong", [*WRONG, 7.0, -1])
def test_what_is_no_count_is_refused(wrong):
    with pytest.raises(TypeError):
        values.require_count(wrong)


def test_what_is_right_stays_as_it_is():
    assert (values.require_finite(7), values.require_finite(-0.5)) == (7.0, -0.5)
    assert values.require_count(HUGE) == HUGE
    assert values.require_type("a", str) == values.require_type_or_none("a", str) == "a"
    assert values.require_type_or_none(None, str) is None
    with pytest.raises(TypeError):
        values.require_type(True, int)


@pytest.mark.parametrize("wrong", [*WRONG[1:], HUGE, float("nan")])
def test_a_damaged_time_is_none(wrong):
    right = {"start": 1.0, "end": 2, "reason": "x" * 2000, "models": ["10de:2330"]}
    problems: list[str] = []
    assert announcements.read_maintenance(json.loads(json.dumps(right)), problems) == Maintenance(
        1.0, 2.0, "x" * 1000, ("10de:2330",)
    )
    assert problems == []
    assert announcements.read_maintenance({**right, "end": wrong}, problems) is None
    assert problems == ["the maintenance in the ledger is damaged: none is announced"]


@pytest.mark.parametrize("wrong", [7, [7], [{}], [{"model": 1, "change": "a", "reason": ""}]])
def test_damaged_changes_are_none(wrong):
    problems: list[str] = []
    right = [{"model": "a", "change": "b", "reason": "c"}]
    assert announcements.read_accepted_changes(right, problems) == (Accepted("a", "b", "c"),)
    assert problems == []
    assert announcements.read_accepted_changes(wrong, problems) == ()
    assert problems == ["the accepted changes in the ledger are damaged: none counts"]


@pytest.mark.parametrize(
    "change", [{"gone": HUGE}, {"gone": True}, {"total": -1}, {"ours": "1"}, {"uuid": 3}]
)
def test_a_damaged_reservation_is_lost_and_named(change):
    right = {"uuid": "u", "class": "CUSTOM_GPU", "total": 1, "ours": 1}
    problems: list[str] = []
    body = {"0000:41:00.0": right, "0000:42:00.0": {**right, **change}}
    assert list(reservation.read_reservations(body, problems)) == ["0000:41:00.0"]
    assert problems == ["0000:42:00.0: the reservations of its provider cannot be read"]


@pytest.mark.parametrize("wrong", [*WRONG[1:], "soon", "2026-13-04T08:00Z"])
def test_a_damaged_time_of_planned_work_is_left_out(wrong):
    problems: list[str] = []
    right = {"0000:41:00.0": "2026-12-04T08:00Z"}
    body = {"devices": {**right, "0000:42:00.0": wrong}, "announced": {}}
    assert announcements.read_planned_work(body, problems) == PlannedDeviceWork(right)
    assert problems == ["planned work number 1 in the ledger is damaged"]
    bad = {"devices": {"gpu": "2026-12-04T08:00Z"}}
    assert announcements.read_planned_work(bad, problems) == PlannedDeviceWork()
    for part in ([], {"announced": 7}):
        assert announcements.read_planned_work(part, problems) == PlannedDeviceWork()
    assert problems[1:] == [
        "planned work number 0 in the ledger is damaged",
        *["the planned work in the ledger is damaged"] * 2,
    ]
