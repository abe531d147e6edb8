# SPDX-License-Identifier: Apache-2.0
"""The table: for people, as JSON, and as the committed page."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row

_HEADINGS = ("what", "unit", "min", "median", "max", "samples", "to reach", "reached", "remark")


def provenance(command: str) -> dict[str, str]:
    """The origin of the numbers: command, date, commit and machine."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "load at the end (1 min)": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
        "Nova": _version("nova"),
        "Placement": _version("openstack-placement"),
    }


def show(rows: Sequence[Row], where: Mapping[str, str]) -> None:
    """Print the table."""
    console = Console(width=None if os.isatty(1) else 180)
    for part, members in _parts(rows).items():
        table = Table(title=part, title_justify="left")
        for heading in _HEADINGS:
            table.add_column(heading, justify="right" if heading in _HEADINGS[2:6] else "left")
        for one in members:
            table.add_row(*_cells(one))
        console.print(table)
    for name, value in where.items():
        console.print(f"{name}: {value}", highlight=False)


def to_json(rows: Sequence[Row], where: Mapping[str, str]) -> str:
    """The rows and the provenance."""
    document = {"provenance": dict(where), "rows": [attrs.asdict(one) for one in rows]}
    return json.dumps(document, indent=1) + "\n"


def to_rst(rows: Sequence[Row], where: Mapping[str, str]) -> str:
    """The page; the documentation includes it."""
    lines = [".. Written by: python -m benchmarks --write. Do not edit.", ""]
    lines += [f":{name}: {value}" for name, value in where.items()]
    for part, members in _parts(rows).items():
        lines += ["", f".. list-table:: {part}", "   :header-rows: 1", ""]
        for cells in (_HEADINGS, *map(_cells, members)):
            lines += [
                f"   {'* -' if index == 0 else '  -'} {cell}".rstrip()
                for index, cell in enumerate(cells)
            ]
    return "\n".join(lines) + "\n"


def _parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for one in rows:
        found.setdefault(one.part, []).append(one)
    return found


def _cells(one: Row) -> tuple[str, ...]:
    numbers = [_number(value) if one.samples else "" for value in (one.low, one.median, one.high)]
    reached = {None: "", True: "yes", False: "no"}[one.reached]
    return (one.what, one.unit, *numbers, str(one.samples or ""), one.goal, reached, one.note)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    top = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=top, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + (", with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
