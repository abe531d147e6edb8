# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.selection``: whole answers of a scheduler, ours beside stock Nova's.

Placement on MariaDB is real, and so are the host states from Nova's databases and the claim at
the end of each answer. Both sides take turns in one run, with the same candidates of Placement
(breadth-first, as many as there are hosts).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks.concurrency import nova_process
from benchmarks.concurrency.model import Cloud
from benchmarks.concurrency.race import Runner
from benchmarks.concurrency.stage import Stage, stage
from benchmarks.report import provenance
from benchmarks.selection import growth, installed, rows, side, together
from benchmarks.selection.kept import INSTALLED, PAIR, TOGETHER, Kept
from benchmarks.selection.processes import PARTS, SIDES, Crew
from benchmarks.selection.side import Question, Sample

RESULTS: Final = Path(__file__).with_name("RESULTS.rst")
QUESTIONS: Final = (
    Question(1),
    Question(4),
    Question(4, functions=4),
    Question(1, servers=16),
)
#: Further questions, which run only by name (``--only``).
MORE_QUESTIONS: Final = (Question(2), Question(8))
#: Hosts that register themselves; all others are copies of the first.
_REAL: Final = 10
PART_COLUMNS: Final = (
    *("hosts", "asked for", "none of them", "the question alone", "kept states alone"),
    *("collections alone", "all", "samples"),
)
COLUMNS: Final = (
    *("hosts", "asked for", "ratio", "its interval (95 %)"),
    *("ours, s", "stock, s", "CPU ratio", "GETs, ours", "GETs, stock", "samples", "faults"),
)


@attrs.frozen
class Measured:
    """One question on one cloud."""

    hosts: int
    question: Question
    samples: Mapping[str, Sequence[Sample]]

    def ratio(self) -> float:
        """Median of ours over median of stock."""
        ours, stock = (self._median(each) for each in SIDES)
        return ours / stock

    def interval(self, seed: int = 1) -> tuple[float, float]:
        """The 95 % interval of the ratio, by resampling pairs."""
        rng = random.Random(seed)
        pairs = list(zip(*(self.samples[each] for each in SIDES), strict=True))
        found = []
        for _ in range(1000):
            drawn = rng.choices(pairs, k=len(pairs))
            ours, stock = (statistics.median(pair[i].seconds for pair in drawn) for i in (0, 1))
            found.append(ours / stock)
        found.sort()
        return found[25], found[974]

    def cells(self) -> list[str]:
        """The row of the table."""
        low, high = self.interval()
        cpu = [statistics.median(x.cpu_seconds for x in self.samples[each]) for each in SIDES]
        gets = [max(x.gets for x in self.samples[each]) for each in SIDES]
        faults = [sum(bool(x.fault) for x in self.samples[each]) for each in SIDES]
        return [
            *(f"{self.hosts}", f"{self.question}", f"{self.ratio():.2f}"),
            *(f"{low:.2f} to {high:.2f}", f"{self._median('ours'):.3f}"),
            *(f"{self._median('stock'):.3f}", f"{cpu[0] / cpu[1]:.2f}"),
            *(f"{gets[0]}", f"{gets[1]}", f"{len(self.samples['ours'])}"),
            f"{faults[0]} and {faults[1]}",
        ]

    def _median(self, name: str) -> float:
        return statistics.median(sample.seconds for sample in self.samples[name])


def measure(
    made: Stage,
    hosts: int,
    questions: Sequence[Question],
    samples: int,
    kept: Kept,
    parts: Sequence[str] = (),
) -> None:
    """Measure each question on all sides in turn, after a first round that does not count.

    :param parts: names of :data:`PARTS`, which are measured beside both sides.
    """
    sides = (*SIDES, *parts)
    with contextlib.ExitStack() as open_:
        crews = {
            name: open_.enter_context(
                Crew(made, name, {**side.limits(hosts), **PARTS.get(name, {})})
            )
            for name in sides
        }
        for question in questions:
            wanted = samples - len(kept.all(PAIR, hosts, question))
            for number in range(wanted + 1 if wanted > 0 else 0):
                names = sides if number % 2 else tuple(reversed(sides))
                pair = {name: attrs.asdict(crews[name].ask(question)) for name in names}
                if number:
                    kept.add(PAIR, hosts, question, pair)
            _say(_measured(kept, hosts, question))


def _measured(kept: Kept, hosts: int, question: Question) -> Measured:
    pairs = kept.all(PAIR, hosts, question)
    samples = {name: [Sample(**pair[name]) for pair in pairs] for name in SIDES}
    return Measured(hosts, question, samples)


def _say(measured: Measured) -> None:
    print("  ".join(measured.cells()), file=sys.stderr, flush=True)
    for name in SIDES:
        faults = {sample.fault for sample in measured.samples[name]} - {""}
        for fault in sorted(faults)[:2]:
            print(f"    {name}: {fault[:300]}", file=sys.stderr)


