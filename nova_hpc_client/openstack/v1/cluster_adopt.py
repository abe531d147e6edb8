# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster adopt``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc_client.cluster.life_cycle import adoption
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember
from nova_hpc_client.openstack import options
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.v1 import cluster_views
from nova_hpc_client.openstack.v1.cluster_changes import ClusterChange, add_patience
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.wire import cluster_wish


class AdoptCluster(HeardOutput, ClusterChange, InertOutput, command.ShowOne):
    """Make the servers of a server group a virtual cluster, whatever tool made them.

    The servers are called NAME-1, NAME-2 and so on, or from 0 on, and are alike. They get a tag and
    items of metadata, and nothing else changes. Give the command again when the other tool has
    added or removed servers.

    Example: openstack hpc cluster adopt my-group
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "group",
            metavar="<group>",
            help="server group (name or ID); with --undo also the name of the cluster",
        )
        parser.add_argument(
            "--undo",
            action="store_true",
            help="remove the tags and items of metadata again, and nothing else",
        )
        options.add_user_data_options(parser)
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Write marks, or remove them."""
        with cluster_views.translate_errors():
            if parsed_args.undo:
                return self._release(parsed_args)
            return cluster_views.cluster_record_of(self._adopt(parsed_args))

    def _adopt(self, args: argparse.Namespace) -> Cluster:
        cloud = self.cloud
        group = cloud.foreign_group(args.group)
        records = cloud.read_group(group)
        data = options.read_user_data(args)
        digest = cluster_wish.short_digest_of(data) if data else None
        taken = [cluster.name for cluster in cloud.clusters() if cluster.id != group]
        ways = adoption.format_adoption_ways(group)
        words = {"word": "marked", "counts": _is_marked}
        with self.at_work(args, group, len(records.servers), ways, **words) as pace:
            return adoption.adopt_group(
                cloud, records, "" if args.no_user_data else digest, taken, pace
            )

    def _release(self, args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        cloud = self.cloud
        cluster = _find_adopted(cloud, args.group)
        names = [member.name for member in cluster.members]
        ways = adoption.format_adoption_ways(cluster.id)
        words = {"word": "released", "counts": lambda current, member: False}
        with self.at_work(args, cluster.id, len(names), ways, **words) as pace:
            adoption.release_cluster(cloud, cluster, pace)
        return ("id", "released"), (cluster.id, format_columns.ListColumn(names))


def _is_marked(cluster: Cluster, member: ClusterMember) -> bool:
    return member.wish == cluster.wish


def _find_adopted(cloud: SdkCloud, name: str) -> Cluster:
    """The cluster with this name or id, or with a server group of this name.

    :raises ClusterError: there is none, or more than one.
    """
    clusters = [
        cluster
        for cluster in cloud.clusters()
        if name in (cluster.id, cluster.name, cluster.group.name if cluster.group else "")
    ]
    if len(clusters) != 1:
        return cloud.find(name)
    return clusters[0]
