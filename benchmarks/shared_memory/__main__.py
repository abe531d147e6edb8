# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.shared_memory``: the table of shared memory against the network.

Two machines of QEMU on this one, with a segment as a node makes it. The rounds of both ways
take turns, and each ratio has an interval. As root; with KVM, or emulated, which it says.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from benchmarks import report
from benchmarks.shared_memory.machines import Machines, start_machines
from benchmarks.shared_memory.root_disk import COMPILERS, prepare_root_disk
from nova_hpc_guest.accept.ratio import LEAST_PAIRS, compare_pairs

SIZES: Final = (8, 4096, 65536, 1 << 20, 4 << 20)
_START: Final[Mapping[str, str]] = {
    "mpich": "mpiexec.mpich -hosts vm0,vm1 -n 2",
    "openmpi": "mpirun.openmpi -H vm0,vm1 -n 2",
}
_SHARED: Final = "set -a; . /run/nova-hpc/shared-memory.env; set +a"
#: The same MPIs over UCX with its defaults, and the network that it finds.
_NETWORK: Final = "export OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any"
_ROOT: Final = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"


@attrs.frozen
class Line:
    """One size of one MPI."""

    mpi: str
    size: int
    #: Medians of each round, in us.
    shared: tuple[float, ...]
    network: tuple[float, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _parse_options(argv)
    if os.geteuid():
        print("only root can make the disk and the network", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        disk = prepare_root_disk(work)
        with start_machines(disk, Path(folder), options.accelerator) as machines:
            for line in describe_machines(machines):
                print(line)
            for line in exchange_messages(machines):
                print(line)
            lines = list(measure_rounds(machines, options.rounds, options.seconds))
    where = report.provenance(
        " ".join(["python -m benchmarks.shared_memory", *(argv or sys.argv[1:])])
    )
    where["machines"] = "emulated by QEMU (TCG)" if options.accelerator == "tcg" else "KVM"
    text = format_table(lines, where)
    print(text)
    if options.write:
        options.write.write_text(text)
    return 0


def describe_machines(machines: Machines) -> Iterator[str]:
    """The output of the machines about their segment."""
    for number in range(2):
        yield f"vm{number}: {machines.run(number, 'nova-hpc-guest check').strip()}"
        yield machines.run(number, "nova-hpc-guest peers").strip()


def exchange_messages(machines: Machines) -> Iterator[str]:
    """Exchange 1,000 messages of random sizes, compare each, and count the network's traffic."""
    for mpi, start in _START.items():
        before = _count_sent(machines)
        said = machines.run(
            0, f"{_ROOT}; {_SHARED}; {start} mpi_exchange.{mpi} random 1000 1", limit=1800
        )
        sent = _count_sent(machines) - before
        yield f"{mpi}: {said.strip()}; {sent / 1e6:.2f} MB left by the network"


def measure_rounds(machines: Machines, rounds: int, seconds: float) -> Iterator[Line]:
    """Measure both ways in turns, in alternating order."""
    for mpi in COMPILERS:
        found: dict[str, dict[int, list[float]]] = {"shared": {}, "network": {}}
        for number in range(rounds):
            order = ("shared", "network") if number % 2 else ("network", "shared")
            for way in order:
                for size, time in _measure_once(machines, mpi, way, seconds).items():
                    found[way].setdefault(size, []).append(time)
            print(f"{mpi}: round {number + 1} of {rounds}", file=sys.stderr)
        for size in SIZES:
            yield Line(mpi, size, tuple(found["shared"][size]), tuple(found["network"][size]))


def format_table(lines: Sequence[Line], where: Mapping[str, str]) -> str:
    """The page; the documentation includes it."""
    rows = [
        ".. list-table::",
        "   :header-rows: 1",
        "",
        "   * - MPI",
        "     - Message",
        "     - Shared memory, us",
        "     - Network, us",
        "     - Times as fast (interval)",
    ]
    for line in lines:
        ratio = compare_pairs(line.network, line.shared, higher=False)
        rows += [
            f"   * - {line.mpi}",
            f"     - {_format_bytes(line.size)}",
            f"     - {_format_time(_middle(line.shared))}",
            f"     - {_format_time(_middle(line.network))}",
            f"     - {ratio.ratio:.3g} ({ratio.low:.3g} to {ratio.high:.3g}, "
            f"{ratio.confidence:.0%} of {ratio.pairs} rounds)",
        ]
    facts = "; ".join(f"{name}: {value}" for name, value in where.items() if value)
    return "\n".join([*rows, "", facts, ""])


def _measure_once(machines: Machines, mpi: str, way: str, seconds: float) -> dict[int, float]:
    setting = _SHARED if way == "shared" else _NETWORK
    sizes = " ".join(map(str, SIZES))
    said = machines.run(
        0, f"{_ROOT}; {setting}; {_START[mpi]} pingpong.{mpi} {seconds} {sizes}", limit=1800
    )
    found = re.findall(r"^(\d+) (\d+\.\d+) \d+$", said, re.MULTILINE)
    return {int(size): float(time) for size, time in found}


def _count_sent(machines: Machines) -> int:
    return sum(
        int(machines.run(number, "cat /sys/class/net/eth0/statistics/tx_bytes"))
        for number in range(2)
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _format_time(value: float) -> str:
    """The value with three digits, or as a whole number from 100 on."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _format_bytes(size: int) -> str:
    if size >= 1 << 20:
        return f"{size >> 20} MiB"
    return f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_memory", description=__doc__)
    parser.add_argument(
        "--accelerator", choices=("kvm", "tcg"), default="kvm", help="tcg: emulated (default: kvm)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=2 * LEAST_PAIRS,
        help=f"of each way (default: %(default)s; an interval of 95 %% takes {LEAST_PAIRS})",
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="for each size in a round (default: 2)"
    )
    parser.add_argument(
        "--work", type=Path, help="a folder that keeps the packages for the next time"
    )
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
