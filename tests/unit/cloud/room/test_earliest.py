# SPDX-License-Identifier: Apache-2.0
"""The earliest time at which a request fits, against all times one after the other."""

from __future__ import annotations

import datetime
import os

import attrs
import pytest

from nova_hpc_tools.cloud.room.end_times import (
    find_clock_problem,
    read_end_times,
    read_time_of_snapshot,
)
from nova_hpc_tools.snapshot import Snapshot, SnapshotError, SnapshotLease
from tests.unit.cloud.room import random_clouds as drawn
from tests.unit.cloud.room import trials

EXAMPLES = int(os.environ.get("NOVA_HPC_EXAMPLES", "200"))
START = datetime.datetime.fromisoformat(drawn.TAKEN)


@pytest.mark.parametrize("start", range(4))
def test_no_earlier_time_would_do(start: int) -> None:
    for seed in range(start, EXAMPLES, 4):
        trial = trials.try_time(seed)
        assert not trial.fault, trial


def one_server(**words: object) -> Snapshot:
    """A cloud with one server that has these words of its owner."""
    cloud, _, _ = drawn.draw_cloud(1)
    return attrs.evolve(cloud, servers=(attrs.evolve(cloud.servers[0], **words),))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("soon", "hpc:until is unknown: 'soon' is no time like 2026-12-04T08:00Z"),
        ("2026-01-01T09:00", "has no time zone: add Z for UTC"),
        ("2026-02-30T09:00Z", "is no time like"),
        ("0001-01-01T00:00+14:00", "is no time like"),
        ("2025-12-31T23:00Z", "hpc:until is overdue: the server should have ended at 2025-12-31"),
        ("2026-01-01T00:00Z", "is overdue"),
    ],
)
def test_a_time_that_cannot_be_used_is_reported(text: str, says: str) -> None:
    found = read_end_times(one_server(until=text))
    assert found.ends == ()
    (problem,) = found.problems
    assert problem.startswith("server s0 (s0): ")
    assert says in problem


def test_the_first_end_counts() -> None:
    cloud = one_server(until="2026-01-01T09:00+02:00")
    cloud = attrs.evolve(
        cloud,
        leases=(
            SnapshotLease("late", "2026-01-01T10:00Z", ("s0", "unknown")),
            SnapshotLease("first", "2026-01-01T06:00Z", ("s0",)),
            SnapshotLease("bad", "tomorrow", ("s0",)),
        ),
    )
    found = read_end_times(cloud)
    (end,) = found.ends
    assert (end.source, end.time.hour) == ("lease first", 6)
    assert [problem.split(" is ")[0] for problem in found.problems] == ["server s0 (s0): lease bad"]


def test_clocks_are_compared() -> None:
    with pytest.raises(SnapshotError, match=r"has no time zone: .*take the snapshot again"):
        read_time_of_snapshot(attrs.evolve(one_server(), taken="2026-01-01T00:00:00"))
    hour = datetime.timedelta(hours=1)
    assert find_clock_problem(START, START + hour / 2) == ""
    assert "is 50 hours old" in find_clock_problem(START, START + 50 * hour)
    assert "from the future" in find_clock_problem(START, START - 2 * hour)
