# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster list``, ``show``, ``hosts`` and ``topology``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import stevedore
from cliff.formatters import base as formatters
from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc_client.cluster import hostfiles
from nova_hpc_client.cluster.hostfiles import HostError
from nova_hpc_client.cluster.life_cycle import decide
from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError
from nova_hpc_client.cluster.members import neighbours, picture
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, number_members
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.rest import RestClient
from nova_hpc_common.output import hostlist
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.host_names import OutsideError
from nova_hpc_common.outside.text import printable_lines
from nova_hpc_common.wire import numbers

#: Most members whose actions ``show`` reads, with one request for each.
_MOST_ASKED: Final = 8


def sdk_cloud_of(app: Any) -> SdkCloud:
    """Nova and Neutron with the user's rights."""
    return SdkCloud(RestClient(app.client_manager.hpc))


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the errors of clusters into those of the OpenStack client."""
    try:
        yield
    except (ClusterError, ClusterCloudError, HostError, OutsideError) as error:
        raise exceptions.CommandError(printable_lines(str(error))) from error


def cluster_record_of(cluster: Cluster) -> tuple[Sequence[str], Sequence[Any]]:
    """The facts about one cluster, as columns and values."""
    wish = cluster.wish
    numbered_members = number_members(cluster)
    networks: list[str] = []
    if wish is not None:
        networks = [nic.network for nic in wish.nics] or [wish.networks]
    values: dict[str, Any] = {
        "name": cluster.name,
        "id": cluster.id,
        "state": cluster.state.value,
        "reason": cluster.reason,
        "next": decide.format_finish_commands(cluster),
        "wanted": numbers.format_number_ranges(cluster.wanted),
        "members": format_columns.ListColumn(
            [member.name for member in numbered_members.by_number.values()]
        ),
        "surplus": format_columns.ListColumn([member.name for member in numbered_members.surplus]),
        "others": format_columns.ListColumn(list(cluster.strangers)),
        "ports": len(cluster.ports),
        "policy": cluster.group.policy if cluster.group else "",
        "rules": format_columns.DictColumn(dict(cluster.group.rules if cluster.group else {})),
        "flavor": wish.flavor if wish else "",
        "image": wish.image if wish else "",
        "networks": format_columns.ListColumn(networks),
        "availability_zone": wish.zone if wish else "",
        "verdicts": format_columns.DictColumn(
            {
                member.name: member.verdict.verdict
                for member in numbered_members.by_number.values()
                if member.verdict is not None
            }
        ),
        "faults": format_columns.DictListColumn(
            {
                member.name: [word.value for word in member.faults]
                for member in numbered_members.present
                if member.faults
            }
        ),
        "planned": format_columns.DictColumn(
            {member.name: member.planned for member in numbered_members.present if member.planned}
        ),
        "reports": format_columns.DictListColumn(
            {
                member.name: [word.value for word in member.reports]
                for member in numbered_members.present
                if member.reports
            }
        ),
        "spans": format_columns.DictColumn(neighbours.count_spanned_domains(cluster)),
    }
    if cluster.wants_head:
        head = hostfiles.find_head_host(cluster)
        values["head"] = head.name if head else ""
        values["head_address"] = head.address if head else ""
        values["head_flavor"] = wish.head if wish else ""
        values["head_image"] = wish.head_image if wish else ""
    return tuple(values), tuple(values.values())


class ListCluster(HeardOutput, InertOutput, command.Lister):
    """List the virtual clusters of the project, also those that were left half-way.

    Example: openstack hpc cluster list
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--long", action="store_true", help="also why, and the command that finishes it"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """One row for each cluster."""
        with translate_errors():
            clusters = sdk_cloud_of(self.app).clusters()
        columns = ["Name", "ID", "State", "Members", "Ports"]
        if parsed_args.long:
            columns += ["Policy", "Reason", "Next", "Faults", "Planned"]
        return columns, [_format_cluster_row(cluster, parsed_args.long) for cluster in clusters]


def _format_cluster_row(cluster: Cluster, long: bool) -> Sequence[Any]:
    living = sum(not member.going for member in cluster.members)
    row: list[Any] = [
        cluster.name,
        cluster.id,
        cluster.state.value,
        f"{living}/{len(cluster.wanted)}{' + head' if number_members(cluster).head else ''}",
        len(cluster.ports),
    ]
    if long:
        policy = cluster.group.policy if cluster.group else ""
        present = number_members(cluster).present
        faults = [f"{member.name} {word.value}" for member in present for word in member.faults]
        row += [policy, cluster.reason, decide.format_finish_commands(cluster)]
        planned = [f"{member.name} {member.planned}" for member in present if member.planned]
        row += [format_columns.ListColumn(faults), format_columns.ListColumn(planned)]
    return row


class ShowCluster(HeardOutput, InertOutput, command.ShowOne):
    """Show one virtual cluster.

    Example: openstack hpc cluster show train
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """The facts about the cluster, as columns and values."""
        with translate_errors():
            cloud = sdk_cloud_of(self.app)
            cluster = cloud.find(parsed_args.cluster)
            return cluster_record_of(_mark_ended(cluster, cloud.count_endings))


