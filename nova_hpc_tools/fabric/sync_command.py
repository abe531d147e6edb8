# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric sync``: write a map into Nova's host aggregates."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from typing import Final

from nova_hpc.fabric import aggregates
from nova_hpc.fabric.model import FabricMap
from nova_hpc_common.output.hostlist import compress_hostlist
from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.base import CommandAnswer, ListCommand
from nova_hpc_tools.fabric import difference, map_files, nova_aggregates, sync
from nova_hpc_tools.fabric.command import format_differences, refuse_problems
from nova_hpc_tools.fabric.nova_aggregates import FabricCloud, NovaApiError
from nova_hpc_tools.fabric.problems import NO_HOST, FabricMapError
from nova_hpc_tools.fabric.sync import SyncPlan, SyncStep

_TO_DO: Final = 1
#: Percent of the hosts of a map that may lose their place without consent.
_REMOVAL_LIMIT: Final = 20


class SyncFabric(ListCommand):
    """Make Nova's host aggregates equal to a map.

    One aggregate a leaf and one an NVLink domain, marked with metadata of the prefix
    hpc_fabric:, which nothing else in Nova reads. A map without hosts, and one by which many
    hosts would lose their place, are refused. Shows the differences, and writes only with
    --yes. Aggregates, metadata and hosts of others are not touched. It can be repeated: the
    next run finishes one that was cut short. The exit status is 0 if the aggregates equal
    the map, 1 if they do not (yet), 2 if they cannot be written.
    """

    acts_with = ("yes",)
    errors = (FabricMapError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        map_files.add_map_files_argument(parser)
        parser.add_argument("--yes", action="store_true", help="carry out the shown steps")
        parser.add_argument(
            "--accept-problems",
            action="store_true",
            help="take the map although something in it is wrong: hosts that it concerns are in no "
            "aggregate of the map any more",
        )
        parser.add_argument(
            "--removal-limit",
            type=_parse_removal_percent,
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
        map_files.add_map_arguments(parser)
        nova_aggregates.add_cloud_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Compare the map with Nova's aggregates; show the steps; carry them out with --yes."""
        args = parsed_args
        reading = map_files.read_fabric_files(args.maps, args)
        map_files.report_map_problems(reading, args)
        if not reading.fabric.places:
            raise FabricMapError(
                f"{NO_HOST}, and is not used as one: the map in Nova stays (to take a map out "
                "of Nova, delete its aggregates)"
            )
        refuse_problems(len(reading.problems), args)
        cloud = self.cloud(args)
        found_there, hosts = cloud.aggregates(), cloud.hosts()
        plan = sync.plan_sync(reading.fabric, found_there, hosts, salt=secrets.token_hex(16))
        old, problems = sync.map_of_aggregates(found_there, reading.fabric.name)
        new = sync.map_as_in_nova(reading.fabric, hosts)
        for text in (*problems, *plan.notes):
            print(f"note: {printable_text(text)}", file=sys.stderr)
        if plan.refusals:
            raise FabricMapError("\n".join(map(printable_text, plan.refusals)))
        refusal = sync.check_removals(old, new, args.removal_limit / 100, args.accept_removals)
        if refusal is not None:
            raise FabricMapError(printable_text(refusal))
        differences = difference.compare_fabric_maps(old, new, cables=False)
        spreads: tuple[difference.ClusterSpread, ...] = ()
        if differences and not args.no_clusters:
            spreads = difference.spread_changes_of(cloud.clusters(), old, new)
        self._tell(plan, differences, spreads)
        done, stop_reason = 0, None
        if args.yes:
            done, stop_reason = self._apply(cloud, plan.steps)
            if stop_reason is None and plan.steps:
                stop_reason = _verify_written_aggregates(cloud, reading.fabric)
        if stop_reason is not None:
            print(f"{self._name}: {stop_reason}", file=sys.stderr)
        status = 0 if stop_reason is None and done == len(plan.steps) else _TO_DO
        rows = [
            (step.kind, step.aggregate, describe_sync_step(step), number < done)
            for number, step in enumerate(plan.steps)
        ]
        return CommandAnswer(
            columns=("Step", "Aggregate", "What", "Done"),
            rows=rows,
            status=status,
            show=lambda: self._end(plan, done, args.yes),
            document=lambda: _dump_sync_document(rows, plan, spreads, stop_reason),
        )

    def cloud(self, args: argparse.Namespace) -> FabricCloud:
        """Connect to the cloud; tests replace this method."""
        return nova_aggregates.connect_fabric_cloud(args)

    def _tell(
        self,
        plan: SyncPlan,
        differences: tuple[difference.FabricDifference, ...],
        spreads: tuple[difference.ClusterSpread, ...],
    ) -> None:
        for line in format_differences(differences):
            self.say(line)
        for spread in spreads:
            print(f"note: {spread}; nothing is moved", file=sys.stderr)
        if plan.not_in_nova:
            hosts = printable_text(compress_hostlist(plan.not_in_nova))
            print(f"note: hosts of the map that Nova has not: {hosts}", file=sys.stderr)
        if plan.not_in_map:
            hosts = printable_text(compress_hostlist(plan.not_in_map))
            print(f"note: hosts of Nova that the map has not: {hosts}", file=sys.stderr)

    def _apply(self, cloud: FabricCloud, steps: tuple[SyncStep, ...]) -> tuple[int, str | None]:
        """Do the steps in their order; return the number done, and the reason to stop before."""
        for number, step in enumerate(steps):
            try:
                cloud.apply(step)
            except NovaApiError as error:
                return number, (
                    f"{number} of {len(steps)} steps are done; the next one, "
                    f"{_format_sync_step(step)}, "
                    f"failed: {error}; run it again to go on"
                )
            except KeyboardInterrupt:
                print(
                    f"{self._name}: {number} of {len(steps)} steps are done, and maybe the next "
                    f"one, {_format_sync_step(step)}; run it again to go on",
                    file=sys.stderr,
                )
                raise
            self.say(f"done: {_format_sync_step(step)}")
        return len(steps), None

    def _end(self, plan: SyncPlan, done: int, yes: bool) -> None:
        if not plan.steps:
            print("Nova's aggregates are as in the map")
        elif not yes:
            for step in plan.steps:
                print(f"to do: {_format_sync_step(step)}")
            print(f"{len(plan.steps)} steps; nothing was changed, --yes does them")
        elif done == len(plan.steps):
            print(f"{done} steps done")


def _parse_removal_percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 100")
    return value


def _verify_written_aggregates(cloud: FabricCloud, fabric: FabricMap) -> str | None:
    """Return the reason if the aggregates differ from the written ones; None if they are equal.

    Another process may write, too.
    """
    left = sync.plan_sync(fabric, cloud.aggregates(), cloud.hosts())
    if not left.steps and not left.refusals:
        return None
    return (
        "all steps are done, but the aggregates differ from the map: another program has "
        "changed them meanwhile; write only one map at a time, and run the command again"
    )


def describe_sync_step(step: SyncStep) -> str:
    """Describe the change that a step makes to its aggregate."""
    if step.kind == sync.METADATA:
        return ", ".join(
            _describe_metadata_item(key, value) for key, value in step.metadata.items()
        )
    return step.value or ""


def _describe_metadata_item(key: str, value: str | None) -> str:
    if value is None:
        return f"{key} goes"
    # Operators may copy the output into a ticket, so the secret is not shown.
    return f"{key}={'(secret)' if key == aggregates.SALT_KEY else value}"


def _format_sync_step(step: SyncStep) -> str:
    what = describe_sync_step(step)
    return printable_text(f"{step.kind} {step.aggregate}" + (f": {what}" if what else ""))


def _dump_sync_document(
    rows: list[tuple[str, str, str, bool]],
    plan: SyncPlan,
    spreads: tuple[difference.ClusterSpread, ...],
    stop_reason: str | None,
) -> str:
    document = {
        "steps": [
            {"step": kind, "aggregate": name, "what": what, "done": done}
            for kind, name, what, done in rows
        ],
        "stopped": stop_reason,
        "notes": list(plan.notes),
        "clusters": [
            {
                "cluster": spread.cluster,
                "level": spread.level.word,
                "before": spread.before,
                "now": spread.now,
            }
            for spread in spreads
        ],
        "not_in_nova": list(plan.not_in_nova),
        "not_in_map": list(plan.not_in_map),
    }
    return json.dumps(document, indent=1) + "\n"
