# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.functional.kills``: kill at each step and print the table."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# Before Nova is imported: native threads, and databases in files.
os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "true"

import attrs
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tests.functional.kills.run import Row


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0 if nothing was lost or given twice."""
    options = _options(argv)
    from tests.functional.kills.life import LifeError

    try:
        return _main(options)
    except (LifeError, ValueError) as error:
        print(f"The run has failed: {str(error)[-4000:]}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace) -> int:
    # Lives are forked from here and find everything imported.
    import tests.functional.conftest  # noqa: F401
    from tests.functional.kills import report, run, world  # noqa: F401
    from tests.functional.kills.faults import PHASES, Fault

    faults = list(Fault) if "all" in options.fault else [Fault(each) for each in options.fault]
    phases = [
        each
        for each in PHASES
        if (not options.phase or each.name in options.phase)
        # The helper of a nova-compute that is not root has to be started by root.
        and (os.geteuid() == 0 or not each.vendor)
    ]

    started = time.monotonic()
    # What was started must end with the command, however that ends.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="nhk", dir=options.folder) as folder:
        runner = run.Runner(Path(folder))
        runner.begin()
        try:
            steps = runner.steps(phases)
            rows = _known(options.json) if options.resume else []
            done = {(row.fault, row.phase, row.number) for row in rows}
            if options.list:
                for step in steps:
                    print(f"{step.phase.name:20} {step.number:3}  {step.name}")
                return 0
            wanted = run.chosen(steps, options.match)
            for step in (attrs.evolve(step, fault=each) for each in faults for step in wanted):
                if (step.fault.value, step.phase.name, step.number) in done:
                    continue
                if not step.fault.happens_in(step.phase):
                    continue
                rows.append(runner.kill(step))
                print(_line(rows[-1]), file=sys.stderr, flush=True)
                # After each, as a run is long and may be ended.
                _write(options.json, rows, len(steps), time.monotonic() - started)
                if options.rst:
                    Path(options.rst).write_text(report.rst(rows, len(steps)))
        finally:
            runner.life.kill()
    seconds = time.monotonic() - started
    order = [each.value for each in Fault]
    places = [each.name for each in PHASES]
    rows.sort(key=lambda row: (order.index(row.fault), places.index(row.phase), row.number))
    Console(width=options.width).print(_table(rows))
    bad = [row for row in rows if row.complaints]
    found = Counter(row.phase for row in rows)
    where = ", ".join(f"{found[each]} of {each}" for each in places if found[each])
    print(
        f"RESULT: {len(rows)} faults ({', '.join(dict.fromkeys(row.fault for row in rows))}) at "
        f"{len(steps)} steps ({where}): "
        f"{len(rows) - len(bad)} ok, {len(bad)} not; {seconds:.0f} s"
    )
    return 1 if bad else 0


def _known(path: str | None) -> list[Row]:
    """The rows of an earlier run that were well."""
    from tests.functional.kills.run import Row

    if not path or not Path(path).exists():
        return []
    bodies = json.loads(Path(path).read_text())["rows"]
    rows = [Row(**{key: body[key] for key in body if key != "verdict"}) for body in bodies]
    return [row for row in rows if not row.complaints]


def _write(path: str | None, rows: Sequence[Row], steps: int, seconds: float) -> None:
    if path:
        body = {
            "steps": steps,
            "seconds": round(seconds, 1),
            "rows": [attrs.asdict(row) | {"verdict": row.verdict} for row in rows],
        }
        Path(path).write_text(json.dumps(body, indent=1) + "\n")


def _line(row: Row) -> str:
    return (
        f"{row.fault}: {row.phase} {row.number}: {row.step}: {row.status}, {row.meanwhile}, "
        f"{row.devices}: {row.verdict} ({row.seconds} s)"
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="nova-compute is killed right before each step")
    for title in (
        "fault",
        "phase",
        "",
        "step",
        "server after restart",
        "a server that wants all, before recovery",
        "devices after recovery",
        "verdict",
    ):
        table.add_column(title, justify="right" if not title else "left")
    for row in rows:
        names = ("fault", "phase", "number", "step", "status", "meanwhile", "devices", "verdict")
        table.add_row(*(str(getattr(row, name)) for name in names))
    return table


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.functional.kills")
    parser.add_argument(
        "--match",
        action="append",
        default=[],
        metavar="TEXT",
        help='only steps whose "phase: name" holds the text; may be repeated',
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        choices=[
            "kill",
            "local-delete",
            "guest-dies",
            "guest-resets",
            "libvirt",
            "allocation",
            "all",
        ],
        help="what happens at each step; may be repeated; all: one after the other (default: kill)",
    )
    parser.add_argument(
        "--phase",
        action="append",
        default=[],
        choices=[
            "spawn",
            "destroy",
            "spawn with a stage",
            "destroy with a stage",
            "clean",
            "spawn with a vendor's reset",
            "destroy with a vendor's reset",
            "clean with a vendor's reset",
        ],
        help="only this part of a life; may be repeated (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="only print the steps of a clean run")
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the file of --json: what was well there is not done again",
    )
    parser.add_argument("--rst", help="also write the table as reStructuredText to this file")
    parser.add_argument("--folder", help="where worlds are made, instead of the temporary folder")
    parser.add_argument("--width", type=int, default=200, help="columns of the table")
    options = parser.parse_args(argv)
    options.fault = options.fault or ["kill"]
    return options


if __name__ == "__main__":
    sys.exit(main())
