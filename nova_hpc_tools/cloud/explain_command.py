# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc explain``: whether a server would fit, its host and devices, and the reasons."""

from __future__ import annotations

import argparse
from typing import Final

from nova_hpc.cluster.group_domain.domain_choice import FabricSeat
from nova_hpc.cluster.plan import GangPolicy
from nova_hpc.fabric.aggregates import read_aggregate_place
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.placement.flavor import read_fabric
from nova_hpc_tools.base import CommandAnswer, Count, ListCommand
from nova_hpc_tools.cloud import explain_answer
from nova_hpc_tools.cloud.capacity import measure_flavor
from nova_hpc_tools.cloud.explain import document as explain_document
from nova_hpc_tools.cloud.explain import explain_asked, explain_flavor
from nova_hpc_tools.cloud.explain.model import (
    AssignedDevices,
    FlavorQuestion,
    FlavorReport,
    NodeVerdict,
    ServerReport,
)
from nova_hpc_tools.cloud.explain.server_report import NoServerError, explain_server
from nova_hpc_tools.cloud.group_fit import GroupFit, assess_group_fit
from nova_hpc_tools.snapshot import (
    Snapshot,
    SnapshotError,
    cloud_readers,
)
from nova_hpc_tools.snapshot.direct_ports import DirectPorts

_MISS: Final = 1


class Explain(ListCommand):
    """Explain where a server of a flavor would go, with which devices, or why nowhere.

    Reads the same data as the scheduler (or a snapshot of it) and calls the same functions. The
    exit status is 0 if the servers fit, 1 if not, and 2 if the question cannot be answered. Changes
    nothing. JSON and YAML contain the whole answer, with a version; lists name the hosts, or with
    --server its devices.
    """

    acts_with = ()
    errors = (SnapshotError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        what = parser.add_argument_group("the question")
        subject = what.add_mutually_exclusive_group(required=True)
        subject.add_argument("--flavor", metavar="FLAVOR", help="name or ID of a flavor")
        subject.add_argument(
            "--server",
            metavar="SERVER",
            help="name or UUID of a server: explain the decision for it, or whether a server "
            "that found no host would find one now",
        )
        subject.add_argument(
            "--request",
            metavar="REQUEST",
            help="ID of a request (req-...) that left servers in ERROR without a host",
        )
        what.add_argument(
            "--image",
            metavar="IMAGE",
            help="with --flavor: name or ID of the image, whose properties count, too",
        )
        what.add_argument(
            "--count",
            type=Count(1),
            metavar="N",
            help="with --flavor: so many servers, one after the other (default: 1)",
        )
        what.add_argument("--host", metavar="HOST", help="with --flavor: only this host")
        what.add_argument(
            "--port",
            type=direct_ports,
            action="append",
            metavar="NETWORK[:COUNT]",
            help="with --flavor: each server brings so many direct ports (default: 1) of this "
            "physical network; may be repeated",
        )
        what.add_argument(
            "--group",
            metavar="UUID",
            help="with --flavor, where it has hpc:fabric: a server group that the servers would "
            "be members of",
        )
        parser.add_argument(
            "--trees",
            action="store_true",
            help="draw the devices of hosts by NUMA node, PCIe root and switch; --host does, too",
        )
        cloud_readers.add_snapshot_arguments(parser)
        self._parser = parser
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Print the answer; status 0 if it fits, 1 if not."""
        args = parsed_args
        if args.flavor is None:
            for option in ("image", "count", "host", "port", "group"):
                if getattr(args, option) is not None:
                    self._parser.error(f"--{option} needs --flavor")
        if args.request is not None and args.snapshot is not None:
            self._parser.error("--request needs the cloud itself, and no --snapshot")
        taken = cloud_readers.obtain_snapshot(args.snapshot, args.config, args.image)
        answer: FlavorReport | ServerReport
        columns: tuple[str, ...]
        rows: list[tuple[object, ...]]
        if args.flavor is not None:
            question = FlavorQuestion(
                args.flavor, args.image, args.count or 1, args.host, tuple(args.port or ())
            )
            answer = explain_flavor(taken, question)
        else:
            answer = _explain_named_server(taken, args)
        if isinstance(answer, ServerReport):
            columns, rows = _PAST, [_past_row(given) for given in answer.given]
        else:
            columns, rows = _REPORT, [_report_row(verdict) for verdict in answer.verdicts]
        gang = None if isinstance(answer, ServerReport) else _explain_gang(taken, answer, args)
        fits = isinstance(answer, ServerReport) or (answer.fits and (gang is None or gang.fits))
        return CommandAnswer(
            columns,
            rows,
            status=0 if fits else _MISS,
            show=lambda: explain_answer.print_explanation(
                answer, gang, args.trees or args.host is not None
            ),
            document=lambda: explain_document.dump_explain_document(
                answer, gang.build() if gang else None
            ),
        )


def direct_ports(text: str) -> DirectPorts:
    """Parse ``NETWORK`` or ``NETWORK:COUNT`` as argparse's type of ``--port``."""
    network, colon, count = text.rpartition(":")
    if not colon:
        network, count = text, "1"
    if not network or not (count.isascii() and count.isdigit()) or not 1 <= int(count) <= 64:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no physical network with a count of 1 to 64, like physnet4:2"
        )
    return DirectPorts(network, int(count))


def _explain_named_server(taken: Snapshot, args: argparse.Namespace) -> FlavorReport | ServerReport:
    """Explain a server that has devices, or one that found no host."""
    if args.request is None:
        try:
            return explain_server(taken, args.server)
        except NoServerError:
            # A snapshot file contains no servers without devices.
            if args.snapshot is not None:
                raise
    return explain_asked(taken, cloud_readers.read_asked(args.config, args.server, args.request))


def _explain_gang(
    taken: Snapshot, answer: FlavorReport, args: argparse.Namespace
) -> GroupFit | None:
    """Whether the servers come together; None if their flavor does not require it."""
    wish = read_fabric(answer.flavor.extra_specs)
    if wish is None:
        return None
    asked = answer.asked
    group = args.group or (asked.group if asked is not None else None)
    members = answer.question.count
    lines = None if args.snapshot is not None else cloud_readers.read_fabric_groups(args.config)
    if asked is not None and not any(line.group == group for line in lines or ()):
        # A group without a domain needs room for all its announced members.
        members = max(members, asked.members or 1)
    fits = measure_flavor(taken, answer.flavor).by_host
    readings = [read_aggregate_place(node.host, node.aggregates.values()) for node in taken.hosts]
    readings_by_host = {reading.place.host: reading for reading in readings}
    seats = [
        FabricSeat(reading.place, reading.map, fits.get(host, 0))
        for host, reading in readings_by_host.items()
    ]
    policy = GangPolicy(wish.policy.value)
    return assess_group_fit(
        seats, FabricLevel.from_word(wish.level), policy, members, lines, group or ""
    )


# --- for programs ----------------------------------------------------------------

_REPORT: Final = ("Host", "Fits", "Level", "Distance", "Devices", "Reason")
_PAST: Final = ("Device", "Role", "Functions")


def _report_row(verdict: NodeVerdict) -> tuple[object, ...]:
    devices = None if verdict.choice is None else verdict.choice.devices
    return (
        verdict.node.name,
        devices is not None,
        "" if devices is None else devices.level.word,
        "" if devices is None else devices.distance.name,
        ""
        if verdict.choice is None
        else explain_answer.format_chosen_devices(verdict.node, verdict.choice),
        verdict.reason,
    )


def _past_row(given: AssignedDevices) -> tuple[object, ...]:
    return given.device.address, given.device.role or "", " ".join(given.addresses)
