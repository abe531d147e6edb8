# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric plan``: where the members of a gang would go, from files alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from nova_hpc.cluster.plan import Gang, GangOrder, GangPlan, GangPolicy, GangRefusal, plan_gang
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc.outside.name_lists import join_first
from nova_hpc_tools.base import CommandAnswer, CommandError, Count, ListCommand
from nova_hpc_tools.fabric import capacity_file, map_files, plan_document
from nova_hpc_tools.fabric.capacity_file import CapacityError
from nova_hpc_tools.fabric.plan_picture import draw_plan_picture
from nova_hpc_tools.fabric.problems import FabricMapError

_MISS: Final = 1
#: Hosts that one line names.
_SHOWN: Final = 6
_COLUMNS: Final = ("Host", "Members", "Leaf")


class FabricPlan(ListCommand):
    """Plan where the members of a gang would go, and say why.

    Reads where hosts are and how many members fit on each from two files. The
    exit status is 0 if all members have a place, 1 if not, and 2 if the question
    cannot be answered.
    """

    acts_with = ("svg",)
    errors = (FabricMapError, CapacityError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--map",
            dest="fabric",
            required=True,
            metavar="FILE",
            help="where the hosts are, in any form that nova-hpc fabric show reads; - is standard "
            "input",
        )
        parser.add_argument(
            "--capacity",
            type=Path,
            required=True,
            metavar="FILE",
            help="how many members fit on each host: CSV with the header host,fit; nova-hpc "
            "capacity -f csv -c Host -c Fit writes it",
        )
        parser.add_argument(
            "--members", type=Count(1), required=True, metavar="N", help="size of the gang"
        )
        parser.add_argument(
            "--max-per-host", type=Count(1), metavar="K", help="at most K members on one host"
        )
        parser.add_argument(
            "--level",
            choices=[level.word for level in FabricLevel],
            default=FabricLevel.LEAF.word,
            help="the largest domain that the members may be spread over (default: leaf)",
        )
        parser.add_argument(
            "--policy",
            choices=[policy.value for policy in GangPolicy],
            default=GangPolicy.REQUIRED.value,
            help="preferred: take the next larger domain rather than fail (default: required)",
        )
        parser.add_argument(
            "--order",
            choices=[order.value for order in GangOrder],
            default=GangOrder.PACK.value,
            help="members on the fewest hosts of the leaves, or as few on one host as possible "
            "(default: pack)",
        )
        parser.add_argument(
            "--rails",
            type=Count(0),
            default=0,
            metavar="N",
            help="leave out hosts with fewer rails (default: 0)",
        )
        parser.add_argument(
            "--group",
            default="",
            metavar="UUID",
            help="of equally good domains take the one that the scheduler takes for this server "
            "group (default: the first by name)",
        )
        parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the plan into this file")
        map_files.add_map_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Plan; status 0 if the gang fits, 1 if not."""
        args = parsed_args
        fabric = read_reported_map(args.fabric, args)
        capacity = read_capacity(args.capacity)
        strangers = [host for host in capacity if fabric.place(host) is None]
        if strangers:
            _print_plan_warning(
                f"{args.fabric} does not know {join_first(strangers, _SHOWN)}: without a domain"
            )
        gang = Gang(
            members=args.members,
            level=FabricLevel.from_word(args.level),
            policy=args.policy,
            max_per_host=args.max_per_host,
            order=args.order,
            rails=args.rails,
            group=args.group,
        )
        answer = plan_gang(fabric, capacity, gang)
        if isinstance(answer, GangRefusal):
            return CommandAnswer(
                _COLUMNS,
                (),
                status=_MISS,
                show=lambda: print(answer.reason),
                document=lambda: plan_document.format_plan_document(gang, answer),
            )
        if args.svg is not None:
            try:
                args.svg.write_text(draw_plan_picture(fabric, capacity, answer), encoding="utf-8")
            except OSError as error:
                raise CommandError(f"--svg {args.svg}: {error.strerror or error}") from error
        rows = [
            (host, members, (fabric.place(host) or FabricPlace(host=host)).leaf or "")
            for host, members in answer.hosts.items()
        ]
        return CommandAnswer(
            _COLUMNS,
            rows,
            show=lambda: _print_gang_plan(fabric, answer),
            document=lambda: plan_document.format_plan_document(gang, answer),
        )


def read_reported_map(path: str, args: argparse.Namespace) -> FabricMap:
    """Read a map; what is wrong in it is said on standard error.

    :raises FabricMapError: it is none.
    """
    reading = map_files.read_fabric_file(path, args)
    map_files.report_map_problems(reading, args)
    return reading.fabric


def read_capacity(path: Path) -> dict[str, int]:
    """Read how many members fit on each host.

    :raises CommandError: the file cannot be read.
    :raises CapacityError: it makes no sense; names the lines.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return capacity_file.read_capacity_lines(lines, str(path))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no text: {error}") from error


def _print_gang_plan(fabric: FabricMap, answer: GangPlan) -> None:
    print(answer.why)
    hosts: dict[str | None, list[str]] = {}
    for host, members in answer.hosts.items():
        leaf = (fabric.place(host) or FabricPlace(host=host)).leaf
        times = f" x{members}" if members > 1 else ""
        hosts.setdefault(leaf, []).append(f"{host}{times}")
    for leaf, members in answer.leaves.items():
        print(f"  {leaf}: {members} on {join_first(hosts[leaf], _SHOWN)}")
    if None in hosts:
        rest = sum(answer.hosts.values()) - sum(answer.leaves.values())
        print(f"  leaf unknown: {rest} on {join_first(hosts[None], _SHOWN)}")
    if not answer.proven:
        print("The search was cut short: leaves of blocks that are equally good may be smaller.")


def _print_plan_warning(text: str) -> None:
    print(f"nova-hpc fabric plan: warning: {text}", file=sys.stderr)
