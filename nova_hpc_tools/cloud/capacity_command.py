# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc capacity``: how many servers, and how many whole clusters, still fit."""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import attrs

from nova_hpc.cluster.plan.tree import natural_sort_key
from nova_hpc.fabric.aggregates import read_aggregate_place
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.base import CommandAnswer, CommandError, Count, ListCommand
from nova_hpc_tools.cloud import preempt_command
from nova_hpc_tools.cloud.capacity import Capacity, measure_capacity
from nova_hpc_tools.cloud.cluster_capacity import AtLevel, count_clusters_by_level
from nova_hpc_tools.cloud.drain_api import DrainCloud
from nova_hpc_tools.cloud.explain_command import direct_ports
from nova_hpc_tools.cloud.preempt_command import PreemptRun
from nova_hpc_tools.cloud.room import answers, earliest, end_times, moves
from nova_hpc_tools.cloud.room.moves import RoomPlan
from nova_hpc_tools.cloud.room.preemptor import Preemptor
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.cloud.room.room_maker import RoomMaker
from nova_hpc_tools.cloud.room.unshelver import Unshelver
from nova_hpc_tools.cloud.server_moves import DrainStopError, MovePatience
from nova_hpc_tools.fabric import map_files, nova_aggregates
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.fabric.problems import FabricMapError
from nova_hpc_tools.snapshot import Snapshot, SnapshotError, cloud_readers

SCHEMA: Final = "nova-hpc/capacity"
ROOM_SCHEMA: Final = "nova-hpc/make-room"
VERSION: Final = 1
_MISS: Final = 1
_COLUMNS: Final = ("Host", "Node", "Fit", "Leaf", "Why not more")
#: Reasons that are shown; the others are counted.
_REASONS: Final = 8


@attrs.frozen
class _CapacityReport:
    """The data that ``capacity`` prints: free servers by host, and clusters by fabric level."""

    capacity: Capacity
    fabric: FabricMap
    #: None without the option for clusters.
    members: int | None
    #: For each level of the map; of clusters of one without *members*.
    levels: tuple[AtLevel, ...]
    problems: tuple[str, ...]

    def place(self, host: str) -> FabricPlace:
        """Return the domains of a host in the fabric map; none if the map lacks the host."""
        return self.fabric.place(host) or FabricPlace(host=host)

    @property
    def fits(self) -> bool:
        """Whether one more server fits, or with --members one more cluster."""
        return self.levels[-1].clusters > 0


