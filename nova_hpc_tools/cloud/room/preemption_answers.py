# SPDX-License-Identifier: Apache-2.0
"""The answers of ``capacity --make-room --preempt`` and ``--unshelve``."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.planned_work import format_planned_time
from nova_hpc_tools.cloud.room import answers
from nova_hpc_tools.cloud.room.moves import RoomMiss
from nova_hpc_tools.cloud.room.preemption import PreemptionPlan
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.cloud.room.unshelver import ReturnVerdict, WaitingServer
from nova_hpc_tools.snapshot import Server

COLUMNS: Final = ("Server", "ID", "Host", "Project", "Flavor", "Done")
WAITING_COLUMNS: Final = ("Server", "ID", "Project", "Flavor", "Shelved", "Fits", "Done")
_UNKNOWN: Final = "-"


def list_rows(
    answer: PreemptionPlan | RoomMiss, done: Sequence[str] = ()
) -> list[tuple[object, ...]]:
    """Return the servers of a plan as rows of COLUMNS.

    :param done: UUIDs of the servers that are shelved.
    """
    return [
        (
            *(printable_text(server.name), server.uuid, server.host),
            *(server.project or _UNKNOWN, printable_text(server.flavor), server.uuid in done),
        )
        for server in (answer.servers if isinstance(answer, PreemptionPlan) else ())
    ]


def format_notice(servers: Sequence[Server], due: datetime.datetime) -> list[str]:
    """Return lines about the notices that owners have."""
    time = format_planned_time(due)
    return [
        f"announced: {printable_text(server.name)} ({server.uuid}) on {server.host} is shelved "
        f"from {time} on"
        for server in servers
    ]


def print_preemption(question: RoomQuestion, answer: PreemptionPlan | RoomMiss) -> None:
    """Print the servers whose removal makes room, or why none do."""
    if isinstance(answer, RoomMiss):
        print(f"no preemption makes room for {question.text}: {answer.reason}")
        return
    place = answers.format_place(answer.gang)
    if not answer.servers:
        print(f"{question.text}: fits already{place}; nothing is preempted")
        return
    count = len(answer.servers)
    print(
        f"{count} preemptible server{' has' if count == 1 else 's have'} to leave for "
        f"{question.text}{place}"
    )
    print()
    # Without ids, a line fits 100 columns; programs read them.
    answers.print_table([(name, *others) for name, _, *others, _ in (COLUMNS, *list_rows(answer))])
    print()
    if not answer.proven:
        print("The search was cut short: fewer servers may do.")
    print("Nothing was changed.")


def describe_preemption(
    answer: PreemptionPlan | RoomMiss, due: datetime.datetime | None, done: Sequence[str]
) -> dict[str, Any]:
    """Return the servers as a JSON object."""
    if isinstance(answer, RoomMiss):
        return {"preempted": None, "proven": answer.proven, "reason": answer.reason}
    return {
        "preempted": [
            {
                "server": server.uuid,
                "name": server.name,
                "project": server.project,
                "host": server.host,
                "flavor": server.flavor,
                "done": server.uuid in done,
            }
            for server in answer.servers
        ],
        "notice": None if due is None else format_planned_time(due),
        "proven": answer.proven,
        "hosts": dict(answer.gang.hosts),
    }


def list_waiting_rows(
    waiting: Sequence[tuple[WaitingServer, ReturnVerdict | None]],
) -> list[tuple[object, ...]]:
    """Return preempted servers as rows of WAITING_COLUMNS; one without a verdict is back."""
    return [
        (
            *(each.server.name, each.server.uuid, each.server.project),
            *(printable_text(each.server.flavor), format_planned_time(each.since)),
            *(_format_verdict(verdict), verdict is None),
        )
        for each, verdict in waiting
    ]


def print_waiting(waiting: Sequence[tuple[WaitingServer, ReturnVerdict | None]]) -> None:
    """Print the preempted servers that are still shelved, the first to come back first."""
    rows = [row for row in list_waiting_rows(waiting) if not row[-1]]
    if not rows:
        print("no preempted server is shelved")
        return
    answers.print_table([(name, *others) for name, _, *others, _ in (WAITING_COLUMNS, *rows)])


def describe_waiting(
    waiting: Sequence[tuple[WaitingServer, ReturnVerdict | None]],
) -> list[dict[str, Any]]:
    """Return the preempted servers as JSON objects."""
    return [
        {
            "server": each.server.uuid,
            "name": each.server.name,
            "project": each.server.project,
            "flavor": each.server.flavor,
            "shelved": format_planned_time(each.since),
            "fits": None if verdict is None else verdict.fits,
            "done": verdict is None,
        }
        for each, verdict in waiting
    ]


def _format_verdict(verdict: ReturnVerdict | None) -> str:
    if verdict is None:
        return "yes"
    if verdict.never:
        return "never"
    return {True: "yes", False: "no", None: "unknown"}[verdict.fits]
