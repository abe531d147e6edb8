# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation about rounds and about kills, from the rows of their runs."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import measure
from benchmarks.report import provenance

RACES: Final = Path(__file__).with_name("RESULTS.rst")
KILLS: Final = Path(__file__).with_name("KILLS.rst")

Row = Mapping[str, Any]

#: Title -> function for the number of a round; the rounds of one way are added.
_SUMS: Final[Mapping[str, Callable[[Row], int]]] = {
    "servers asked for": lambda row: row["creates"],
    "active": lambda row: row["active"],
    "refused": lambda row: row["refused"],
    "groups in more than one leaf": lambda row: row["split"],
    "groups of which only a part runs": lambda row: row["half"],
    "hosts with two servers": lambda row: row["twice"],
    "servers left after deletion": lambda row: row["undeleted"],
    "records and allocations left after reaping": lambda row: sum(row["left"].values()),
}


def known(path: Path | None) -> list[dict[str, Any]]:
    """The rows of a file with one a line; [] if the file does not exist yet."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def commit() -> str:
    """The commit of the running tree."""
    return provenance("")["commit"]


def races(rows: Sequence[Row], against: Mapping[str, str], command: str) -> str:
    """The page about the rounds.

    :param against: title of a way -> title of stock Nova's way, by whose times its own are divided.
    """
    ways = list(dict.fromkeys(str(row["way"]) for row in rows))
    of = {way: {row["round"]: row for row in rows if row["way"] == way} for way in ways}
    lines = [["", *ways], ["rounds", *(str(len(of[way])) for way in ways)]]
    for title, number in _SUMS.items():
        lines.append([title, *(str(sum(map(number, of[way].values()))) for way in ways)])
    for title, key in (("seconds a server, mean of the rounds", "a create"),):
        lines.append(
            [title, *(f"{statistics.mean(x[key] for x in of[way].values()):.3f}" for way in ways)]
        )
    ratios = {
        way: _ratios(of[way], of[against[way]])
        for way in ways
        if way in against and against[way] in of
    }
    lines.append(["of stock Nova's, mean", *(_mean(ratios.get(way)) for way in ways)])
    lines.append(["its 95 %", *(_spread(ratios.get(way)) for way in ways)])
    return _page(lines, rows, command)


def _ratios(mine: Mapping[int, Row], theirs: Mapping[int, Row]) -> list[float]:
    return [mine[at]["a create"] / theirs[at]["a create"] for at in mine if at in theirs]


def _mean(values: Sequence[float] | None) -> str:
    return f"{statistics.mean(values):.2f}" if values else ""


def _spread(values: Sequence[float] | None) -> str:
    low, high = measure.mean_interval(values) if values else (0.0, 0.0)
    return f"{low:.2f} to {high:.2f}" if values and len(values) > 1 else ""


def kills(rows: Sequence[Row], command: str) -> str:
    """The page about the faults of schedulers and services."""
    lines = [["fault", "first member", "members that run", "leaves", "left"], *_kill_lines(rows)]
    good = sum(bool(row["good"]) for row in rows)
    page = _page(lines, rows, command)
    return f"{page}\n{len(rows)} faults, {good} of them as they have to be.\n"


def _kill_lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        single = bool(row["group"])
        yield [
            str(row["name"]) if row["happened"] else f"{row['name']} (it never happened)",
            str(row["seen"]) or "unknown",
            f"{len(row['members'])} of 2" if single else "",
            str(len(set(row["leaves"]))) if single else "",
            str(row["stays"] or row["fault"] if not single else row["stays"]) or "nothing",
        ]


def _page(lines: Sequence[Sequence[str]], rows: Sequence[Row], command: str) -> str:
    where = dict(provenance(command))
    commits = dict.fromkeys(str(row["commit"]) for row in rows if row.get("commit"))
    where["commit"] = ", ".join(commits) or where["commit"]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return "\n".join(
        [
            f".. Written by: {command.partition(' --')[0]} --write. Do not edit.",
            "",
            *(f":{name}: {value}" for name, value in where.items()),
            "",
            ".. csv-table::",
            "   :header-rows: 1",
            "",
            *(f"   {line}" for line in text.getvalue().splitlines()),
            "",
        ]
    )
