# SPDX-License-Identifier: Apache-2.0
"""The table of a run as a page of the documentation has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.functional.kills.faults import PHASES, Fault
from tests.functional.kills.run import Row

_COLUMNS: Final = (
    ("Step", "step"),
    ("Server after restart", "status"),
    ("A server that wants all", "meanwhile"),
    ("Devices after recovery", "devices"),
    ("Verdict", "verdict"),
)


def rst(rows: Sequence[Row], steps: int) -> str:
    """A sentence with the counts, and one table a phase; of other faults only the counts."""
    kills = [row for row in rows if row.fault == Fault.KILL.value]
    bad = sum(bool(row.complaints) for row in kills)
    found = Counter(row.phase for row in kills)
    places = [each.name for each in PHASES if found[each.name]]
    counts = ", ".join(f"{found[each]} of ``{each}``" for each in places)
    lines = [
        f"Killed at {len(kills)} of {steps} steps ({counts}):",
        f"{len(kills) - bad} times all was in order afterwards, {bad} times not.",
        "",
        *_faults([row for row in rows if row not in kills], steps),
    ]
    for phase in places:
        mine = sorted((row for row in kills if row.phase == phase), key=lambda row: row.number)
        lines += [
            f".. list-table:: Steps of ``{phase}``",
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


def _faults(rows: Sequence[Row], steps: int) -> list[str]:
    """A row a fault and phase, and what was not in order."""
    if not rows:
        return []
    tried = len({(row.phase, row.number) for row in rows})
    titles = ("Fault", "In a", "Steps", "In order", "Servers afterwards")
    lines = [
        f".. list-table:: Other faults, at {tried} of these {steps} steps",
        "   :header-rows: 1",
        "   :widths: 22 12 10 12 44",
        "",
        "   * - Fault",
        *(f"     - {title}" for title in titles[1:]),
    ]
    for fault in Fault:
        for phase in [each.name for each in PHASES]:
            mine = [row for row in rows if row.fault == fault.value and row.phase == phase]
            if not mine:
                continue
            shown = Counter(row.status for row in mine)
            well = sum(not row.complaints for row in mine)
            servers = ", ".join(f"{count} {status}" for status, count in shown.most_common())
            words = (phase, str(len(mine)), str(well), servers)
            lines += [f"   * - ``{fault.value}``", *(f"     - {word}" for word in words)]
    lines.append("")
    for row in rows:
        if row.complaints:
            lines.append(
                f"* ``{row.fault}``, {row.phase} {row.number}, ``{row.step}``: {row.verdict}"
            )
    return [*lines, ""]
