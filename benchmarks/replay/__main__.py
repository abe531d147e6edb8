# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.replay``: replay the day, stock Nova and ours in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.concurrency.model import BROKEN, VARIANTS, Cloud
from benchmarks.replay import day, play
from benchmarks.report import provenance
from nova_hpc_tools.site.settings import FEWEST_CANDIDATES

RESULTS = Path(__file__).with_name("RESULTS.rst")


def holds(row: day.Row) -> bool:
    """Whether a day had no error; this must be true for stock Nova, too."""
    answered = row.placed + row.refused + row.broken + row.orphaned
    return not (row.given_twice or row.broken or row.node_refusals) and answered == row.servers


COLUMNS: Mapping[str, Any] = {
    "hosts": lambda row: row.hosts,
    "schedulers": lambda row: row.schedulers,
    "requests": lambda row: row.requests,
    "servers asked for": lambda row: row.servers,
    "placed": lambda row: row.placed,
    "placed, as simulated": lambda row: row.predicted,
    "refused": lambda row: row.refused,
    "GPUs that these asked for": lambda row: row.refused_gpus,
    "requests refused though Placement had room all the while": lambda row: row.spurious,
    "lost with a killed scheduler": lambda row: row.orphaned,
    "claims that Placement turned down": lambda row: row.conflicts,
    "requests to Placement": lambda row: row.asked,
    "times that a host's servers were read from Nova's database": lambda row: row.read,
    "refused by nodes": lambda row: row.node_refusals,
    "given twice": lambda row: row.given_twice,
    "GPUs in use at the end": lambda row: row.used,
    "GPUs in use at the end, as simulated": lambda row: row.predicted_used,
    "pairs at the end": lambda row: row.pairs,
    "of these over two switches": lambda row: row.scattered,
    "free GPUs without their neighbour at the end": lambda row: row.stranded,
    "seconds": lambda row: f"{row.seconds:.0f}",
    "servers a second": lambda row: f"{row.rate:.2f}",
    "request, median s": lambda row: f"{row.p50:.2f}",
    "request, 99 % s": lambda row: f"{row.p99:.2f}",
    "memory of a scheduler, MiB: at first": lambda row: f"{row.memory[0]:.0f}",
    "after a quarter of the day": lambda row: f"{row.memory[len(row.memory) // 4]:.0f}",
    "after half": lambda row: f"{row.memory[len(row.memory) // 2]:.0f}",
    "after three quarters": lambda row: f"{row.memory[len(row.memory) * 3 // 4]:.0f}",
    "at the end": lambda row: f"{row.memory[-1]:.0f}",
}


def rst(rows: Sequence[day.Row], where: Mapping[str, str]) -> str:
    """The page that the documentation includes."""
    lines = [".. Written by: python -m benchmarks.replay --write. Do not edit.", ""]
    lines += [f":{name}: {value}" for name, value in where.items()]
    lines += ["", ".. csv-table::", "   :header-rows: 1", ""]
    lines += ["   " + ",".join(["", *(f'"{each.variant}"' for each in rows)])]
    lines += [
        "   " + ",".join([f'"{title}"', *(str(say(each)) for each in rows)])
        for title, say in COLUMNS.items()
    ]
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> list[day.Row]:
    """Both sides take turns, each in a cloud of its own, until the day or the time is over."""
    cloud = Cloud(options.hosts, options.switches, gpus=2, functions=2)
    found = day.day(options.servers, cloud, options.seed, options.load)
    limit = time.monotonic() + options.minutes * 60 if options.minutes else None
    with contextlib.ExitStack() as kept:
        sides = [
            kept.enter_context(
                play.replay(*(cloud, VARIANTS[name], found, options.schedulers, options.candidates))
            )
            for name in options.variants
        ]
        # All sides get the same number of requests, also if the time ends early.
        for done in range(0, len(found.requests), options.turn):
            if limit is not None and done and time.monotonic() > limit:
                break
            for side in sides:
                side.run(options.turn)
            told = ", ".join(f"{len(each.answers)} in {each.seconds:.0f} s" for each in sides)
            print(f"requests: {told}", file=sys.stderr, flush=True)
        rows = [side.row() for side in sides]
        for side in sides:
            for each in side.answers:
                if each.outcome == BROKEN or each.free_left:
                    about = f"{side.variant.title}, request {each.at}, {each.conflicts} lost claims"
                    print(f"{about}, {each.outcome}: {each.text[-2000:]}", file=sys.stderr)
            for text in side.hosts.refusals:
                print(f"refused by a node: {text}", file=sys.stderr)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0 if each day fulfils :func:`holds`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay")
    parser.add_argument("--hosts", type=int, default=300)
    parser.add_argument("--switches", type=int, default=4, help="of a host, with two GPUs each")
    parser.add_argument("--servers", type=int, default=2000)
    parser.add_argument("--schedulers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=1.0, help="GPUs wanted, of those there are")
    parser.add_argument("--turn", type=int, default=150, help="requests before the other side")
    parser.add_argument(
        "--candidates", type=int, default=FEWEST_CANDIDATES, help="of Placement, for a request"
    )
    parser.add_argument("--minutes", type=float, help="end the day after these, on both sides")
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=["stock", "ours-spread-shuffle"]
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=RESULTS, help=f"write a table ({RESULTS.name})"
    )
    options = parser.parse_args(argv)
    # SIGTERM becomes an exit, so that the started processes end with the command.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rows = run(options)
    for title, say in COLUMNS.items():
        print(f"{title:56}", *(f"{say(each)!s:>10}" for each in rows))
    for each in rows:
        print(f"RESULT: {'' if holds(each) else 'WRONG: '}{each}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in rows], indent=1) + "\n")
    if options.write:
        words = argv if argv is not None else sys.argv[1:]
        where = provenance(" ".join(["python -m benchmarks.replay", *words]))
        options.write.write_text(rst(rows, where))
    return 0 if all(map(holds, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
