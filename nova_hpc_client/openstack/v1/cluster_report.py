# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster report``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle.run import ClusterError
from nova_hpc_client.cluster.members import member_reports
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, number_members
from nova_hpc_client.openstack.v1 import cluster_changes, cluster_views
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire.server_faults import OWNER_WORDS, FaultWord


class ReportMember(HeardOutput, cluster_changes.ClusterChange, InertOutput, command.ShowOne):
    """Report a fault of a member's devices to the operators of the cloud.

    The devices are checked after the member's end, and the check decides. A report is no fault:
    heal does not replace the member.

    Example: openstack hpc cluster report train train-3 --why slow
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        parser.add_argument("member", metavar="<member>", help="name or number of one member")
        action = parser.add_mutually_exclusive_group(required=True)
        action.add_argument(
            "--why",
            choices=[word.value for word in OWNER_WORDS],
            help="the fault: "
            + ", ".join(f"{word.value} ({word.meaning})" for word in OWNER_WORDS),
        )
        action.add_argument(
            "--withdraw", action="store_true", help="take all reports of the member back"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Write or remove the tags of the member's server."""
        with cluster_views.translate_errors():
            cloud = self.cloud
            member = _find_member(cloud.find(parsed_args.cluster), parsed_args.member)
            record = cloud.server_record(member.id)
            before = frozenset(member_reports.read_reports(record))
            words = set(before)
            if parsed_args.withdraw:
                for word in words:
                    cloud.remove_tag(member.id, word.report_tag)
                words.clear()
            else:
                word = FaultWord(parsed_args.why)
                refusal = member_reports.explain_refusal(record, cloud.ports_of(member.id), word)
                if refusal:
                    raise ClusterError(refusal)
                if word not in words:  # of 50 tags, Nova refuses also one that is there
                    cloud.add_tag(member.id, word.report_tag)
                words.add(word)
        if words != before:
            events = shell_command("openstack", "server", "event", "list", member.id)
            print(f"The node answers within about a minute: {events}", file=sys.stderr)
        reports = [word.value for word in OWNER_WORDS if word in words]
        values = (member.name, member.id, format_columns.ListColumn(reports))
        return ("name", "id", "reports"), values


def _find_member(cluster: Cluster, text: str) -> ClusterMember:
    """The member, or the head, with a name or number.

    :raises ClusterError: there is none, or the text names several.
    """
    numbered = number_members(cluster)
    if text == wishes.head_name(cluster.name) and numbered.head is not None:
        return numbered.head
    numbers = cluster_changes.parse_member_numbers(cluster, text)
    if len(numbers) != 1:
        raise ClusterError(f"{text!r} names {len(numbers)} members: report one at a time")
    member = numbered.by_number.get(min(numbers))
    if member is None:
        names = ", ".join(member.shown for member in numbered.present) or "none"
        raise ClusterError(
            f"cluster {cluster.name} has no member {printable_text(text)}; its members: {names}"
        )
    return member
