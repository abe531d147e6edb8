# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks``: measure everything, print the table, write it down."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from benchmarks import measure, report

# Set before any import of Nova: native threads, as in its scheduler.
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")

RESULTS = Path(__file__).with_name("RESULTS.rst")


@attrs.frozen
class Size:
    """The sizes of the measurements."""

    samples: int = 300  # of the engine
    hosts: tuple[int, ...] = (100, 1000, 10000)
    rounds: tuple[int, ...] = (3, 2, 1)
    #: Candidates of Placement: Nova's default of max_placement_results.
    candidates: int = 1000
    memory: tuple[int, ...] = (1000, 10000)
    limits: tuple[int, ...] = (20, 1000)
    patience: float = 20.0
    enumerations: int = 3
    gpus: int = 8
    cluster: int = 4
    servers: int = 8
    bursts: int = 3
    #: Rounds for the guest's tree, and for the reading of a node.
    rounds_of_node: int = 25
    #: GPUs, adapters, and virtual functions of each.
    node: tuple[int, int, int] = (16, 16, 16)
    #: Two GPUs and two VFs below each.
    switches: int = 4
    starts: int = 5
    #: Hosts of the fabrics on which gangs are planned, and the number of plans on each.
    fabrics: tuple[int, ...] = (1000, 3000, 10000, 30000)
    plans: int = 9
    #: Seeds of the comparison, and the number of gangs in each.
    seeds: int = 10
    gangs: int = 200


FULL = Size()
QUICK = Size(
    samples=50, hosts=(50, 200), rounds=(3, 3), candidates=200, memory=(50, 200),
    enumerations=1, patience=5.0,
    servers=4, bursts=1, rounds_of_node=9, starts=3,
    fabrics=(1000, 3000), plans=3, seeds=3, gangs=60,
)  # fmt: skip
#: Sizes for a check that all benchmarks run.
TINY = Size(
    samples=2, hosts=(2, 4), rounds=(1, 1), candidates=4, memory=(2, 4), limits=(2,), patience=0.0,
    enumerations=1, gpus=2, cluster=2, servers=2, bursts=1, rounds_of_node=1, node=(2, 2, 1),
    switches=1, starts=1, fabrics=(100,), plans=1, seeds=2, gangs=8,
)  # fmt: skip


def engine(size: Size) -> Iterator[measure.Row]:
    """One host."""
    from benchmarks import engine, unlike

    yield from engine.run(size.samples)
    yield from unlike.run(size.samples)


def scheduler(size: Size) -> Iterator[measure.Row]:
    """The filters and the weigher."""
    from benchmarks import scheduler

    yield from scheduler.run(size.hosts, size.rounds, size.candidates)


def memory(size: Size) -> Iterator[measure.Row]:
    """The memory of the filter."""
    from benchmarks import scheduler

    yield from scheduler.memory(size.memory)


def enumeration(size: Size) -> Iterator[measure.Row]:
    """Placement's enumeration."""
    from benchmarks import enumeration

    yield from enumeration.run(size.gpus, size.limits, size.enumerations, size.patience)


def creates(size: Size) -> Iterator[measure.Row]:
    """Whole creates of servers."""
    from benchmarks import creates

    yield from creates.run(size.cluster, size.servers, size.bursts)


def guest_xml(size: Size) -> Iterator[measure.Row]:
    """The guest's PCIe tree."""
    from benchmarks import guest_xml

    yield from guest_xml.run(size.rounds_of_node)


def hygiene(size: Size) -> Iterator[measure.Row]:
    """Checks of devices."""
    from benchmarks import hygiene

    yield from hygiene.refresh(*size.node, size.rounds_of_node)
    yield from hygiene.run(size.switches, size.starts)


def watch(size: Size) -> Iterator[measure.Row]:
    """The watch over devices in use."""
    from benchmarks import watch

    yield from watch.run(*size.node, size.rounds_of_node)


def gangs(size: Size) -> Iterator[measure.Row]:
    """The planner of gangs."""
    from benchmarks import gangs

    yield from gangs.run(size.fabrics, size.plans, size.seeds, size.gangs)


PARTS: Mapping[str, Callable[[Size], Iterator[measure.Row]]] = {
    "engine": engine,
    "scheduler": scheduler,
    "memory": memory,
    "enumeration": enumeration,
    "creates": creates,
    "guest_xml": guest_xml,
    "hygiene": hygiene,
    "watch": watch,
    "gangs": gangs,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _options(argv)
    logging.disable(logging.WARNING)
    size = options.size
    rows = []
    for name in options.only:
        for one in PARTS[name](size):
            rows.append(one)
            print(f"{one.part}: {one.what}: {one.median:.3g} {one.unit}", file=sys.stderr)
    where = report.provenance(" ".join(["python -m benchmarks", *(argv or sys.argv[1:])]))
    report.show(rows, where)
    if options.json:
        options.json.write_text(report.to_json(rows, where))
    if options.write:
        options.write.write_text(report.to_rst(rows, where))
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick",
        dest="size",
        action="store_const",
        const=QUICK,
        default=FULL,
        help="fewer hosts and repetitions",
    )
    size.add_argument(
        "--tiny",
        dest="size",
        action="store_const",
        const=TINY,
        help="only see that everything runs; the numbers mean nothing",
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=RESULTS,
        metavar="FILE",
        help=f"write the table (default: {RESULTS.name})",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
