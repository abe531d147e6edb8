# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric sync``: a map into Nova's host aggregates."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from typing import Final

from nova_hpc.fabric import aggregates
from nova_hpc.fabric.model import FabricMap
from nova_hpc.outside.text import printable
from nova_hpc_tools.base import Answer, List
from nova_hpc_tools.fabric import difference, sync
from nova_hpc_tools.fabric import map_files as fabric_source
from nova_hpc_tools.fabric import nova_aggregates as fabric_cloud
from nova_hpc_tools.fabric.command import difference_lines, refuse_problems
from nova_hpc_tools.fabric.hostlist import compress
from nova_hpc_tools.fabric.nova_aggregates import Cloud, CloudError
from nova_hpc_tools.fabric.problems import NO_HOST, FabricError
from nova_hpc_tools.fabric.sync import Plan, Step

_TO_DO: Final = 1
#: Percent of the hosts of a map that may lose their place in silence.
_REMOVAL_LIMIT: Final = 20


class Sync(List):
    """Make Nova's host aggregates say what a map says.

    One aggregate a leaf and one an NVLink domain, marked with metadata of the prefix
    hpc_fabric:, which nothing else in Nova reads. A map without hosts, and one by which many
    hosts would lose their place, are refused. First shows what differs, and does it only
    with --yes. Aggregates, metadata and hosts of others are not touched. It can be repeated:
    a run that was cut short is finished by the next one. The exit status is 0 when the
    aggregates say what the map says, 1 when they do not (yet), 2 when it cannot be done.
    """

    acts_with = ("yes",)
    errors = (FabricError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        fabric_source.add_maps(parser)
        parser.add_argument("--yes", action="store_true", help="do what is shown")
        parser.add_argument(
            "--accept-problems",
            action="store_true",
            help="take the map although something in it is wrong: hosts that it concerns are in no "
            "aggregate of the map any more",
        )
        parser.add_argument(
            "--removal-limit",
            type=_percent,
            default=_REMOVAL_LIMIT,
            metavar="PERCENT",
            help="the most hosts, as a part of those in Nova's aggregates, that may lose a domain "
            f"by the new map without a word (default: {_REMOVAL_LIMIT})",
        )
        parser.add_argument(
            "--accept-removals",
            type=int,
            metavar="N",
            help="exactly so many hosts are meant to lose a domain, however large a part they are",
        )
        fabric_source.add_arguments(parser)
        fabric_cloud.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Compare, and with --yes do it."""
        args = parsed_args
        reading = fabric_source.read_all(args.maps, args)
        fabric_source.tell(reading, args)
        if not reading.fabric.places:
            raise FabricError(
                f"{NO_HOST}, and is not taken for one: what Nova has stays (to take a map out of "
                "Nova, delete its aggregates)"
            )
        refuse_problems(len(reading.problems), args)
        cloud = self.cloud(args)
        found_there, hosts = cloud.aggregates(), cloud.hosts()
        plan = sync.plan(reading.fabric, found_there, hosts, salt=secrets.token_hex(16))
        old, problems = sync.cloud_map(found_there, reading.fabric.name)
        new = sync.as_in_nova(reading.fabric, hosts)
        for text in (*problems, *plan.notes):
            print(f"note: {printable(text)}", file=sys.stderr)
        if plan.refusals:
            raise FabricError("\n".join(map(printable, plan.refusals)))
        refusal = sync.check_removals(old, new, args.removal_limit / 100, args.accept_removals)
        if refusal is not None:
            raise FabricError(printable(refusal))
        found = difference.compare(old, new, cables=False)
        spreads: tuple[difference.Spread, ...] = ()
        if found and not args.no_clusters:
            spreads = difference.spreads(cloud.clusters(), old, new)
        self._tell(plan, found, spreads)
        done, why = 0, None
        if args.yes:
            done, why = self._apply(cloud, plan.steps)
            if why is None and plan.steps:
                why = _look_again(cloud, reading.fabric)
        if why is not None:
            print(f"{self._name}: {why}", file=sys.stderr)
        status = 0 if why is None and done == len(plan.steps) else _TO_DO
        rows = [
            (step.kind, step.aggregate, said(step), number < done)
            for number, step in enumerate(plan.steps)
        ]
        return Answer(
            columns=("Step", "Aggregate", "What", "Done"),
            rows=rows,
            status=status,
            show=lambda: self._end(plan, done, args.yes),
            document=lambda: _document(rows, plan, spreads, why),
        )

    def cloud(self, args: argparse.Namespace) -> Cloud:
        """The cloud; tests have one of their own."""
        return fabric_cloud.connect(args)

    def _tell(
        self,
        plan: Plan,
        found: tuple[difference.Difference, ...],
        spreads: tuple[difference.Spread, ...],
    ) -> None:
        for line in difference_lines(found):
            self.say(line)
        for spread in spreads:
            print(f"note: {spread}; nothing is moved", file=sys.stderr)
        if plan.not_in_nova:
            hosts = printable(compress(plan.not_in_nova))
            print(f"note: hosts of the map that Nova has not: {hosts}", file=sys.stderr)
        if plan.not_in_map:
            hosts = printable(compress(plan.not_in_map))
            print(f"note: hosts of Nova that the map has not: {hosts}", file=sys.stderr)

    def _apply(self, cloud: Cloud, steps: tuple[Step, ...]) -> tuple[int, str | None]:
        """Do the steps in their order; how many were done, and why no more."""
        for number, step in enumerate(steps):
            try:
                cloud.apply(step)
            except CloudError as error:
                return number, (
                    f"{number} of {len(steps)} steps are done; the next one, {_line(step)}, "
                    f"failed: {error}; run it again to go on"
                )
            except KeyboardInterrupt:
                print(
                    f"{self._name}: {number} of {len(steps)} steps are done, and maybe the next "
                    f"one, {_line(step)}; run it again to go on",
                    file=sys.stderr,
                )
                raise
            self.say(f"done: {_line(step)}")
        return len(steps), None

    def _end(self, plan: Plan, done: int, yes: bool) -> None:
        if not plan.steps:
            print("Nova's aggregates say what the map says")
        elif not yes:
            for step in plan.steps:
                print(f"to do: {_line(step)}")
            print(f"{len(plan.steps)} steps; nothing was changed, --yes does them")
        elif done == len(plan.steps):
            print(f"{done} steps done")


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 100")
    return value


def _look_again(cloud: Cloud, fabric: FabricMap) -> str | None:
    """Whether the aggregates say what was written; somebody else may write, too."""
    left = sync.plan(fabric, cloud.aggregates(), cloud.hosts())
    if not left.steps and not left.refusals:
        return None
    return (
        "all steps are done, but the aggregates are not as they should be: somebody else has "
        "changed them meanwhile; see that one map is written at a time, and run it again"
    )


def said(step: Step) -> str:
    """What a step does to its aggregate, in words."""
    if step.kind == sync.METADATA:
        return ", ".join(_item(key, value) for key, value in step.metadata.items())
    return step.value or ""


def _item(key: str, value: str | None) -> str:
    if value is None:
        return f"{key} goes"
    # What is shown may be kept in a ticket.
    return f"{key}={'(secret)' if key == aggregates.SALT_KEY else value}"


def _line(step: Step) -> str:
    what = said(step)
    return printable(f"{step.kind} {step.aggregate}" + (f": {what}" if what else ""))


def _document(
    rows: list[tuple[str, str, str, bool]],
    plan: Plan,
    spreads: tuple[difference.Spread, ...],
    why: str | None,
) -> str:
    document = {
        "steps": [
            {"step": kind, "aggregate": name, "what": what, "done": done}
            for kind, name, what, done in rows
        ],
        "stopped": why,
        "notes": list(plan.notes),
        "clusters": [
            {
                "cluster": each.cluster,
                "level": each.level.word,
                "before": each.before,
                "now": each.now,
            }
            for each in spreads
        ],
        "not_in_nova": list(plan.not_in_nova),
        "not_in_map": list(plan.not_in_map),
    }
    return json.dumps(document, indent=1) + "\n"
