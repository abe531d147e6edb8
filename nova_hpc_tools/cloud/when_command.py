# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc when``: the earliest time at which servers fit, or the moves that make room."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import sys
from typing import Final

from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.room_note import RoomNote
from nova_hpc_tools.base import CommandAnswer, CommandError, Count, ListCommand
from nova_hpc_tools.cloud import capacity_command
from nova_hpc_tools.cloud.room import (
    answers,
    blazar_leases,
    earliest,
    end_times,
    moves,
    published,
    time_view,
)
from nova_hpc_tools.cloud.room.earliest import RoomTime
from nova_hpc_tools.cloud.room.end_times import EndTimes
from nova_hpc_tools.cloud.room.moves import RoomMiss, RoomPlan
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.fabric import nova_aggregates
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.fabric.problems import FabricMapError
from nova_hpc_tools.pictures import page
from nova_hpc_tools.snapshot import SnapshotError

SCHEMA: Final = "nova-hpc/when"
VERSION: Final = 1
_NO_TIME: Final = 1


class ShowWhen(ListCommand):
    """Show the earliest time at which servers of a flavor fit.

    Known are the times in the metadata hpc:until of servers, which their owners set, leases in a
    snapshot, and with --leases those of Blazar. A time without a time zone, or in the past, is
    unknown, and a warning names the server. If the known times are not enough, the fewest moves are
    shown that make room. The exit status is 0 if the servers fit now or at a known time, 1 if not,
    and 2 if the question cannot be answered. --format svg and html draw the hosts over time. Only
    --publish changes something: the flavor's description, where users of openstack hpc cluster
    create --when read the times. The exit status is 0 then.
    """

    acts_with = ("publish",)
    draws = True
    errors = (SnapshotError, FabricMapError, NovaApiError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        capacity_command.add_question_arguments(parser)
        parser.add_argument(
            "--members",
            type=Count(1),
            default=1,
            metavar="N",
            help="so many servers at the same time, default: %(default)s",
        )
        parser.add_argument(
            "--publish",
            action="store_true",
            help="write the times of 1, 2, 4, ... and N servers into the flavor's description",
        )
        parser.add_argument(
            "--leases",
            action="store_true",
            help="servers of Blazar's leases end with their leases, as its API has them",
        )
        capacity_command.add_level_argument(parser)
        capacity_command.add_cloud_arguments(parser)
        capacity_command.add_changed_cloud_argument(parser, "--publish or --leases")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Find the earliest time, or the moves; status 0 if a time is known or published."""
        if parsed_args.publish:
            _check_publishable(parsed_args)
        cloud, fabric, problems = capacity_command.read_cloud(parsed_args)
        if parsed_args.leases:
            compute = nova_aggregates.connect_compute_proxy(parsed_args)
            cloud = blazar_leases.add_leases(cloud, compute)
        question = capacity_command.read_question(parsed_args, cloud, fabric)
        taken = end_times.read_time_of_snapshot(cloud)
        times = end_times.read_end_times(cloud)
        clock = end_times.find_clock_problem(taken, datetime.datetime.now(datetime.UTC))
        for problem in (*problems, *times.problems, *filter(None, [clock])):
            print(f"nova-hpc when: warning: {problem}", file=sys.stderr)
        room_time = earliest.find_earliest_time(cloud, question, times.ends)
        plan = None if room_time is not None else moves.find_room_moves(cloud, question)
        note = None
        if parsed_args.publish:
            note = published.build_room_note(cloud, question, times.ends)
            compute = nova_aggregates.connect_compute_proxy(parsed_args)
            published.FlavorDescriber(compute).describe_room(question.flavor.id, note)
        view = functools.partial(time_view.view_time, cloud, question, room_time, times, taken)
        return CommandAnswer(
            answers.MOVE_COLUMNS,
            [] if plan is None else answers.list_move_rows(plan),
            status=0 if room_time is not None or note is not None else _NO_TIME,
            show=lambda: _print_answer(question, room_time, plan, times, taken, note),
            document=lambda: _dump_document(question, room_time, plan, times, note),
            pictures={
                "svg": lambda: page.draw_times_svg(view()),
                "html": lambda: page.draw_times_page(view()),
            },
        )


def _check_publishable(args: argparse.Namespace) -> None:
    """Refuse options with which the answer is not for all users of the flavor.

    :raises CommandError: names the option.
    """
    for option in ("snapshot", "level", "image", "port"):
        if getattr(args, option):
            raise CommandError(
                f"--publish is about the present cloud and the flavor alone: leave --{option} out"
            )


def _print_answer(
    question: RoomQuestion,
    room_time: RoomTime | None,
    plan: RoomPlan | RoomMiss | None,
    times: EndTimes,
    taken: datetime.datetime,
    note: RoomNote | None,
) -> None:
    if room_time is not None:
        answers.print_time(question, room_time, taken)
    if plan is not None:
        print(answers.format_no_time(question, times))
        answers.print_moves(question, plan)
    if note is not None:
        print(f"\nThe description of {printable_text(question.flavor.name)} has {note.text}")


def _dump_document(
    question: RoomQuestion,
    room_time: RoomTime | None,
    plan: RoomPlan | RoomMiss | None,
    times: EndTimes,
    note: RoomNote | None,
) -> str:
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        **answers.describe_question(question),
        **answers.describe_time(room_time),
        "known_ends": len(times.ends),
        "make_room": None if plan is None else answers.describe_moves(plan),
        "problems": list(times.problems),
        "published": None if note is None else note.text,
    }
    return json.dumps(document, indent=2) + "\n"
