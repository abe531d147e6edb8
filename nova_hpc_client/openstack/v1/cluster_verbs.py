# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster stop``, ``start``, ``shelve``, ``unshelve``, ``reboot``, ``rebuild``."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from osc_lib.command import command

from nova_hpc_client.cluster.life_cycle import verbs
from nova_hpc_client.cluster.life_cycle.verbs import Verb
from nova_hpc_client.openstack.v1 import cluster_views
from nova_hpc_client.openstack.v1.cluster_changes import ClusterChange, add_patience
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput


class _WholeCommand(HeardOutput, ClusterChange, InertOutput, command.ShowOne):
    """A command for all members of a cluster, that shows it in the end."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        add_patience(parser)
        return parser


class _VerbCommand(_WholeCommand):
    """Brings all members to one state."""

    verb: ClassVar[Verb]
    word: ClassVar[str]

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Change all members."""
        with cluster_views.translate_errors():
            cloud = self.cloud
            cluster = cloud.find(parsed_args.cluster)
            verb, word = self._choose_verb(parsed_args)
            ways = verbs.format_ways(cluster, verb.name, verb.undo)
            with self.at_work(
                *(parsed_args, cluster.id, len(cluster.wanted), ways),
                word=word,
                counts=lambda _, member: verbs.is_at_goal(member, verb),
            ) as pace:
                changed = verbs.change_members(cloud, cluster, verb, pace)
        return cluster_views.cluster_record_of(changed)

    def _choose_verb(self, args: argparse.Namespace) -> tuple[Verb, str]:
        """The verb, and the progress line's word for a member at its goal."""
        return self.verb, self.word


class StopCluster(_VerbCommand):
    """Stop all members of a virtual cluster, which keep their hosts and devices.

    start lets the cluster run again, in the same place.

    Example: openstack hpc cluster stop train
    """

    verb = verbs.STOP
    word = "stopped"


class StartCluster(_VerbCommand):
    """Start the members of a virtual cluster that are stopped.

    Example: openstack hpc cluster start train
    """

    verb = verbs.START
    word = "active"


class ShelveCluster(_VerbCommand):
    """Shelve all members of a virtual cluster, whose place others can have meanwhile.

    Their disks and ports are kept. Use --keep-place to be sure of the place, too.

    Example: openstack hpc cluster shelve train
    """

    verb = verbs.SHELVE
    word = "shelved"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--keep-place",
            action="store_true",
            help="keep hosts and devices in Placement: the members are stopped and not shelved, "
            "because Nova gives up the place of a shelved server; unshelve starts them",
        )
        return parser

    def _choose_verb(self, args: argparse.Namespace) -> tuple[Verb, str]:
        return (verbs.STOP, StopCluster.word) if args.keep_place else (self.verb, self.word)


class UnshelveCluster(_VerbCommand):
    """Unshelve all members of a virtual cluster, or none.

    If one of them finds no place, those that had come back are shelved again.

    Example: openstack hpc cluster unshelve train
    """

    verb = verbs.UNSHELVE
    word = "active"


class _TurnCommand(_WholeCommand):
    """Does something once with each member."""

    verb: ClassVar[str]
    word: ClassVar[str]

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Give each member its turn."""
        with cluster_views.translate_errors():
            cloud = self.cloud
            cluster = cloud.find(parsed_args.cluster)
            name = getattr(parsed_args, "image", None)
            image = cloud.image(name) if name else ""
            ways = verbs.format_ways(cluster, self.verb)
            words = {"word": self.word, "counts": verbs.has_had_turn}
            with self.at_work(parsed_args, cluster.id, len(cluster.wanted), ways, **words) as pace:
                changed = verbs.turn_members(cloud, cluster, self.verb, pace, image)
        return cluster_views.cluster_record_of(changed)


class RebootCluster(_TurnCommand):
    """Stop and start each member of a virtual cluster once; all of them run in the end.

    If the command is interrupted, reboot goes on with the members that are left.

    Example: openstack hpc cluster reboot train
    """

    verb = verbs.REBOOT
    word = "rebooted"


class RebuildCluster(_TurnCommand):
    """Give each member of a virtual cluster a new disk; what is on the old ones is lost.

    Members keep names, ports, hosts and devices. The first member is rebuilt before the others. If
    the command is interrupted, rebuild goes on with the members that are left.

    Example: openstack hpc cluster rebuild train --image debian-13
    """

    verb = verbs.REBUILD
    word = "rebuilt"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--image",
            metavar="<image>",
            help="image of the new disks (name or ID), default: the cluster's; new members get it, "
            "too",
        )
        return parser
