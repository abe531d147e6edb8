# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster accept``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from nova_hpc_client.accept import cluster_views as views
from nova_hpc_client.cluster.life_cycle.run import ClusterError
from nova_hpc_client.openstack import acceptance, progress
from nova_hpc_client.openstack.v1.cluster_views import ListWithTexts, sdk_cloud_of, translate_errors
from nova_hpc_guest.accept.options import add_probe_option, split_names
from nova_hpc_guest.accept.probes import CLUSTER, FULL, QUICK

_INTERRUPTED: Final = 130


class AcceptCluster(ListWithTexts):
    """Measure whether the members of a virtual cluster are as fast as each other.

    Each member is measured in turns and compared with the rest, then pairs of members are. A
    member that is slow is named with its cause. --tier cluster measures all members at once and
    names the member, link or network that slows them. Members need nova-hpc-guest and its tools;
    ssh, or srun, has to work without asking. Each member's verdict is written into its server's
    metadata (hpc_accept). Exit status: 0 accepted, 1 slow or not as promised, 2 refused or not
    measurable, 3 undecided. Formats beside the usual ones: text (the default), svg, junit.

    Example: openstack hpc cluster accept train --login debian
    """

    @property
    def formatter_default(self) -> str:
        """The default format, which is for people."""
        return "text"

    def texts(self) -> Mapping[str, Callable[[], str]]:
        """The writers of the further formats."""
        return {
            "text": lambda: views.format_cluster_text(self._measured),
            "svg": lambda: views.draw_cluster(self._measured),
            "junit": lambda: views.format_cluster_junit(self._measured),
        }

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        parser.add_argument(
            "--tier",
            choices=(*acceptance.TIERS, CLUSTER),
            default=QUICK,
            help=f"{CLUSTER}: one program over all members, and the links on each of their "
            "networks, in minutes; it names the member, link or network that slows the rest",
        )
        parser.add_argument(
            "--yes", action="store_true", help="with --tier full: it takes hours of all members"
        )
        parser.add_argument(
            "--only",
            type=split_names,
            default=(),
            metavar="<probe,...>",
            help="measure only these, and write no verdict down",
        )
        add_probe_option(parser)
        parser.add_argument(
            "--busy",
            action="store_true",
            help="measure also members whose CPUs are busy, or whose GPUs are used",
        )
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--network",
            dest="accept_network",
            default="",
            metavar="<network>",
            help="name of the network over which members are reached; default: each member's first",
        )
        which.add_argument(
            "--names", action="store_true", help="reach members by their names, not by addresses"
        )
        acceptance.add_reach_options(parser)
        parser.add_argument(
            "--no-record", action="store_true", help="write no verdict into servers' metadata"
        )
        parser.add_argument(
            "--wait",
            action="store_true",
            help="wait for the end (the default), with a progress bar also if no terminal reads it",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Measure the members, and return one row for each."""
        with translate_errors():
            if parsed_args.tier == FULL and not parsed_args.yes:
                raise ClusterError("--tier full takes hours and all CPUs of all members: say --yes")
            own, words = acceptance.read_own_probes(parsed_args)
            floors = acceptance.read_floor_file(parsed_args.floors, own)
            cloud = sdk_cloud_of(self.app)
            cluster = cloud.find(parsed_args.cluster)
            wanted = parsed_args.wait or sys.stderr.isatty()
            try:
                with progress.show_step_progress(wanted) as show:
                    self._measured = acceptance.measure_cluster(
                        *(cluster, parsed_args.tier, parsed_args, show),
                        only=parsed_args.only,
                        words=words,
                        own=own,
                        floors=floors,
                        busy=parsed_args.busy,
                    )
            except KeyboardInterrupt:
                print("interrupted; nothing is left running on members", file=sys.stderr)
                raise SystemExit(_INTERRUPTED) from None
            if not parsed_args.no_record and not parsed_args.only:
                acceptance.record_verdicts(cloud, self._measured, cluster)
        self.verdict_status = self._measured.status
        return views.COLUMNS, views.list_member_rows(self._measured)
