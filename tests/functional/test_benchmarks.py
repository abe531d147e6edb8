# SPDX-License-Identifier: Apache-2.0
"""The benchmarks still run. What they measure is no matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import measure, report

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", sorted(command.PARTS))
def test_a_part_runs(part: str, tmp_path: Path) -> None:
    # In a process of its own: benchmarks have databases and patches of their own.
    out = tmp_path / "rows.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks", "--tiny", "--only", part, "--json", str(out)],
        check=True,
        timeout=600,
    )
    rows = json.loads(out.read_text())["rows"]
    assert rows
    assert all(row["low"] <= row["median"] <= row["high"] for row in rows)
    assert all(row["median"] > 0 for row in rows if row["samples"])


def test_the_table() -> None:
    rows = [
        measure.row("part", "met", "ms", [3.0, 1.0, 2.0], "under 2 ms", 2),
        measure.row("part", "missed", "ms", [3.0], "under 2 ms", 2),
    ]
    assert [row.reached for row in rows] == [True, False]
    text = report.to_rst(rows, {"date": "today"})
    assert ":date: today" in text
    assert "   * - met\n     - ms\n     - 1\n     - 2\n     - 3\n     - 3\n" in text
    assert '"median": 2.0' in report.to_json(rows, {})


def test_sides_are_measured_in_turn() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = measure.interleave({"a": lambda: side("a"), "b": lambda: side("b")}, 2)
    assert order == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
