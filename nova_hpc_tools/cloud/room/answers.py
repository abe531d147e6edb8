# SPDX-License-Identifier: Apache-2.0
"""The answers of ``capacity --make-room`` and ``when``, for people and for programs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from nova_hpc.cluster.plan import GangPlan
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.planned_work import format_planned_time
from nova_hpc_tools.cloud.room.earliest import RoomTime
from nova_hpc_tools.cloud.room.end_times import EndTimes
from nova_hpc_tools.cloud.room.moves import RoomMiss, RoomMove, RoomPlan
from nova_hpc_tools.cloud.room.question import RoomQuestion

MOVE_COLUMNS: Final = ("Server", "ID", "From", "To", "Level", "Move", "Owner", "Agreed", "Done")
_UNKNOWN: Final = "-"
_CUT: Final = "The search was cut short: fewer moves may do."


def list_move_rows(answer: RoomPlan | RoomMiss, done: int = 0) -> list[tuple[object, ...]]:
    """Return the moves as rows of MOVE_COLUMNS.

    :param done: the number of moves that were made.
    """
    return [
        (
            printable_text(move.server.name),
            move.server.uuid,
            move.server.host,
            move.target,
            _format_level(move),
            move.way,
            move.server.project or _UNKNOWN,
            "yes" if move.agreed else "ask",
            number < done,
        )
        for number, move in enumerate(answer.moves if isinstance(answer, RoomPlan) else ())
    ]


def _format_level(move: RoomMove) -> str:
    changed = move.before not in ("", move.level)
    level = f"{move.level} (was {move.before})" if changed else move.level
    return f"{level}, {move.domain}" if move.domain else level


def print_moves(question: RoomQuestion, answer: RoomPlan | RoomMiss) -> None:
    """Print the moves that make room, or why none do."""
    if isinstance(answer, RoomMiss):
        if answer.proven:
            print(f"no moves make room for {question.text}: {answer.reason}")
        else:
            print(f"no moves were found that make room for {question.text}: {answer.reason}")
            print("The search was cut short: there may be some.")
        return
    if not answer.moves:
        print(f"{question.text}: fits already{format_place(answer.gang)}; no move is needed")
        return
    count = len(answer.moves)
    print(
        f"{count} move{' makes' if count == 1 else 's make'} room for {question.text}"
        f"{format_place(answer.gang)}"
    )
    print()
    # Without ids, a line fits 100 columns; programs read them.
    rows = (MOVE_COLUMNS, *list_move_rows(answer))
    print_table([(name, *others) for name, _, *others, _ in rows])
    print()
    if not answer.proven:
        print(_CUT)
    print("Nothing was changed. The moves are in order; a cold one stops its server for a while.")
    ask = sum(not move.agreed for move in answer.moves)
    if ask:
        print(f"The owners' consent is missing for {ask} of them.")


def print_time(question: RoomQuestion, room_time: RoomTime, taken: datetime.datetime) -> None:
    """Print the time from which on a request fits, and the servers that end until then."""
    print(f"{format_time(question, room_time, taken)}{format_place(room_time.gang)}")
    if room_time.time is None:
        return
    print()
    rows = (
        (
            *(printable_text(end.server.name), end.server.uuid, end.server.host),
            *(format_planned_time(end.time), printable_text(end.source)),
        )
        for end in room_time.leaving
    )
    print_table((("Server that ends", "ID", "Host", "Time", "Known from"), *rows))


def format_time(question: RoomQuestion, room_time: RoomTime, taken: datetime.datetime) -> str:
    """Return the time from which on a request fits, for people."""
    if room_time.time is None:
        return f"{question.text}: fits now"
    wait = _format_wait(room_time.time - taken)
    return f"{question.text}: fits from {format_planned_time(room_time.time)} on, in {wait}"


def format_no_time(question: RoomQuestion, times: EndTimes) -> str:
    """Return that no known end of a server is enough, for people."""
    if times.ends:
        return f"{question.text}: does not fit after the {len(times.ends)} known ends of servers"
    return f"{question.text}: no end time is known"


def describe_moves(answer: RoomPlan | RoomMiss, done: int = 0) -> dict[str, Any]:
    """Return the moves as a JSON object.

    :param done: the number of moves that were made.
    """
    if isinstance(answer, RoomMiss):
        return {"moves": None, "proven": answer.proven, "reason": answer.reason}
    return {
        "moves": [
            {
                "server": move.server.uuid,
                "name": move.server.name,
                "project": move.server.project,
                "from": move.server.host,
                "to": move.target,
                "way": move.way,
                "level": move.level,
                "level_before": move.before or None,
                "domain": move.domain or None,
                "agreed": move.agreed,
                "done": number < done,
            }
            for number, move in enumerate(answer.moves)
        ],
        "proven": answer.proven,
        "hosts": dict(answer.gang.hosts),
    }


def describe_time(room_time: RoomTime | None) -> dict[str, Any]:
    """Return the time and the ends before it as a JSON object."""
    if room_time is None:
        return {"fits": False, "time": None}
    return {
        "fits": room_time.time is None,
        "time": None if room_time.time is None else format_planned_time(room_time.time),
        "hosts": dict(room_time.gang.hosts),
        "ends": [
            {
                "server": end.server.uuid,
                "name": end.server.name,
                "host": end.server.host,
                "time": format_planned_time(end.time),
                "source": end.source,
            }
            for end in room_time.leaving
        ],
    }


def describe_question(question: RoomQuestion) -> dict[str, Any]:
    """Return the request as a JSON object."""
    return {
        "flavor": question.flavor.name,
        "image": question.flavor.image,
        "members": question.members,
        "level": None if question.level is None else question.level.word,
    }


def format_place(gang: GangPlan) -> str:
    """Return the hosts of a request, as the end of a sentence."""
    return f", on {join_first(list(gang.hosts), 5)}"


def _format_wait(wait: datetime.timedelta) -> str:
    hours, minutes = divmod(int(wait.total_seconds()) // 60, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours} hours" if hours else f"{minutes} minutes"


def print_table(rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns, the head first."""
    wide = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (str(cell).ljust(width) for cell, width in zip(row, wide, strict=True))
        print("  ".join(cells).rstrip())
