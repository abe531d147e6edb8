# SPDX-License-Identifier: Apache-2.0
"""Schedulers that die at each step between decision and claim, and other failures there.

Each row has a server group of two. Its first member meets the fault; then the second one is made,
and the first again if its user had to delete it. Both must run in one leaf, no host may have
two servers, and nothing may be left after all is deleted and reaped.

python -m benchmarks.group_cloud.kills
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.concurrency import stage
from benchmarks.group_cloud import report
from benchmarks.group_cloud.__main__ import settle
from benchmarks.group_cloud.cloud import Cloud, cloud
from benchmarks.group_cloud.hosts import Shape
from benchmarks.group_cloud.serve_scheduler import STEPS
from benchmarks.group_cloud.user import User

#: Seconds in which a fault must happen.
_REACHED = 240.0
_POSTS = [step for step in STEPS if step.startswith("post-")]


@attrs.define
class Row:
    """One fault and its outcome."""

    name: str
    #: Name of the file in the folder of the deaths, and its text.
    file: str = ""
    text: str = ""
    group: str = ""
    first: str = ""
    #: Whether the fault happened.
    happened: bool = False
    #: The state of the first member after the fault, as its user saw it.
    seen: str = ""
    fault: str = ""
    leaves: list[str] = attrs.field(factory=list)
    members: list[str] = attrs.field(factory=list)

    @property
    def good(self) -> bool:
        return self.happened and len(self.members) == 2 and len(set(self.leaves)) == 1


def rows(names: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows for deaths of schedulers, then those for faults of Placement."""
    every = [
        Row(f"SIGKILL {when} {step}", f"{when}-{step}")
        for step in STEPS
        for when in ("before", "after")
    ]
    for step in _POSTS:
        every += [
            Row(f"{step}: 409 of somebody else", f"fault-{step}", "status 409"),
            Row(f"{step}: 500, no effect", f"fault-{step}", "status 500"),
            Row(f"{step}: the answer is lost", f"fault-{step}", "lost"),
            Row(f"{step}: 20 s late", f"fault-{step}", "slow 20"),
        ]
    yield from (each for each in every if not names or any(name in each.name for name in names))


def meet(made: Cloud, user: User, row: Row) -> None:
    """Make the first member of a group, and let it meet the fault."""
    row.group = user.group()
    (made.deaths / row.file).write_text(row.text)
    status, found = user.create("ours", row.group, 2)
    if status == 202:
        row.first = str(found["server"]["id"])
    deadline = time.monotonic() + _REACHED
    while time.monotonic() < deadline:
        if not (made.deaths / row.file).exists():
            row.happened = True
            if row.text and row.first:
                # A scheduler that is still alive must not meet the next row's fault.
                user.wait([row.first], _REACHED)
            return
        time.sleep(0.2)
    (made.deaths / row.file).unlink(missing_ok=True)


def finish(user: User, some: Sequence[Row], patience: float) -> None:
    """Make the second members, and repeat the first ones that failed, as their user would."""
    seconds = {row.group: _made(user, row.group) for row in some}
    states = user.wait([row.first for row in some if row.first], patience)
    again: dict[str, str] = {}
    for row in some:
        row.seen = states.get(row.first, "")
        if row.seen != "active":
            row.fault = user.fault(row.first)
            user.call("DELETE", f"/servers/{row.first}")
            again[row.group] = _made(user, row.group)
    servers = [*seconds.values(), *again.values()]
    user.wait(servers, patience)
    found = user.states()
    for row in some:
        for server in (again.get(row.group, row.first), seconds[row.group]):
            state, host = found.get(server, ("", None))
            if state == "active" and host:
                row.members.append(server)
                row.leaves.append(Shape.leaf_of(host))


def _made(user: User, group: str) -> str:
    for _ in range(60):
        status, found = user.create("ours", group, 2)
        if status == 202:
            return str(found["server"]["id"])
        time.sleep(2)
    return ""


