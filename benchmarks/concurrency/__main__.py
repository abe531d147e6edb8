# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.concurrency``: run the races and print the table."""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import signal
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.concurrency.model import PLACED, VARIANTS, Cloud, Create, Tally
from benchmarks.concurrency.race import Plan, runner
from benchmarks.concurrency.stage import TRIES
from benchmarks.report import provenance

RESULTS = Path(__file__).with_name("RESULTS.rst")
COLUMNS = (
    ("schedulers", "variant"),
    ("workers", "workers"),
    ("GPUs each", "gpus"),
    ("creates", "creates"),
    ("placed", "placed"),
    ("given twice", "given_twice"),
    ("clean NoValidHost", "refused"),
    ("other errors", "broken"),
    ("spurious", "spurious"),
    ("lost claims", "lost_claims"),
    ("refused by nodes", "node_refusals"),
    ("scattered", "scattered"),
    ("devices in use after repeating", "filled"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0 if each race fulfils :func:`holds`."""
    options = _options(argv)
    # SIGTERM becomes an exit, so that the started processes end with the command.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    cloud = Cloud(hosts=options.hosts, switches=options.switches, gpus=options.gpus_per_switch)
    tallies: list[Tally] = []
    console = Console(width=options.width)
    with runner(cloud, options.placement_tries) as running:
        for gpus in options.gpus:
            for workers in options.workers:
                for _ in range(options.rounds):
                    for name in options.variants:
                        plan = Plan(cloud, workers, options.threads, gpus, options.demand)
                        tally, creates = running.run(VARIANTS[name], plan)
                        tallies.append(tally)
                        _explain(tally, creates)
                        print(_line(tally), file=sys.stderr, flush=True)
                        if options.json:
                            _save(Path(options.json), tallies)
        if options.logs:
            shutil.copytree(running.made.logs, options.logs, dirs_exist_ok=True)
    console.print(_table(tallies))
    if options.write:
        words = argv if argv is not None else sys.argv[1:]
        where = provenance(" ".join(["python -m benchmarks.concurrency", *words]))
        RESULTS.write_text(_rst(tallies, where))
    return 0 if all(holds(each) for each in tallies) else 1


def _save(path: Path, tallies: Sequence[Tally]) -> None:
    rows = [attrs.asdict(each) | {"per_second": each.rate} for each in tallies]
    path.write_text(json.dumps(rows, indent=1) + "\n")


def holds(tally: Tally) -> bool:
    """Whether a race had no error; this must be true for stock Nova, too."""
    return (
        tally.given_twice == 0
        and tally.broken == 0
        and tally.node_refusals == 0
        and tally.placed + tally.refused == tally.creates
        and tally.filled == tally.devices // tally.gpus * tally.gpus
    )


def _explain(tally: Tally, creates: Sequence[Create]) -> None:
    texts = {each.text for each in creates if each.outcome != PLACED}
    for text in sorted(texts)[:3]:
        print(f"    {text[:2000]}", file=sys.stderr)


def _line(tally: Tally) -> str:
    return (
        f"{tally.variant}, {tally.workers} workers: {tally.placed} of {tally.creates} placed, "
        f"{tally.spurious} spurious, {tally.lost_claims} lost claims, {tally.filled} of "
        f"{tally.devices} in use, {tally.seconds:.1f} s"
    )


def _rows(tallies: Sequence[Tally]) -> Iterator[list[str]]:
    """The cells of each race, the headings first."""
    yield [*(title for title, _ in COLUMNS), "seconds", "creates/s"]
    for each in tallies:
        cells = [str(getattr(each, name)) for _, name in COLUMNS]
        yield [*cells, f"{each.seconds:.1f}", f"{each.rate:.2f}"]


def _table(tallies: Sequence[Tally]) -> Table:
    headings, *rows = _rows(tallies)
    table = Table(title="Several schedulers race for the last devices")
    for title in headings:
        table.add_column(title, justify="left" if title == "schedulers" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _rst(tallies: Sequence[Tally], where: Mapping[str, str]) -> str:
    """The page that the documentation includes, with a line for each column, as there are many.

    For several rounds it has the means, and the difference of each variant from the first one of
    the same round.
    """
    text = io.StringIO()
    several = len({_kind(each) for each in tallies}) < len(tallies)
    rows = _means(tallies) if several else _rows(tallies)
    csv.writer(text, lineterminator="\n").writerows(zip(*rows, strict=True))
    lines = [".. Written by: python -m benchmarks.concurrency --write. Do not edit.", ""]
    lines += [f":{name}: {value}" for name, value in where.items()]
    lines += ["", ".. csv-table::", "   :header-rows: 1", ""]
    lines += [f"   {line}" for line in text.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def _kind(tally: Tally) -> tuple[str, int, int, int]:
    return tally.variant, tally.workers, tally.gpus, tally.creates


def _means(tallies: Sequence[Tally]) -> Iterator[list[str]]:
    """The cells of each kind of race over its rounds, the headings first."""
    counted = COLUMNS[4:]
    yield [
        *(title for title, _ in COLUMNS[:4]),
        *("rounds", *(f"{title}, all rounds" for title, _ in counted)),
        *("lost claims a round", "against the first, 95 %"),
        *("creates/s", "of the first's, 95 %"),
    ]
    kinds = list(dict.fromkeys(map(_kind, tallies)))
    first = [each for each in tallies if _kind(each) == kinds[0]]
    for kind in kinds:
        mine = [each for each in tallies if _kind(each) == kind]
        pairs = list(zip(mine, first, strict=False))
        less = measure.mean_interval([one.lost_claims - other.lost_claims for one, other in pairs])
        rate = measure.mean_interval([one.rate / other.rate for one, other in pairs])
        yield [
            *(str(getattr(mine[0], name)) for _, name in COLUMNS[:4]),
            f"{len(mine)}",
            *(str(sum(getattr(each, name) for each in mine)) for _, name in counted),
            f"{statistics.mean(each.lost_claims for each in mine):.1f}",
            "" if kind == kinds[0] else f"{less[0]:+.1f} to {less[1]:+.1f}",
            f"{statistics.mean(each.rate for each in mine):.2f}",
            "" if kind == kinds[0] else f"{rate[0]:.2f} to {rate[1]:.2f}",
        ]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.concurrency")
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--switches", type=int, default=4, help="of each host")
    parser.add_argument("--gpus-per-switch", type=int, default=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="of each server")
    parser.add_argument("--demand", type=int, default=125, help="percent of the devices")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument(
        "--placement-tries",
        type=int,
        default=TRIES,
        help="[placement]allocation_conflict_retry_count (10 is its default)",
    )
    parser.add_argument("--json", help="also write the rows to this file, after each")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--logs", help="keep the logs of all processes in this folder")
    parser.add_argument("--width", type=int, default=200, help="columns of the table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
