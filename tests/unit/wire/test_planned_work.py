# SPDX-License-Identifier: Apache-2.0
"""The times of planned work, as tags that Nova accepts and that count on one host alone."""

from __future__ import annotations

import datetime
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.wire.planned_work import (
    PlannedWork,
    earliest_planned_time,
    format_planned_time,
    is_planned_time,
    read_planned_tags,
)

HOST, OTHER = "1f2e3d4c" + "0" * 48, "5f2e3d4c" + "0" * 48
MOMENTS = st.datetimes(timezones=st.just(datetime.UTC))
TIMES = MOMENTS.map(format_planned_time)
WORKS = st.builds(PlannedWork, TIMES, st.sampled_from(["device", HOST[:8], OTHER[:8]]))


@given(WORKS)
def test_each_tag_is_one_that_nova_accepts_and_is_read_again(work: PlannedWork) -> None:
    # nova/api/validation/parameter_types.py: tag; nova/objects/tag.py: MAX_TAG_LENGTH.
    assert re.fullmatch(r"[^,/]{1,60}", work.tag)
    assert read_planned_tags(["mine", work.tag, 7, None]) == (work,)
    assert work.message in work.tag


@given(MOMENTS, MOMENTS)
def test_texts_have_the_order_of_times(first: datetime.datetime, second: datetime.datetime) -> None:
    minutes = [moment.replace(second=0, microsecond=0) for moment in (first, second)]
    assert (minutes[0] < minutes[1]) == (format_planned_time(first) < format_planned_time(second))


def test_a_time_is_written_in_utc_and_rounded_down() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=1))
    moment = datetime.datetime(2026, 12, 4, 9, 0, 59, tzinfo=zone)
    assert format_planned_time(moment) == "2026-12-04T08:00Z"
    assert PlannedWork.on_host("2026-12-04T08:00Z", HOST).tag == (
        "hpc-planned=2026-12-04T08:00Z@1f2e3d4c"
    )


@pytest.mark.parametrize(
    "value",
    [
        *("", "2026-12-04T08:00Z", "2026-12-04T08:00Z@", "2026-12-04T08:00Z@1f2e3d4", "@device"),
        *("2026-13-04T08:00Z@device", "2026-02-30T08:00Z@device", "2026-12-04T24:00Z@device"),
        *("2026-12-04T08:00@device", "2026-12-04 08:00Z@device", "2026-12-04T08:00Z@host"),
        *("2026-12-04T08:00Z@1F2E3D4C", "2026-12-04T08:00Z@device\n", "0000-12-04T08:00Z@device"),
        "२०२६-12-04T08:00Z@device",
    ],
)
def test_malformed_tags_are_left_out(value: str) -> None:
    assert read_planned_tags([f"hpc-planned={value}"]) == ()


@given(st.text() | st.none() | st.integers())
def test_any_value_is_judged(value: object) -> None:
    assert not is_planned_time(value) or read_planned_tags([f"hpc-planned={value}@device"])


@given(st.lists(WORKS), st.sampled_from([HOST, OTHER, ""]))
def test_the_earliest_time_on_the_present_host_counts(
    works: list[PlannedWork], host_id: str
) -> None:
    times = [
        work.time
        for work in works
        if work.place == "device" or (host_id and work.place == host_id[:8])
    ]
    tags = [work.tag for work in works]
    assert earliest_planned_time(tags, host_id) == min(times, default="")