@contextlib.contextmanager
def cloud(hosts: int) -> Iterator[Stage]:
    """Placement and Nova's databases with *hosts* hosts, the first ten of which are real.

    :raises AssertionError: the copies differ from hosts that registered themselves.
    """
    shape = Cloud(hosts=_REAL, switches=4, gpus=2, functions=8)
    with stage(candidates=side.candidates(hosts)) as made:
        runner = Runner(made, shape)
        try:
            runner.start()
        finally:
            runner.stop()
        databases = rows.Databases(made)
        template = databases.template("node000")
        others = [f"node{index:03d}" for index in range(1, _REAL)]
        rows.check(databases, template, others)
        print(f"rows as {len(others)} hosts have made them through the API", file=sys.stderr)
        maker = rows.copies(databases, template, seed=1)
        for count in rows.fill(databases, maker, side.names(hosts - _REAL, _REAL)):
            print(f"{_REAL + count} hosts", file=sys.stderr)
        databases.analyse()
        yield made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0 if all servers were placed."""
    options = _options(argv)
    # SIGTERM becomes an exit, so that the started processes end with the command.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ |= nova_process.ENVIRONMENT
    questions = [
        each
        for each in (*QUESTIONS, *MORE_QUESTIONS)
        if str(each) in (options.only or map(str, QUESTIONS))
    ]
    kept = Kept(options.json, options.resume)
    for hosts, samples in zip(options.hosts, options.samples, strict=True):
        with contextlib.ExitStack() as open_:
            made = functools.cache(lambda hosts=hosts: open_.enter_context(cloud(hosts)))
            if any(len(kept.all(PAIR, hosts, each)) < samples for each in questions):
                measure(made(), hosts, questions, samples, kept, options.parts)
            if options.plainest:
                growth.measure_plainest(made(), hosts, samples, kept)
            if options.installed:
                installed.measure(
                    *(made(), hosts, questions, options.installed_samples, options.installed),
                    kept,
                )
            if options.together:
                together.measure(
                    *(made(), hosts, options.together, options.rounds, options.each), kept
                )
    tables = _tables(kept, options.hosts, questions)
    console = Console(width=options.width)
    for title, (columns, found) in tables.items():
        table = Table(*columns, title=title)
        for cells in found:
            table.add_row(*cells)
        console.print(table)
    if options.write:
        words = argv if argv is not None else sys.argv[1:]
        options.write.write_text(
            _rst(tables, provenance(" ".join(["python -m benchmarks.selection", *words])))
        )
    pairs = [
        one for hosts in options.hosts for each in questions for one in kept.all(PAIR, hosts, each)
    ]
    return int(any(one["ours"]["fault"] for one in pairs))


def _tables(
    kept: Kept, clouds: Sequence[int], questions: Sequence[Question]
) -> Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Title -> columns and rows of the measured results."""
    answers, columns = [], [*COLUMNS]
    asked = [(hosts, each) for hosts in clouds for each in questions]
    also = any(kept.all(INSTALLED, *each) for each in asked)
    if also:
        columns.append("stock as installed, s")
    for hosts, each in asked:
        if kept.all(PAIR, hosts, each):
            more = [installed.cell(kept.all(INSTALLED, hosts, each))] if also else []
            answers.append([*_measured(kept, hosts, each).cells(), *more])
    found = {"Whole answers": (columns, answers)}
    rows_of_parts = [
        [f"{hosts}", f"{each}", *_part_cells(pairs)]
        for hosts, each in asked
        if (pairs := [pair for pair in kept.all(PAIR, hosts, each) if PARTS.keys() <= pair.keys()])
    ]
    if rows_of_parts:
        found["Parts, alone and together"] = (PART_COLUMNS, rows_of_parts)
    rates = [
        together.cells(hosts, each, results)
        for hosts in clouds
        for each in together.QUESTIONS
        if (results := kept.all(TOGETHER, hosts, each))
    ]
    return found | ({"Several schedulers at once": (together.COLUMNS, rates)} if rates else {})


def _part_cells(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ratio to stock Nova of each part, and of all together."""
    stock = statistics.median(pair["stock"]["seconds"] for pair in pairs)
    ratios = [
        statistics.median(pair[name]["seconds"] for pair in pairs) / stock
        for name in (*PARTS, "ours")
    ]
    return [*(f"{ratio:.2f}" for ratio in ratios), f"{len(pairs)}"]


def _rst(
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]], where: Mapping[str, str]
) -> str:
    lines = [".. Written by: python -m benchmarks.selection --write. Do not edit.", ""]
    lines += [f":{name}: {value}" for name, value in where.items()]
    for title, (columns, found) in tables.items():
        lines += ["", f".. csv-table:: {title}", "   :header-rows: 1", ""]
        for cells in (columns, *found):
            lines.append("   " + ",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines) + "\n"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection")
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 2000], help="ascending")
    parser.add_argument("--samples", type=int, nargs="+", default=[30], help="of each")
    parser.add_argument("--only", nargs="+", metavar="QUESTION", help="e.g. gpu:4,vf:4")
    parser.add_argument("--json", type=Path, help="write all samples to this file, a pair a line")
    parser.add_argument(
        "--plainest", action="store_true", help="measure Placement's plainest answer, too"
    )
    parser.add_argument(
        "--parts",
        action="store_const",
        const=tuple(PARTS),
        default=(),
        help="measure what makes it fast alone and together, too",
    )
    parser.add_argument("--resume", action="store_true", help="go on with what that file has")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=RESULTS, help=f"write a table ({RESULTS.name})"
    )
    parser.add_argument(
        "--installed",
        type=float,
        metavar="SECONDS",
        help="measure stock Nova and Placement as they are installed, too, for at most so long "
        "an answer",
    )
    parser.add_argument("--installed-samples", type=int, default=5)
    parser.add_argument(
        "--together", type=int, metavar="SCHEDULERS", help="measure requests a second, too"
    )
    parser.add_argument("--rounds", type=int, default=10, help="of several schedulers")
    parser.add_argument("--each", type=int, default=5, help="requests of a scheduler in a round")
    parser.add_argument("--width", type=int, default=160, help="columns of the table")
    options = parser.parse_args(argv)
    if len(options.samples) == 1:
        options.samples *= len(options.hosts)
    if len(options.samples) != len(options.hosts):
        parser.error("--samples takes one number for all, or one for each of --hosts")
    return options


if __name__ == "__main__":
    sys.exit(main())
