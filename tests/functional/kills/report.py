# SPDX-License-Identifier: Apache-2.0
"""The table of a run as a page of the documentation has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.functional.kills.run import PHASES, Row

_COLUMNS: Final = (
    ("Step", "step"),
    ("Server after restart", "status"),
    ("A server that wants all", "meanwhile"),
    ("Devices after recovery", "devices"),
    ("Verdict", "verdict"),
)


def rst(rows: Sequence[Row], steps: int) -> str:
    """A sentence with the counts, and one table a phase."""
    bad = sum(bool(row.complaints) for row in rows)
    found = Counter(row.phase for row in rows)
    counts = " and ".join(f"{found[phase]} of a {phase}" for phase in PHASES)
    lines = [
        f"Killed at {len(rows)} of {steps} steps, {counts}: {len(rows) - bad} times all was",
        f"in order afterwards, {bad} times not.",
        "",
    ]
    for phase in PHASES:
        mine = sorted((row for row in rows if row.phase == phase), key=lambda row: row.number)
        if not mine:
            continue
        lines += [
            f".. list-table:: Steps of a {phase}",
            "   :header-rows: 1",
            "   :widths: 5 47 12 12 14 10",
            "",
            "   * - No.",
            *(f"     - {title}" for title, _ in _COLUMNS),
        ]
        for row in mine:
            lines.append(f"   * - {row.number}")
            for _, name in _COLUMNS:
                text = str(getattr(row, name))
                lines.append(f"     - ``{text}``" if name == "step" else f"     - {text}")
        lines.append("")
    return "\n".join(lines)