class ShowCapacity(ListCommand):
    """Show how many servers of a flavor fit, and how many whole clusters of them.

    Places one server after the other with the scheduler's own functions until none fits. The places
    of hosts on the fabric come from Nova's aggregates (nova-hpc fabric sync), or from --map. The
    exit status is 0 if one more server (with --members: one more cluster) fits somewhere, 1 if not,
    and 2 if the question cannot be answered. Changes nothing without --yes.

    With --make-room, the status is 0 if all servers fit already, and 1 if moves are needed or do
    not help.

    With --yes, it makes the moves of servers whose owners have agreed (hpc:movable), one after the
    other, each checked by Nova's scheduler. It ends at the first server that does not move, or
    whose owner does not agree any more. Running it again goes on. The status is 0 if all servers
    fit then.

    With --preempt, it shelves preemptible servers (hpc:preemptible) instead, minutes after their
    owners have the tag hpc-preempt. A timer that runs --unshelve --yes brings them back.
    """

    acts_with = ("yes",)
    errors = (SnapshotError, FabricMapError, NovaApiError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_question_arguments(parser, required=False)
        parser.add_argument(
            "--members", type=Count(1), metavar="N", help="also count whole clusters of N servers"
        )
        parser.add_argument(
            "--make-room",
            action="store_true",
            help="if they do not fit, show the fewest moves of other servers that make room",
        )
        parser.add_argument(
            "--agreed",
            action="store_true",
            help="move only servers whose owners have agreed (hpc:movable)",
        )
        parser.add_argument(
            "--preempt",
            action="store_true",
            help="instead of moves, show the fewest servers that have to leave, of those whose "
            "flavors allow it (hpc:preemptible)",
        )
        parser.add_argument(
            "--unshelve",
            action="store_true",
            help="show the servers that --preempt has shelved, in the order of their return",
        )
        parser.add_argument(
            "--yes",
            action="store_true",
            help="with --make-room: make the moves of servers whose owners have agreed, or "
            "announce the preemption, wait, and shelve. With --unshelve: unshelve those that fit, "
            "in order",
        )
        parser.add_argument(
            "--notice",
            type=Count(1),
            default=5,
            metavar="MINUTES",
            help="with --preempt --yes: time between notice and shelving, default: %(default)s",
        )
        parser.add_argument(
            "--hold",
            type=Count(0),
            default=30,
            metavar="MINUTES",
            help="with --unshelve --yes: no server returns so soon after the last was shelved, "
            "default: %(default)s",
        )
        parser.add_argument(
            "--timeout",
            type=Count(1),
            default=1800,
            metavar="SECONDS",
            help="with --yes: how long one server may take, default: %(default)s",
        )
        add_level_argument(parser)
        add_cloud_arguments(parser)
        add_changed_cloud_argument(parser, "--yes")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Count the servers and clusters that still fit; status 0 if one more fits, 1 if not."""
        args = parsed_args
        self._check_words(args)
        if args.unshelve:
            hold = datetime.timedelta(minutes=args.hold)
            patience = MovePatience(args.timeout)
            unshelver = Unshelver(
                self.connect(args), lambda: self._read_again(args), patience, hold, self.say
            )
            return preempt_command.answer_unshelve(unshelver, act=args.yes)
        if args.preempt:
            return self._preempt(args)
        if args.make_room:
            return self._make_room(args)
        cloud, fabric, problems = read_cloud(args)
        capacity = measure_capacity(cloud, args.flavor, args.image, args.port or ())
        report = _CapacityReport(
            capacity=capacity,
            fabric=fabric,
            members=args.members,
            levels=count_clusters_by_level(fabric, capacity.by_host, args.members or 1),
            problems=problems,
        )
        rows = [
            (
                room.node.host,
                room.node.node,
                room.fit,
                report.place(room.node.host).leaf or "",
                room.reason,
            )
            for room in capacity.rooms
        ]
        for problem in report.problems:
            print(f"nova-hpc capacity: warning: {problem}", file=sys.stderr)
        return CommandAnswer(
            _COLUMNS,
            rows,
            status=0 if report.fits else _MISS,
            show=lambda: _print_capacity_report(report),
            document=lambda: _dump_capacity_document(report),
        )

    @staticmethod
    def _check_words(args: argparse.Namespace) -> None:
        """Refuse options that contradict each other.

        :raises CommandError: the text names the options.
        """
        if args.level is not None and not args.make_room:
            raise CommandError("--level needs --make-room: without it all levels are shown")
        if args.agreed and not args.make_room:
            raise CommandError("--agreed needs --make-room: it restricts the moves")
        if args.unshelve and (args.make_room or args.flavor is not None):
            raise CommandError("--unshelve is about all preempted servers: leave --flavor out")
        if not args.unshelve and args.flavor is None:
            raise CommandError("--flavor is needed: name or ID of a flavor")
        if args.preempt and (args.agreed or not args.make_room):
            raise CommandError("--preempt needs --make-room, without --agreed: it moves no server")
        if args.yes and not (args.make_room or args.unshelve):
            raise CommandError("--yes needs --make-room: it makes the moves")
        if (args.yes or args.unshelve) and args.snapshot:
            raise CommandError("servers of the running cloud are concerned: leave --snapshot out")

    def connect(self, args: argparse.Namespace) -> DrainCloud:
        """Connect to the cloud that --yes changes; tests have one of their own."""
        return DrainCloud(nova_aggregates.connect_compute_proxy(args))

    def _read_again(self, args: argparse.Namespace) -> Snapshot:
        return cloud_readers.obtain_snapshot(None, args.config, args.image)

    def _preempt(self, args: argparse.Namespace) -> CommandAnswer:
        """Plan the preemption that makes room; with --yes carry it out."""
        preemptor = None
        if args.yes:
            patience = MovePatience(args.timeout)
            preemptor = Preemptor(
                self.connect(args), lambda: self._read_again(args), patience, self.say
            )
        run = PreemptRun(self._name, ROOM_SCHEMA, args.notice, preemptor)
        run.finish_begun_shelving()
        cloud, fabric, problems = read_cloud(args)
        for problem in problems:
            print(f"{self._name}: warning: {problem}", file=sys.stderr)
        return run.answer(cloud, read_question(args, cloud, fabric), list(problems))

    def _make_room(self, args: argparse.Namespace) -> CommandAnswer:
        """Plan the moves that make room; with --yes make them."""
        maker = None
        if args.yes:
            maker = RoomMaker(
                self.connect(args),
                lambda: self._read_again(args),
                MovePatience(args.timeout),
                self.say,
            )
            for failure in maker.finish_begun_moves():
                print(f"{self._name}: warning: {printable_text(failure)}", file=sys.stderr)
        cloud, fabric, problems = read_cloud(args)
        question = read_question(args, cloud, fabric)
        clock = end_times.find_clock_problem(
            end_times.read_time_of_snapshot(cloud), datetime.datetime.now(datetime.UTC)
        )
        for problem in (*problems, *filter(None, [clock])):
            print(f"{self._name}: warning: {problem}", file=sys.stderr)
        answer = moves.find_room_moves(cloud, question, agreed=args.agreed or args.yes)
        fits = isinstance(answer, RoomPlan) and not answer.moves
        done, stop = 0, None
        if maker is not None and isinstance(answer, RoomPlan) and answer.moves:
            done, stop = self._carry_out(maker, question, answer)
            fits = stop is None
            if stop is not None:
                print(f"{self._name}: {stop}", file=sys.stderr)

        def show() -> None:
            if done or stop is not None:
                if fits:
                    print(f"{question.text}: fits now")
            else:
                answers.print_moves(question, answer)

        document = {
            "schema": ROOM_SCHEMA,
            "version": VERSION,
            **answers.describe_question(question),
            "fits": fits,
            **answers.describe_moves(answer, done),
            "problems": list(problems),
        }
        return CommandAnswer(
            answers.MOVE_COLUMNS,
            answers.list_move_rows(answer, done),
            status=0 if fits else _MISS,
            show=show,
            document=lambda: json.dumps(document, indent=2) + "\n",
        )

    def _carry_out(
        self, maker: RoomMaker, question: RoomQuestion, plan: RoomPlan
    ) -> tuple[int, str | None]:
        """Make the moves in order; returns how many were made, and the reason if it stopped."""

        def fits(cloud: Snapshot) -> bool:
            return earliest.find_earliest_time(cloud, question, ()) is not None

        def needs(most: int) -> Callable[[Snapshot], bool]:
            def suffice(cloud: Snapshot) -> bool:
                answer = moves.find_room_moves(cloud, question, agreed=True)
                return isinstance(answer, RoomPlan) and len(answer.moves) <= most

            return suffice

        total = len(plan.moves)
        for done, move in enumerate(plan.moves):
            server = f"{printable_text(move.server.name)} ({move.server.uuid})"
            at = f"{done} of {total} moves are made; stopped at {server}"
            try:
                # A server may have ended, or another one may have come.
                if done and not maker.await_cloud(needs(total - done)):
                    return done, (
                        f"{done} of {total} moves are made; the rest would not make room any more: "
                        "other servers came, or devices are withheld. Run it again for a new plan"
                    )
                if done and fits(maker.read()):
                    return done, None
                maker.move(move)
            except (DrainStopError, NovaApiError) as error:
                return done, f"{at}: {printable_text(str(error))}; run it again to go on"
            except KeyboardInterrupt:
                print(f"{self._name}: {at}; run it again to go on", file=sys.stderr)
                raise
        if not maker.await_cloud(fits):
            return total, (
                f"all {total} moves are made, and {question.text} does not fit: other servers "
                "came, or devices are withheld (nova-hpc device list --all-nodes)"
            )
        return total, None


def add_question_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Declare the options that describe one server.

    :param required: whether the parser itself refuses a missing flavor.
    """
    parser.add_argument(
        "--flavor", required=required, metavar="FLAVOR", help="name or ID of a flavor"
    )
    parser.add_argument(
        "--image", metavar="IMAGE", help="name or ID of the image, whose properties count, too"
    )
    parser.add_argument(
        "--port",
        type=direct_ports,
        action="append",
        metavar="NETWORK[:COUNT]",
        help="each server brings so many direct ports (default: 1) of this physical network; "
        "may be repeated",
    )


def add_level_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the level that servers share."""
    parser.add_argument(
        "--level",
        choices=[level.word for level in FabricLevel],
        help="the servers have to be in one such domain (default: as the flavor requires)",
    )


def add_cloud_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose the cloud and the fabric map."""
    parser.add_argument(
        "--map",
        dest="fabric",
        metavar="FILE",
        help="the places of the hosts on the fabric (default: from Nova's aggregates)",
    )
    cloud_readers.add_snapshot_arguments(parser)
    map_files.add_map_arguments(parser)


def add_changed_cloud_argument(parser: argparse.ArgumentParser, option: str) -> None:
    """Declare the option for the cloud that another option reads or changes."""
    group = parser.add_argument_group(f"which cloud is meant by {option}")
    group.add_argument(
        "--os-cloud",
        metavar="NAME",
        help="name in clouds.yaml (default: OS_CLOUD, or OS_AUTH_URL and the like in the "
        "environment). Its user needs the admin role",
    )


def read_cloud(args: argparse.Namespace) -> tuple[Snapshot, FabricMap, tuple[str, ...]]:
    """Read the chosen cloud and its fabric map; returns them with their problems.

    :raises SnapshotError: the cloud cannot be read.
    :raises nova_hpc_tools.fabric.problems.FabricMapError: the map cannot be read.
    """
    fabric = None if args.fabric is None else map_files.read_reported_map(args.fabric, args)
    cloud = cloud_readers.obtain_snapshot(args.snapshot, args.config, args.image)
    # A collection of garbage would walk the millions of objects of a large cloud.
    gc.freeze()
    if fabric is not None:
        return cloud, fabric, cloud.problems
    fabric, problems = read_synced_map(cloud)
    return cloud, fabric, (*cloud.problems, *problems)


def read_question(args: argparse.Namespace, cloud: Snapshot, fabric: FabricMap) -> RoomQuestion:
    """Build the request for room from the options.

    :raises SnapshotError: no such server can be created, or no domain of the level is known.
    """
    return RoomQuestion.of(
        cloud,
        args.flavor,
        fabric,
        members=args.members or 1,
        level=None if args.level is None else FabricLevel.from_word(args.level),
        image=args.image,
        ports=args.port or (),
    )


def read_synced_map(cloud: Snapshot) -> tuple[FabricMap, tuple[str, ...]]:
    """Read the fabric map in the aggregates of a snapshot, and the problems in them."""
    places: dict[str, FabricPlace] = {}
    problems: dict[str, None] = {}
    for node in cloud.hosts:
        reading = read_aggregate_place(node.host, node.aggregates.values())
        places[node.host] = reading.place
        problems |= dict.fromkeys(reading.problems)
    return FabricMap(places=tuple(places.values())), tuple(problems)


# --- for programs ----------------------------------------------------------------


def _dump_capacity_document(report: _CapacityReport) -> str:
    return (
        json.dumps(
            {"schema": SCHEMA, "version": VERSION, **_build_capacity_document(report)}, indent=2
        )
        + "\n"
    )


def _build_capacity_document(report: _CapacityReport) -> dict[str, Any]:
    capacity = report.capacity
    return {
        "flavor": capacity.flavor.name,
        "image": capacity.flavor.image,
        "members": report.members,
        "fits": report.fits,
        "total": capacity.total,
        "levels": [_describe_level_capacity(report, at_level) for at_level in report.levels],
        "hosts": [
            {
                "host": room.node.host,
                "node": room.node.node,
                "fit": room.fit,
                "place": {level.word: name for level, name in report.place(room.node.host).path},
                "nvlink_domain": report.place(room.node.host).nvlink_domain,
                "reason": room.reason,
            }
            for room in capacity.rooms
        ],
        "problems": list(report.problems),
    }


def _describe_level_capacity(report: _CapacityReport, at_level: AtLevel) -> dict[str, Any]:
    document = {"level": at_level.level, "domains": at_level.domains, "largest": at_level.largest}
    return document if report.members is None else {**document, "clusters": at_level.clusters}


# --- for people --------------------------------------------------------------------


def _print_capacity_report(report: _CapacityReport) -> None:
    capacity = report.capacity
    able = sum(room.fit > 0 for room in capacity.rooms)
    print(
        f"{capacity.flavor.name}: {capacity.total} more servers fit, on {able} of "
        f"{len(capacity.rooms)} hosts"
    )
    by_fit: dict[int, list[str]] = {}
    for room in capacity.rooms:
        by_fit.setdefault(room.fit, []).append(room.node.name)
    for fit in sorted(by_fit, reverse=True):
        prefix = "each of " if len(by_fit[fit]) > 1 else ""
        print(f"  {fit} on {prefix}{join_first(sorted(by_fit[fit], key=natural_sort_key), 5)}")
    reasons = Counter(room.reason for room in capacity.rooms if not room.fit)
    if reasons:
        print("\nWhere none fits:")
    for reason, count in reasons.most_common(_REASONS):
        print(f"  {count} host{'s' if count > 1 else ''}: {reason}")
    if len(reasons) > _REASONS:
        print(f"  and {len(reasons) - _REASONS} more reasons")
    print()
    _show_levels(report)


def _show_levels(report: _CapacityReport) -> None:
    rows = [["level", "domains", "largest cluster"]]
    rows[0] += [f"clusters of {report.members}"] if report.members is not None else []
    for at_level in report.levels:
        rows.append([at_level.level, str(at_level.domains), str(at_level.largest)])
        rows[-1] += [str(at_level.clusters)] if report.members is not None else []
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for level, *numbers in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, wide[1:], strict=True)]
        print("  ".join([level.ljust(wide[0]), *cells]))
    if len(report.levels) == 1:
        print(
            "No host has a known place on the fabric: give --map FILE, or write a map into Nova "
            "with nova-hpc fabric sync."
        )
