# SPDX-License-Identifier: Apache-2.0
"""Writes the table of "Is it for you?" from the records of two benchmarks."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SELECTION = BENCHMARKS / "selection" / "RESULTS.rst"
REPLAY = BENCHMARKS / "replay" / "RESULTS.rst"
#: The question, and its sizes of a cloud, in hosts.
_QUESTION = "gpu:4,vf:4"
_HOSTS = ("100", "2000", "10000")


def read_rows(text: str) -> Iterator[list[str]]:
    """The rows of the first csv-table of a record, its header included."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(".. csv-table::"):
            break
    rows = []
    for line in lines:
        if line.startswith("   ") and not line.lstrip().startswith(":"):
            rows.append(line.strip())
        elif rows:
            break
    yield from csv.reader(rows)


def read_replay() -> dict[str, dict[str, str]]:
    """Results of the replayed day: name -> side ("stock" or "ours") -> value."""
    (_, first, _), *rows = read_rows(REPLAY.read_text(encoding="utf-8"))
    assert first == "stock Nova"
    return {name: {"stock": stock, "ours": ours} for name, stock, ours in rows}


def read_answers() -> dict[str, Mapping[str, str]]:
    """The row of whole answers for each size of a cloud in hosts."""
    header, *rows = read_rows(SELECTION.read_text(encoding="utf-8"))
    named = [dict(zip(header, row, strict=True)) for row in rows]
    return {each["hosts"]: each for each in named if each["asked for"] == _QUESTION}


def write_table() -> str:
    """The table as reStructuredText.

    :raises KeyError: a record lacks a row.
    """
    answers, day = read_answers(), read_replay()
    rows = [("", "nova-hpc", "stock Nova")]
    for hosts in _HOSTS:
        row = answers[hosts]
        what = f"{int(hosts):,} hosts, {row['samples']} samples"
        if len(rows) == 1:
            what = f"Answer of the scheduler for 4 GPUs and 4 VFs: {what}"
        rows.append((what, *(_format_seconds(row[side]) for side in ("ours, s", "stock, s"))))
    servers, all_hosts = (int(day[name]["ours"]) for name in ("servers asked for", "hosts"))
    for name, what in (
        (
            "refused",
            f"A day of {servers:,} servers on {all_hosts:,} hosts of 8 GPUs, one seed: "
            "servers refused",
        ),
        ("claims that Placement turned down", "Claims that Placement turned down"),
        (
            "of these over two switches",
            f"Pairs of GPUs over two switches at the end, of {day['pairs at the end']['ours']}",
        ),
    ):
        rows.append((what, *(f"{int(day[name][side]):,}" for side in ("ours", "stock"))))
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 60 20 20", ""]
    for row in rows:
        lines += [
            f"   {'*' if not column else ' '} - {cell}".rstrip() for column, cell in enumerate(row)
        ]
    return "\n".join(lines) + "\n"


def _format_seconds(text: str) -> str:
    value = float(text)
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


def write_file(target: Path) -> None:
    """Write the table, if it has changed."""
    text = write_table()
    target.parent.mkdir(exist_ok=True)
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")
