# SPDX-License-Identifier: Apache-2.0
"""Run trials or timings into a folder, and write the tables of a folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from benchmarks.report import provenance
from benchmarks.room import speed, trials
from benchmarks.room.speed import SpeedRow

RESULTS = Path(__file__).with_name("RESULTS.rst")
_SPEED = "speed.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if pieces are left or an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.room")
    parser.add_argument("action", choices=["trials", "speed", "write"])
    parser.add_argument("folder", type=Path, help="of the measurements")
    parser.add_argument("--clouds", type=int, default=10_000, help="small random ones")
    parser.add_argument("--kinds", nargs="+", choices=list(trials.KINDS), default=trials.KINDS)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no piece after these")
    parser.add_argument("--hosts", type=int, default=2_000, help="of the large cloud")
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.action == "trials":
        done = trials.run_pieces(options.folder, options.kinds, options.clouds, options.minutes)
        return 0 if done else 1
    if options.action == "speed":
        facts, rows = speed.measure_speed(options.folder, options.hosts)
        where = provenance("python -m benchmarks.room speed")
        text = json.dumps(
            {"where": where, "facts": facts, "rows": [attrs.asdict(row) for row in rows]}, indent=1
        )
        (options.folder / _SPEED).write_text(text)
        return 0
    found = trials.read_trials(options.folder)
    RESULTS.write_text("\n".join(_format_results(options.folder, found)) + "\n")
    return int(any(trial.fault for rows in found.values() for trial in rows))


def _format_results(folder: Path, found: Mapping[str, Sequence[trials.RoomTrial]]) -> Iterator[str]:
    yield ".. Written by: python -m benchmarks.room write FOLDER. Do not edit."
    path = folder / _SPEED
    if path.exists():
        document = json.loads(path.read_text())
        yield ""
        yield from (f":{name}: {value}" for name, value in document["where"].items())
        yield from (f":{name} hosts, s: {value:.1f}" for name, value in document["facts"].items())
        rows = [SpeedRow(**row) for row in document["rows"]]
        yield from _format_table(list(speed.tabulate_speed(rows)))
    columns = [dict(trials.tabulate_trials(kind, rows)) for kind, rows in found.items()]
    titles = list(dict.fromkeys(title for column in columns for title in column))
    if found:
        yield from _format_table(
            [
                ["", *found],
                *([title, *(column.get(title, "") for column in columns)] for title in titles),
            ]
        )


def _format_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from ("", ".. csv-table::", "   :header-rows: 1", "")
    for row in rows:
        yield "   " + ",".join(f'"{cell}"' for cell in row)


if __name__ == "__main__":
    sys.exit(main())
