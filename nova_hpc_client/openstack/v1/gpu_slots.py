# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc gpu attach`` and ``detach``."""

from __future__ import annotations

import argparse
import sys

from osc_lib import exceptions
from osc_lib.command import command

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError, Pace
from nova_hpc_client.gpu import attaching
from nova_hpc_client.openstack.progress import show_text_progress
from nova_hpc_client.openstack.v1 import gpu_shares
from nova_hpc_client.openstack.v1.cluster_views import translate_errors
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.text import printable_lines


class AttachShare(HeardOutput, command.Command):
    """Give servers a slot of a share each.

    In a client, nova-hpc-guest gpu run -- COMMAND then uses the share's GPU.

    Example: openstack hpc gpu attach left my-server
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("share", metavar="<share>", help="name or ID")
        parser.add_argument("servers", nargs="+", metavar="<server>", help="name or ID")
        parser.add_argument(
            "--memory",
            type=gpu_shares.parse_memory,
            default=0,
            metavar="<size>",
            help="memory of the GPU for each process of a slot, as in 16G, default: as the share "
            "says; it needs NVIDIA's MPS in the image",
        )
        parser.add_argument(
            "--encrypt",
            action="store_true",
            help="through WireGuard, with keys of the guests; needed if a port has no filter",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="also if others of the project may reach the share's ports",
        )
        gpu_shares.add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Attach the servers to the GPU share one by one; an error does not stop the next."""
        cloud, pace = gpu_shares.share_cloud_of(self.app), Pace(limit=parsed_args.timeout)
        wish = attaching.AttachWish(parsed_args.memory, parsed_args.encrypt, parsed_args.force)
        wanted = parsed_args.wait or sys.stderr.isatty()
        wrong = []
        with translate_errors():
            gpu_shares.clean_before(cloud, pace)
        with show_text_progress(wanted) as said:
            for server in parsed_args.servers:
                try:
                    attaching.attach_client(cloud, parsed_args.share, server, wish, pace, said)
                except (ClusterError, ClusterCloudError) as error:
                    wrong.append(printable_lines(str(error)))
        if wrong:
            raise exceptions.CommandError("\n".join(wrong))


class DetachShare(HeardOutput, command.Command):
    """Take slots of a share back: their jobs end within 30 seconds.

    Example: openstack hpc gpu detach left my-server
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("share", metavar="<share>", help="name or ID")
        parser.add_argument("servers", nargs="+", metavar="<server>", help="name or ID")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Detach the servers of the GPU share one by one; an error does not stop the next."""
        cloud, pace, wrong = gpu_shares.share_cloud_of(self.app), Pace(), []
        for server in parsed_args.servers:
            try:
                attaching.detach_client(cloud, parsed_args.share, server, pace)
            except (ClusterError, ClusterCloudError) as error:
                wrong.append(printable_lines(str(error)))
        with translate_errors():
            gpu_shares.clean_before(cloud, pace)
        if wrong:
            raise exceptions.CommandError("\n".join(wrong))
