# SPDX-License-Identifier: Apache-2.0
"""The tags that ``nova-hpc drain --at`` writes and removes, and the times that it takes."""

from __future__ import annotations

import argparse
import datetime
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.wire.planned_work import earliest_planned_time
from nova_hpc_tools.cloud import drain_command
from nova_hpc_tools.cloud.announcement import decide_tags
from nova_hpc_tools.cloud.drain_api import DrainServer
from nova_hpc_tools.planned_time import parse_planned_time

HOST = "1f2e3d4c" + "0" * 48
TIMES = [f"2026-12-0{day}T08:00Z" for day in range(1, 4)]
PLACES = ("device", HOST[:8], "99999999")
TAGS = [
    *("mine", "hpc-fault=link", "hpc-planned=soon"),
    *(f"hpc-planned={time}@{place}" for time in TIMES for place in PLACES),
]


def a_server(*tags: str) -> DrainServer:
    return DrainServer(
        *("u", "n", "ACTIVE", "", "node1", "f"), extra_specs={}, host_id=HOST, tags=tags
    )


@given(st.sets(st.sampled_from(TAGS)), st.sampled_from(["", *TIMES]))
def test_one_announcement_of_the_host_is_left_and_all_other_tags(tags: set[str], time: str) -> None:
    change = decide_tags(a_server(*tags), time)
    after = (tags - {*change.remove}) | {*change.add}
    assert set(change.remove) <= tags
    assert not set(change.add) & tags
    ours = {tag for tag in after if tag.startswith("hpc-planned=2") and "@device" not in tag}
    assert ours == ({f"hpc-planned={time}@1f2e3d4c"} if time else set())
    assert {tag for tag in tags if "@" not in tag or "@device" in tag} == after - ours
    assert decide_tags(a_server(*after), time).add == ()
    if time and not any("@device" in tag for tag in tags):
        assert earliest_planned_time(after, HOST) == time


def test_a_time_is_read_with_its_zone() -> None:
    moment = datetime.datetime.now(datetime.UTC).replace(microsecond=0, tzinfo=None)
    moment += datetime.timedelta(days=3)
    for zone, hours in (("Z", 0), ("+00:00", 0), ("-05:00", 5), ("+05:30", -5.5)):
        expected = moment + datetime.timedelta(hours=hours)
        assert parse_planned_time(f"{moment.isoformat()}{zone}") == f"{expected.isoformat()[:16]}Z"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("soon", "no time like 2026-12-04T08:00Z"),
        ("", "no time like"),
        ("2h", "no time like"),
        ("2999-12-04T08:00", "has no time zone: add Z for UTC"),
        ("2026-01-01", "has no time zone"),
        ("2026-01-01T00:00Z", "is in the past"),
        ("0001-01-01T00:00+23:59", "is in the past"),
        ("2999-12-04T08:00Z", "more than a year ahead"),
        ("9999-12-31T23:59-23:59", "more than a year ahead"),
    ],
)
def test_other_times_are_refused_with_the_cure(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=reason):
        parse_planned_time(text)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--at", "2999-12-04T08:00"], "argument --at: '2999-12-04T08:00' has no time zone"),
        (["--no-at", "--yes"], "not allowed with argument"),
        (["--yes", "--no-at"], "not allowed with argument"),
    ],
)
def test_an_announcement_is_no_move(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = drain_command.Drain(mock.Mock(), None).get_parser("nova-hpc drain")
    with pytest.raises(SystemExit):
        parser.parse_args(["node1", *words])
    assert reason in capsys.readouterr().err
