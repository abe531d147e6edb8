# SPDX-License-Identifier: Apache-2.0
"""The race of server groups on a whole Nova: a small one, and what is written of the rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.group_cloud import report
from benchmarks.group_cloud.__main__ import WAYS, holds

OURS, STOCK = WAYS["single"][0], WAYS["stock"][0]


def _row(number: int, way: str, seconds: float, **more: Any) -> dict[str, Any]:
    counts = {"creates": 4, "active": 4, "refused": 0, "unknown": 0, "split": 0, "half": 0}
    rest = {"twice": 0, "undeleted": 0, "left": {}, "a create": seconds, "commit": "c0ffee"}
    return {"round": number, "way": way, **counts, **rest, **more}


def test_a_round_with_a_fault_does_not_hold() -> None:
    assert holds(_row(0, OURS, 1.0), roomy=True)
    for fault in (
        {"split": 1},
        {"twice": 1},
        {"undeleted": 1},
        {"unknown": 1},
        {"left": {"hpc-room": 1}},
        {"half": 1},
        {"active": 3},
        {"reap": "no"},
    ):
        assert not holds(_row(0, OURS, 1.0, **fault), roomy=True), fault
    # Stock Nova knows of no leaves.
    assert holds(_row(0, STOCK, 1.0, split=1), roomy=True)
    # Where there is no room for all some are refused.
    assert holds(_row(0, OURS, 1.0, active=3), roomy=False)


def test_ratios_are_those_of_one_round() -> None:
    rows = [_row(0, STOCK, 1.0, split=2), _row(1, STOCK, 4.0), _row(0, OURS, 2.0)]
    rows.append(_row(1, OURS, 2.0, left={"hpc-room": 1, "allocations": 2}))
    rows.append(_row(2, OURS, 9.0))
    text = report.races(rows, {OURS: STOCK}, "python -m race --rounds 3")
    table = [line.strip() for line in text.splitlines()]
    assert "rounds,2,3" in table
    assert "groups in more than one leaf,2,0" in table
    assert "records and allocations left after reaping,0,3" in table
    # Twice and half of stock Nova's; the third round has nobody to be compared with.
    assert '"of stock Nova\'s, mean",,1.25' in table
    assert "its 95 %,,0.50 to 2.00" in table
    assert ":commit: c0ffee" in table


@pytest.mark.slow
def test_a_small_race(tmp_path: Path) -> None:
    """Two schedulers over RabbitMQ: groups made by single creates stay in a leaf each."""
    rows = tmp_path / "rows.json"
    size = ("--leaves", "3", "--hosts", "3", "--groups", "2", "--members", "3")
    argv = (*size, "--schedulers", "2", "--rounds", "1", "--ways", "single", "--json", str(rows))
    names = {k: v for k, v in os.environ.items() if k != "OS_NOVA_DISABLE_EVENTLET_PATCHING"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.group_cloud", *argv]
    run = {"env": names, "cwd": Path(__file__).parents[2], "timeout": 900, "check": False}
    done = subprocess.run(command, capture_output=True, text=True, **run)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (row,) = report.known(rows)
    assert row["active"] == row["creates"] == 6
    assert row["split"] == row["twice"] == 0
    # Nothing is left to do.
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, **run)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "RESULT" not in again.stdout
    assert [json.loads(line) for line in rows.read_text().splitlines()] == [row]
