# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.selection``: whole answers of a scheduler, ours beside stock Nova's.

Real Placement on MariaDB, real host states from Nova's databases, and a claim at the end
of each. Both sides take turns in one run, with the same candidates of Placement
(breadth-first, as many as there are hosts).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks.report import provenance
from benchmarks.selection import rows, side
from benchmarks.selection.side import Question, Sample
from tests.functional.concurrency import nova_process
from tests.functional.concurrency.model import Cloud
from tests.functional.concurrency.race import Runner
from tests.functional.concurrency.stage import Stage, stage

RESULTS: Final = Path(__file__).with_name("RESULTS.rst")
QUESTIONS: Final = (
    Question(1),
    Question(4),
    Question(4, functions=4),
    Question(1, servers=16),
)
SIDES: Final = ("ours", "stock")
#: Hosts that register themselves; all others are copies of the first.
_REAL: Final = 10
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
        """Of the ratio, 95 %, by resampling pairs."""
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


class Processes:
    """A scheduler of each side, for as long as the context lasts."""

    def __init__(self, made: Stage, hosts: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes: dict[str, Any] = {}
        self._crew = []
        for name in SIDES:
            here, there = spawn.Pipe()
            process = spawn.Process(
                target=side.serve,
                args=(
                    str(made.nova_conf),
                    str(made.logs / f"{name}-{hosts}.log"),
                    name == "ours",
                    side.limits(hosts),
                    there,
                ),
                daemon=True,
            )
            process.start()
            self._pipes[name] = here
            self._crew.append(process)

    def __enter__(self) -> Processes:
        for name in SIDES:
            self._answer(name)
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._crew:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()

    def ask(self, name: str, question: Question) -> Sample:
        """What one side answers."""
        self._pipes[name].send(question)
        found = self._answer(name)
        assert isinstance(found, Sample)
        return found

    def _answer(self, name: str) -> object:
        found = self._pipes[name].recv()
        if isinstance(found, str) and found != "ready":
            raise RuntimeError(f"{name}: {found}")
        return found


class Kept:
    """What was measured, a pair a line, in a file that a run that was cut off goes on with."""

    def __init__(self, path: Path | None, resume: bool) -> None:
        self._path = path
        self._pairs: dict[tuple[int, str], list[Mapping[str, Sample]]] = {}
        if path is None:
            return
        if resume and path.exists():
            for line in path.read_text().splitlines():
                told = json.loads(line)
                pair = {name: Sample(**told[name]) for name in SIDES}
                self._pairs.setdefault((told["hosts"], told["question"]), []).append(pair)
        else:
            path.write_text("")

    def pairs(self, hosts: int, question: Question) -> Sequence[Mapping[str, Sample]]:
        """Those of one question on one cloud."""
        return self._pairs.get((hosts, str(question)), ())

    def add(self, hosts: int, question: Question, pair: Mapping[str, Sample]) -> None:
        """One more, which is in the file before the next is asked."""
        self._pairs.setdefault((hosts, str(question)), []).append(pair)
        if self._path is not None:
            told = {"hosts": hosts, "question": str(question)}
            samples = {name: attrs.asdict(sample) for name, sample in pair.items()}
            with self._path.open("a") as stream:
                stream.write(json.dumps(told | samples) + "\n")

    def measured(self, hosts: int, question: Question) -> Measured:
        """All pairs of one question on one cloud."""
        pairs = self.pairs(hosts, question)
        return Measured(hosts, question, {name: [pair[name] for pair in pairs] for name in SIDES})


def measure(
    made: Stage, hosts: int, questions: Sequence[Question], samples: int, kept: Kept
) -> None:
    """Each question, both sides in turn, the first after one that does not count."""
    with Processes(made, hosts) as processes:
        for question in questions:
            wanted = samples - len(kept.pairs(hosts, question))
            for number in range(wanted + 1 if wanted > 0 else 0):
                names = SIDES if number % 2 else tuple(reversed(SIDES))
                pair = {name: processes.ask(name, question) for name in names}
                if number:
                    kept.add(hosts, question, pair)
            _say(kept.measured(hosts, question))


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
    """Run the command; the exit status is 0 unless something was not placed."""
    options = _options(argv)
    os.environ |= nova_process.ENVIRONMENT
    questions = [each for each in QUESTIONS if not options.only or str(each) in options.only]
    kept = Kept(options.json, options.resume)
    for hosts, samples in zip(options.hosts, options.samples, strict=True):
        if any(len(kept.pairs(hosts, each)) < samples for each in questions):
            with cloud(hosts) as made:
                measure(made, hosts, questions, samples, kept)
    found = [kept.measured(hosts, each) for hosts in options.hosts for each in questions]
    console = Console(width=options.width)
    table = Table(*COLUMNS, title="select_destinations, with a real Placement on MariaDB")
    for each in found:
        table.add_row(*each.cells())
    console.print(table)
    if options.write:
        words = argv if argv is not None else sys.argv[1:]
        RESULTS.write_text(
            _rst(found, provenance(" ".join(["python -m benchmarks.selection", *words])))
        )
    return int(any(sample.fault for each in found for sample in each.samples["ours"]))


def _rst(found: Sequence[Measured], where: Mapping[str, str]) -> str:
    lines = [".. Written by: python -m benchmarks.selection --write. Do not edit.", ""]
    lines += [f":{name}: {value}" for name, value in where.items()]
    lines += ["", ".. csv-table::", "   :header-rows: 1", ""]
    for cells in (list(COLUMNS), *(each.cells() for each in found)):
        lines.append("   " + ",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines) + "\n"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection")
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 2000], help="ascending")
    parser.add_argument("--samples", type=int, nargs="+", default=[30, 30], help="of each")
    parser.add_argument("--only", nargs="+", metavar="QUESTION", help="e.g. gpu:4,vf:4")
    parser.add_argument("--json", type=Path, help="write all samples to this file, a pair a line")
    parser.add_argument("--resume", action="store_true", help="go on with what that file has")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--width", type=int, default=160, help="columns of the table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
