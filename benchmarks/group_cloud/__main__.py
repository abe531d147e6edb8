# SPDX-License-Identifier: Apache-2.0
"""Run the rounds; exit with 1 if a group is split, a host has two servers or anything is left."""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.group_cloud import report
from benchmarks.group_cloud.cloud import Cloud, cloud
from benchmarks.group_cloud.hosts import Shape
from benchmarks.group_cloud.user import Server, User, leaves_of

#: Way -> the way of stock Nova that it is compared with.
AGAINST = {"single": "stock", "multi": "stock-multi"}
#: The ways to make the groups: title, variant of the schedulers, and whether with single creates.
WAYS = {
    "stock": ("stock Nova, single creates", "stock", True),
    "single": ("hpc:fabric=leaf, single creates", "ours", True),
    "stock-multi": ("stock Nova, one request a group", "stock", False),
    "multi": ("hpc:fabric=leaf, one request a group", "ours", False),
}


def play(made: Cloud, user: User, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Play one round, and return its row."""
    title, variant, single = WAYS[way]
    made.start_schedulers(variant, arguments.schedulers)
    flavor = "ours" if variant == "ours" else "plain"
    groups = [user.group() for _ in range(arguments.groups)]
    started = time.monotonic()
    if single:
        found = user.singles(
            flavor, groups, arguments.members, announce=variant == "ours", flight=arguments.flight
        )
    else:
        found = user.multiples(flavor, groups, arguments.members)
    row = count(title, found, time.monotonic() - started, arguments.members)
    row["twice"] = user.twice()
    row["undeleted"] = len(user.delete_all())
    settle(user)
    reaped = made.command("fabric", "reap")
    if reaped.returncode:
        row["reap"] = reaped.stderr[-300:]
    row["left"] = user.leftovers()
    row["errors"] = len(said := made.ask("said"))
    for text in [*said, *sorted({each.fault or each.refused for each in found})][:6]:
        if text:
            print(f"    {text[-600:]}", file=sys.stderr)
    return row


def settle(user: User) -> None:
    """Wait until the hosts have released all allocations, at most a minute."""
    deadline = time.monotonic() + 60
    while "allocations" in user.leftovers() and time.monotonic() < deadline:
        time.sleep(1)


def count(title: str, found: Sequence[Server], seconds: float, members: int) -> dict[str, Any]:
    states = collections.Counter(each.state for each in found)
    active = collections.Counter(each.group for each in found if each.state == "active")
    times = sorted(each.seconds for each in found if each.state == "active") or [0.0]
    return {
        "way": title,
        "creates": len(found),
        "active": states["active"],
        "refused": states["error"] + states["refused"],
        "unknown": states["unknown"],
        "split": sum(len(each) > 1 for each in leaves_of(found).values()),
        "half": sum(0 < number < members for number in active.values()),
        "seconds": round(seconds, 1),
        "a create": round(seconds / max(1, len(found)), 3),
        "median": round(statistics.median(times), 2),
        "p95": round(times[int(0.95 * (len(times) - 1))], 2),
    }


def holds(row: dict[str, Any], roomy: bool) -> bool:
    """Whether a round had no error; for stock Nova, no host is used twice and nothing is left.

    Stock Nova refuses whole groups if it loses too many races for hosts.
    """
    wrong = row["twice"] or row["undeleted"] or row["unknown"] or row["left"] or row.get("reap")
    if "hpc:" in row["way"]:
        wrong = wrong or row["split"] or row["half"]
        wrong = wrong or (roomy and row["active"] != row["creates"])
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_cloud")
    parser.add_argument("--leaves", type=int, default=32)
    parser.add_argument("--hosts", type=int, default=16, help="of each leaf")
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--flight", type=int, default=10, help="creates of a group in flight")
    parser.add_argument("--schedulers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--json", type=Path, help="add each row to this file")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what the file of --json has"
    )
    parser.add_argument("--write", action="store_true", help=f"write {report.RACES.name}")
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes here")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = report.known(arguments.json) if arguments.resume else []
    done = {(row["round"], row["way"]) for row in rows}
    todo = [
        (number, way)
        for number in range(arguments.rounds)
        for way in arguments.ways
        if (number, WAYS[way][0]) not in done
    ]
    # SIGTERM becomes an exit, so that the started processes end with the command.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    shape = Shape(arguments.leaves, arguments.hosts)
    needed = arguments.groups * -(-arguments.members // arguments.hosts)
    roomy = needed <= arguments.leaves and arguments.members <= arguments.hosts
    started = time.monotonic()
    if todo:
        with cloud(shape) as made:
            user = User(made.made, made.api_port)
            user.flavor("plain")
            user.flavor("ours", fabric="leaf")
            made.ask("aggregates")
            hosts = len(list(shape.names()))
            print(f"RESULT: {hosts} hosts after {time.monotonic() - started:.0f} s", flush=True)
            try:
                for number, way in todo:
                    row = {"round": number} | play(made, user, way, arguments)
                    row["commit"] = report.commit()
                    rows.append(row)
                    print(f"RESULT: {'' if holds(row, roomy) else 'WRONG: '}{row}", flush=True)
                    if arguments.json:
                        with arguments.json.open("a") as stream:
                            stream.write(json.dumps(row) + "\n")
            finally:
                if arguments.logs:
                    shutil.copytree(made.made.logs, arguments.logs, dirs_exist_ok=True)
    if arguments.write:
        against = {WAYS[mine][0]: WAYS[stock][0] for mine, stock in AGAINST.items()}
        command = " ".join(["python -m benchmarks.group_cloud", *_said(arguments)])
        report.RACES.write_text(report.races(rows, against, command))
    return int(not all(holds(row, roomy) for row in rows))


def _said(arguments: argparse.Namespace) -> list[str]:
    """The size of the races, as options of the command line."""
    names = ("leaves", "hosts", "groups", "members", "flight", "schedulers", "rounds")
    return [f"--{name} {getattr(arguments, name)}" for name in names]


if __name__ == "__main__":
    sys.exit(main())
