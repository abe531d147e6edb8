# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.jitter``: how late a timer wakes on a usual CPU and on a quiet one.

Both take turns (A B B A). Processes at SCHED_IDLE and one that writes to a disk are the work.
Quiet means that interrupts, unbound kworkers and these processes are kept off the CPU. Run it as
root, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from benchmarks.jitter.quiet import kept_files, list_quiet_files, write_files
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.ratio import LEAST_PAIRS, compare_pairs
from nova_hpc_guest.accept.readings import read_distribution
from nova_hpc_guest.accept.refusal import refuse_busy_machine
from nova_hpc_guest.files import Root

#: Parts of the wakes that are at most as late as the shown value.
PARTS: Final = {"99 of 100": 0.99, "999 of 1,000": 0.999, "all": 1.0}
#: A process that ends with its parent: one that computes, and one that writes to a disk.
_HOG: Final = (
    "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nparent = os.getppid()\n"
    "while os.getppid() == parent:\n    sum(range(10000))\n"
)
_WRITER: Final = (
    "import os, sys\nparent = os.getppid()\nfile = open(sys.argv[1], 'wb')\n"
    "while os.getppid() == parent:\n    file.seek(0)\n    file.write(bytes(1 << 16))\n"
    "    file.flush()\n    os.fsync(file.fileno())\n"
)


@attrs.frozen
class Turns:
    """Counts of each turn: microseconds -> wakes that were as late, on both sides in pairs."""

    usual: list[Mapping[int, int]]
    quiet: list[Mapping[int, int]]


def find_late(counts: Mapping[int, int], part: float) -> int:
    """Return microseconds that at least this part of the wakes does not exceed; 1 or more."""
    below, total = 0, sum(counts.values())
    for late in sorted(counts):
        below += counts[late]
        if below >= part * total:
            break
    return max(late, 1)


def format_table(turns: Turns, notes: Mapping[str, object]) -> str:
    """Format the record: percentiles of all turns, ratios of neighbours with their intervals."""
    rows = [("Wakes", "Usual, us", "Quiet, us", "Times as late (interval)")]
    for name, part in PARTS.items():
        usual, quiet = (
            [find_late(counts, part) for counts in side] for side in (turns.usual, turns.quiet)
        )
        ratio = compare_pairs(usual, quiet, higher=False)
        interval = f"{ratio.low:.3g} to {ratio.high:.3g}, {ratio.confidence:.0%}"
        rows.append(
            (
                name,
                *(f"{find_late(_add_up(side), part):,}" for side in (turns.usual, turns.quiet)),
                f"{ratio.ratio:.3g} ({interval} of {len(usual)} pairs)",
            )
        )
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        lines += [f"   {'* -' if place == 0 else '  -'} {cell}" for place, cell in enumerate(row)]
    return "\n".join([*lines, "", *(f":{name}: {value}" for name, value in notes.items()), ""])


def _add_up(side: Sequence[Mapping[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for counts in side:
        total.update(counts)
    return total


def measure_wakes(cpu: int, wakes: int) -> dict[int, int]:
    """Run cyclictest on a CPU; return how late its wakes were, as accept reads them.

    :raises RuntimeError: it gave no histogram.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        words = PROBE_OF["timer_p99"].words
        filled = [word.replace("{cpu}", str(cpu)).replace("{json}", str(result)) for word in words]
        filled[filled.index("-l") + 1] = str(wakes)
        done = subprocess.run(filled, capture_output=True, text=True, check=False)
        text = result.read_text() if result.exists() else ""
    counts = read_distribution("timer_p99", text)
    if not counts:
        raise RuntimeError(f"cyclictest ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return counts


@contextlib.contextmanager
def started_work(count: int, folder: str) -> Iterator[list[int]]:
    """Start the work that disturbs; yield the ids of its processes, which end with the block."""
    commands = [[sys.executable, "-c", _HOG]] * count
    commands.append([sys.executable, "-c", _WRITER, f"{folder}/written"])
    processes = [subprocess.Popen(words) for words in commands]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def take_turns(cpu: int, rounds: int, wakes: int, folder: str) -> tuple[Turns, int]:
    """Measure both sides in turns; return them, and the number of settings that were refused."""
    cpus = os.sched_getaffinity(0)
    files = list_quiet_files(Path("/"), cpu)
    turns = Turns([], [])
    refused: list[Path] = []
    with kept_files(files) as old, started_work(len(cpus), folder) as work:

        def measure(quiet: bool) -> None:
            nonlocal refused
            problems = write_files(files if quiet else old)
            refused = problems if quiet else refused
            for process in work:
                os.sched_setaffinity(process, cpus - {cpu} if quiet else cpus)
            time.sleep(0.2)
            side = turns.quiet if quiet else turns.usual
            side.append(measure_wakes(cpu, wakes))

        for turn in range(rounds):
            for quiet in (False, True) if turn % 2 == 0 else (True, False):
                measure(quiet)
    return turns, len(refused)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 2 if the machine cannot be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=12, help="pairs; at least %(default)s count")
    parser.add_argument("--wakes", type=int, default=20_000, help="of a turn, 250 us each")
    parser.add_argument("--folder", default=".", help="on a disk, for the work that writes")
    parser.add_argument("--busy", action="store_true", help="measure also if others use the CPUs")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the record there")
    args = parser.parse_args(argv)
    cpus = os.sched_getaffinity(0)
    reason = None
    if shutil.which("cyclictest") is None:
        reason = "no cyclictest: install Debian's package rt-tests"
    elif os.geteuid() != 0:
        reason = "run it as root: it changes where interrupts go"
    elif args.cpu not in cpus or len(cpus) < 2 or args.rounds < LEAST_PAIRS:
        reason = f"--cpu is one of several ({sorted(cpus)}), and --rounds at least {LEAST_PAIRS}"
    elif not args.busy and (busy := refuse_busy_machine(Root("/"), cpus)) is not None:
        reason = busy.text
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        turns, refused = take_turns(args.cpu, args.rounds, args.wakes, folder)
    notes = {
        "kernel": platform.release(),
        "CPUs": len(cpus),
        "load at the beginning (1 min)": f"{load:.1f}",
        "wakes of a turn": args.wakes,
        "settings that the kernel refused": refused,
    }
    text = format_table(turns, notes)
    print(text)
    if args.write is not None:
        args.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