def outage(made: Cloud, user: User, which: str, groups: int, patience: float) -> Row:
    """Kill MariaDB or RabbitMQ while members are made, and start it again."""
    row = Row(f"SIGKILL of {which} while {2 * groups} members are made", happened=True)
    mine = [user.group() for _ in range(groups)]
    asked = [user.create("ours", group, 2) for group in mine]
    if which == "MariaDB":
        os.kill(int((made.made.folder / "mariadb.pid").read_text()), signal.SIGKILL)
        time.sleep(3)
        made.keep(stage.mariadb(made.made))
    else:
        made.broker.kill()
        time.sleep(3)
        made.broker.start()
    first = [str(found["server"]["id"]) if status == 202 else "" for status, found in asked]
    second = [_made(user, group) for group in mine]
    states = user.wait([each for each in (*first, *second) if each], patience)
    leaves: dict[str, set[str]] = {}
    found = user.states()
    for group, *pair in zip(mine, first, second, strict=True):
        for each in pair:
            state, host = found.get(each, ("", None))
            if state == "active" and host:
                leaves.setdefault(group, set()).add(Shape.leaf_of(host))
    active = sum(each == "active" for each in states.values())
    row.seen = f"{active} of {2 * groups} run, the others are refused or wait"
    split = sum(len(each) > 1 for each in leaves.values())
    row.fault = clean(made, user) + (f"; split {split}" if split else "")
    return row


def clean(made: Cloud, user: User) -> str:
    """Delete and reap; return the rest as text, '' if nothing is left."""
    twice = user.twice()
    stays = user.delete_all()
    settle(user)
    reaped = made.command("fabric", "reap")
    left = user.leftovers()
    found = {"twice": twice, "undeleted": stays, "left": left, "reap": reaped.returncode}
    return ", ".join(f"{name} {value}" for name, value in found.items() if value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_cloud.kills")
    parser.add_argument("--rows", nargs="+", help="only rows whose name has one of these in it")
    parser.add_argument("--at-once", type=int, default=8, help="groups that are there together")
    parser.add_argument("--patience", type=int, default=60, help="of Nova's calls, in seconds")
    parser.add_argument("--no-outages", action="store_true")
    parser.add_argument("--json", type=Path, help="add each row to this file")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what the file of --json has"
    )
    parser.add_argument("--write", action="store_true", help=f"write {report.KILLS.name}")
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes here")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found = report.known(arguments.json) if arguments.resume else []
    found = [row for row in found if row["good"]]
    done = {row["name"] for row in found}
    with cloud(Shape(arguments.at_once, 2), arguments.patience) as made:
        user = User(made.made, made.api_port)
        user.flavor("ours", fabric="leaf")
        made.ask("aggregates")
        made.start_schedulers("ours")
        todo = [row for row in rows(arguments.rows) if row.name not in done]
        limit = 3.0 * arguments.patience + 120
        try:
            while todo:
                some, todo = todo[: arguments.at_once], todo[arguments.at_once :]
                for row in some:
                    meet(made, user, row)
                finish(user, some, limit)
                stays = clean(made, user)
                for row in some:
                    found.append(_say(row, row.good and not stays, stays, arguments.json))
            for which in () if arguments.no_outages else ("MariaDB", "RabbitMQ"):
                if any(f"SIGKILL of {which} " in name for name in done):
                    continue
                row = outage(made, user, which, arguments.at_once // 2, limit)
                found.append(_say(row, not row.fault, row.fault, arguments.json))
        finally:
            if arguments.logs:
                shutil.copytree(made.made.logs, arguments.logs, dirs_exist_ok=True)
    if arguments.write:
        said = f"--at-once {arguments.at_once} --patience {arguments.patience}"
        command = f"python -m benchmarks.group_cloud.kills {said}"
        report.KILLS.write_text(report.kills(found, command))
    return int(not all(row["good"] for row in found))


def _say(row: Row, good: bool, stays: str, path: Path | None) -> dict[str, Any]:
    """Print a row, add it to the file, and return the added entry."""
    found = attrs.asdict(row) | {"good": good, "stays": stays, "commit": report.commit()}
    words = "in one leaf" if row.good else f"members in {row.leaves}"
    print(
        f"RESULT: {'' if good else 'WRONG: '}{row.name}: "
        f"{'' if row.happened else 'it never happened; '}first member {row.seen or 'unknown'}; "
        f"{words}; left: {stays or 'nothing'}",
        flush=True,
    )
    if path:
        with path.open("a") as stream:
            stream.write(json.dumps(found) + "\n")
    return found


if __name__ == "__main__":
    sys.exit(main())
