# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster snapshot``, ``openstack hpc snapshot list`` and ``delete``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster.life_cycle import snapshot as life_cycle_snapshot
from nova_hpc_client.cluster.life_cycle import verbs
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.snapshots import ClusterSnapshot
from nova_hpc_client.openstack.v1 import cluster_views
from nova_hpc_client.openstack.v1.cluster_changes import ClusterChange, add_patience, delete_each
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.text import shell_command
from nova_hpc_common.wire import numbers

_COLUMNS = ("ID", "Cluster", "State", "Members", "Size", "Created")


class SnapshotCluster(HeardOutput, ClusterChange, InertOutput, command.ShowOne):
    """Make images of the disks of all members while all of them rest.

    A cluster that runs is stopped for that time and started again. If the command is interrupted,
    the same command goes on. create --from-snapshot makes a cluster from the images.

    Example: openstack hpc cluster snapshot train
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Stop the members, make their images, and start them again."""
        with cluster_views.translate_errors():
            cloud = self.cloud
            cluster = cloud.find(parsed_args.cluster)
            imaged: set[str] = set()
            ways = f"{verbs.format_ways(cluster, snapshots.SNAPSHOT)}"
            words = {"word": "in images", "counts": lambda cluster, member: member.id in imaged}
            with self.at_work(parsed_args, cluster.id, len(cluster.wanted), ways, **words) as pace:
                made = life_cycle_snapshot.snapshot_cluster(cloud, cluster, pace, imaged)
        row = _format_snapshot_row(made)
        images = {str(at): image.id for at, image in sorted(made.active.items())}
        columns = [name.lower() for name in _COLUMNS]
        return [*columns, "images"], [*row, format_columns.DictColumn(images)]


class ListClusterSnapshot(HeardOutput, InertOutput, command.Lister):
    """List the snapshots of clusters in the project, also those that are not whole.

    Example: openstack hpc snapshot list --long
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--long", action="store_true", help="also why, and the command that helps"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """One row for each snapshot."""
        with cluster_views.translate_errors():
            cloud = cluster_views.sdk_cloud_of(self.app)
            stored = cloud.images.read_snapshots()
            if not parsed_args.long:
                return _COLUMNS, [_format_snapshot_row(snapshot) for snapshot in stored]
            unfinished = _find_unfinished(cloud.clusters())
        rows = [
            (*_format_snapshot_row(snapshot), snapshot.problem, _format_next(snapshot, unfinished))
            for snapshot in stored
        ]
        return (*_COLUMNS, "Reason", "Next"), rows


class DeleteClusterSnapshot(HeardOutput, ClusterChange, command.Command):
    """Delete snapshots of clusters, with all their images.

    If one is not finished, the members of its cluster start again if they ran before.

    Example: openstack hpc snapshot delete SNAPSHOT
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("snapshots", nargs="+", metavar="<snapshot>", help="ID")
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete one after the other."""
        delete_each(parsed_args.snapshots, lambda snapshot: self._delete(parsed_args, snapshot))

    def _delete(self, args: argparse.Namespace, snapshot: str) -> None:
        cloud = self.cloud
        clusters = cloud.clusters()
        cluster = _find_unfinished(clusters).get(snapshot)
        turn = snapshots.read_turn(cluster.wish) if cluster is not None else None
        if cluster is not None and turn is not None:
            ways = f"{shell_command('openstack', 'hpc', 'snapshot', 'delete', snapshot)} goes on"
            with self.at_work(args, cluster.id, len(cluster.wanted), ways) as pace:
                life_cycle_snapshot.withdraw_snapshot(cloud, cluster, turn, pace)
            return
        stored = cloud.images.find_snapshot(snapshot)
        life_cycle_snapshot.refuse_needed(clusters, snapshot)
        for image in stored.images:
            cloud.delete_image(image.id)


def _find_unfinished(clusters: Iterable[Cluster]) -> Mapping[str, Cluster]:
    """Id of a snapshot that is not finished -> its cluster."""
    turns = ((snapshots.read_turn(cluster.wish), cluster) for cluster in clusters)
    return {turn.id: cluster for turn, cluster in turns if turn is not None}


def _format_snapshot_row(snapshot: ClusterSnapshot) -> Sequence[Any]:
    wish = snapshot.wish
    return (
        snapshot.id,
        wish.name if wish is not None else "?",
        "INCOMPLETE" if snapshot.problem else "COMPLETE",
        numbers.format_number_ranges(snapshot.active) if snapshot.active else "",
        sum(image.size for image in snapshot.images),
        min(image.created for image in snapshot.images).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _format_next(snapshot: ClusterSnapshot, unfinished: Mapping[str, Cluster]) -> str:
    delete = shell_command("openstack", "hpc", "snapshot", "delete", snapshot.id)
    if snapshot.id in unfinished:
        cluster = unfinished[snapshot.id]
        named = cluster.name if cluster.name != "?" else cluster.id
        finish = shell_command("openstack", "hpc", "cluster", snapshots.SNAPSHOT, named)
        return f"{finish}, or {delete}"
    return delete if snapshot.problem else ""