def _mark_ended(cluster: Cluster, count: Callable[[str], int]) -> Cluster:
    """Mark the first member whose guest has ended by itself, for the reason of the cluster.

    :param count: as :attr:`~nova_hpc_client.cluster.life_cycle.healer.HealTools.count_endings`.
    """

    def has_ended(server: ClusterMember) -> bool:
        # Nova may not let its user read the actions.
        with contextlib.suppress(ClusterCloudError):
            return count(server.id) > 0
        return False

    off = [server for server in cluster.servers if server.off][:_MOST_ASKED]
    first = next(filter(has_ended, off), None)

    def mark(server: ClusterMember) -> ClusterMember:
        return attrs.evolve(server, ended=server is first)

    return attrs.evolve(
        cluster, members=tuple(map(mark, cluster.members)), heads=tuple(map(mark, cluster.heads))
    )


class _TextFormatter(formatters.ListFormatter):
    """A format that the command itself writes, instead of a table."""

    def __init__(self, write: Callable[[], str]) -> None:
        self._write = write

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Declare no options."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Any],
        stdout: Any,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write the command's own text, whatever the columns and rows."""
        with translate_errors():
            text = self._write()
        stdout.write(text)


#: Formats whose output shell scripts split into words. They contain only checked host names, as
#: host files do.
_FOR_SCRIPTS: Final = ("csv", "value")


class ListWithTexts(HeardOutput, InertOutput, command.Lister):
    """A list with further formats, which ``--format`` takes like any other."""

    def texts(self) -> Mapping[str, Callable[[], str]]:
        """Name of a format -> its writer, which runs after the command has read the cluster."""
        raise NotImplementedError

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager:
        plugins = super()._load_formatter_plugins()
        ours = []
        for name, write in self.texts().items():
            formatter = _TextFormatter(write)
            ours.append(stevedore.extension.Extension(name, None, _TextFormatter, formatter))
        return stevedore.ExtensionManager.make_test_instance([*plugins, *ours])


class ListHosts(ListWithTexts):
    """List the members of a virtual cluster, those that are near each other together.

    Further formats: openmpi (a host file), slurm (lines of slurm.conf), pdsh (one host a
    line), ansible (an inventory). The head computes nothing: in slurm it is SlurmctldHost, in
    ansible a group of its own, and no other format has it.

    Example: openstack hpc cluster hosts train -f openmpi
    """

    def texts(self) -> Mapping[str, Callable[[], str]]:
        """The writers of host files."""

        def writer(write: Callable[..., str]) -> Callable[[], str]:
            return lambda: write(self._hosts, self._name, self._head)

        return {name: writer(write) for name, write in hostfiles.FORMATS.items()}

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--network",
            default="",
            metavar="<network>",
            help="name of the network whose addresses are meant; default: each member's first",
        )
        which.add_argument(
            "--names", action="store_true", help="names alone: a resolver knows the members"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """One row for each member."""
        with translate_errors():
            cluster = sdk_cloud_of(self.app).find(parsed_args.cluster)
            self._name = cluster.name
            self._hosts = hostfiles.list_cluster_hosts(
                cluster, parsed_args.network, parsed_args.names
            )
            self._head = hostfiles.find_head_host(cluster, parsed_args.network, parsed_args.names)
            if parsed_args.formatter in _FOR_SCRIPTS:
                hostfiles.check_member_hosts(self._hosts)
        return hostfiles.COLUMNS, [hostfiles.host_columns_of(host) for host in self._hosts]


class ShowTopology(ListWithTexts):
    """Show which members of a virtual cluster are beside each other.

    Formats beside the usual ones: tree (the default), matrix, svg, slurm (topology.conf).
    Names of hosts and domains are the project's own: they say who shares one, and nothing else.

    Example: openstack hpc cluster topology train
    """

    @property
    def formatter_default(self) -> str:
        """For people."""
        return "tree"

    def texts(self) -> Mapping[str, Callable[[], str]]:
        """The writers of trees, matrices and pictures."""
        return {
            "tree": lambda: neighbours.format_cluster_tree(self._cluster),
            "matrix": lambda: neighbours.format_nearness_matrix(self._cluster),
            "slurm": lambda: neighbours.format_slurm_switches(self._cluster, self._nodes),
            "svg": lambda: picture.draw_cluster_picture(self._cluster),
        }

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        parser.add_argument(
            "--nodes",
            type=_parse_node_list,
            default=(),
            metavar="<nodes>",
            help="with -f slurm: all nodes that Slurm has of the cluster, e.g. train-[1-64]; those "
            "that are no members now are below a switch of their own, because Slurm refuses jobs "
            "for nodes that are in no switch",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """One row for each member."""
        with translate_errors():
            self._nodes = parsed_args.nodes
            self._cluster = sdk_cloud_of(self.app).find(parsed_args.cluster)
            if parsed_args.formatter in _FOR_SCRIPTS:
                neighbours.check_cluster_names(self._cluster)
        columns = ("Name", *(_TITLES[level] for level in neighbours.PATH))
        return columns, [
            (seat.member.name, *seat.path)
            for seat in neighbours.order_seats_by_nearness(self._cluster)
        ]


def _parse_node_list(text: str) -> tuple[str, ...]:
    try:
        return tuple(hostlist.expand_hostlist(text))
    except hostlist.HostListError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


_TITLES: Final = {
    "core": "Core",
    "spine": "Spine",
    "block": "Block",
    "leaf": "Leaf",
    "nvlink_domain": "NVLink domain",
    "sub_domain": "Sub-domain",
    "host": "Host",
}
