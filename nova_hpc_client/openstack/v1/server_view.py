# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc server show``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc_client.cluster.members.server import OneServer
from nova_hpc_client.openstack.v1.cluster_views import sdk_cloud_of, translate_errors
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.wire.position import LEVELS
from nova_hpc_common.wire.server_devices import ServerDevices


class ShowServer(HeardOutput, InertOutput, command.ShowOne):
    """Show which devices a server was given, how close they are, and where it is.

    It is what the node wrote into the server's metadata when it started last: the level that
    the flavor asks for and the one that was reached, devices by role and by group, and the
    names of its domains on the fabric. Names are the project's own: two servers with the
    same name of a leaf share it. "beside" says so of the servers in its server groups, each
    at the narrowest level that both are known to share. "faults" are words for present faults.
    "planned" is the time (UTC) at which announced work on its host or its devices begins.

    Example: openstack hpc server show train-1
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="<server>", help="name or ID")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the facts about one server, read from its and its siblings' metadata.

        They have the shape of :func:`server_record_of`.
        """
        with translate_errors():
            return server_record_of(sdk_cloud_of(self.app).server(parsed_args.server))


def server_record_of(server: OneServer) -> tuple[Sequence[str], Sequence[Any]]:
    """Return the facts about one server as (columns, values); an unknown value is empty."""
    devices, where = server.devices or ServerDevices(), server.position
    values: dict[str, Any] = {
        "name": server.name,
        "id": server.id,
        "status": server.status,
        "level_asked": "" if devices.asked is None else devices.asked.word,
        "policy": "" if devices.policy is None else devices.policy.value,
        "level_reached": "" if devices.reached is None else devices.reached.word,
        "devices": format_columns.DictColumn(dict(devices.roles)),
        "groups": format_columns.ListColumn(list(server.groups)),
        **{level: where.domains.get(level, "") for level in LEVELS},
        "rails": format_columns.ListColumn(list(where.rails)),
        "beside": format_columns.DictListColumn(
            {level: list(names) for level, names in server.beside.items()}
        ),
        "faults": format_columns.ListColumn([word.value for word in server.faults]),
        "planned": server.planned,
    }
    return tuple(values), tuple(values.values())
