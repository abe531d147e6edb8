# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster create``, ``scale``, ``replace`` and ``delete``."""

from __future__ import annotations

import argparse
import contextlib
import secrets as chance
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc.outside.text import printable, printable_lines, shell_command
from nova_hpc.wire import numbers
from nova_hpc.wire.cluster_wish import NAME
from nova_hpc.wire.version import WireError
from nova_hpc_tools.cluster.life_cycle import commands, decide
from nova_hpc_tools.cluster.life_cycle.commands import Nearness
from nova_hpc_tools.cluster.life_cycle.run import CloudError, ClusterError, Pace
from nova_hpc_tools.cluster.members import leave
from nova_hpc_tools.cluster.members import member_names as named
from nova_hpc_tools.cluster.members import neighbours as near
from nova_hpc_tools.cluster.members.model import Cluster, number
from nova_hpc_tools.openstack import options, progress
from nova_hpc_tools.openstack.cloud import SdkCloud
from nova_hpc_tools.openstack.rest import Rest
from nova_hpc_tools.openstack.v1 import cluster_views as look
from nova_hpc_tools.outlet import HeardOutput
from nova_hpc_tools.printing import InertOutput

_INTERRUPTED: Final = 130
_BRIEF: Final = 3600.0


class _Changes:
    """Common to what changes a cluster."""

    app: Any

    @property
    def cloud(self) -> SdkCloud:
        """Nova and Neutron with the user's rights."""
        return SdkCloud(Rest(self.app.client_manager.hpc))

    @contextlib.contextmanager
    def at_work(self, args: argparse.Namespace, name: str, total: int) -> Iterator[Pace]:
        """Show how far it is; say what is left when the user interrupts it."""
        wanted = args.wait or sys.stderr.isatty()
        try:
            with progress.shown(total, wanted) as said:
                yield Pace(limit=args.timeout, said=said)
        except KeyboardInterrupt:
            print(
                f"interrupted; see {_command('show', name)}\n"
                f"{_command('create', '--resume', name)} goes on, "
                f"{_command('delete', name)} ends it",
                file=sys.stderr,
            )
            raise SystemExit(_INTERRUPTED) from None


def _command(*words: str) -> str:
    return shell_command("openstack", "hpc", "cluster", *words)


def _add_patience(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        action="store_true",
        help="show a progress bar also where standard error is no terminal",
    )
    parser.add_argument(
        "--timeout",
        type=options.seconds,
        default=_BRIEF,
        metavar="<seconds>",
        help=f"give up after so long, default: {_BRIEF:g}; 0: never",
    )


class CreateCluster(HeardOutput, _Changes, InertOutput, command.ShowOne):
    """Create a virtual cluster: every member becomes active, or nothing is left

    With --resume, finish a cluster that another client has left half-way.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="<name>", help="name of the cluster")
        options.add_to(parser)
        parser.add_argument(
            "--resume",
            action="store_true",
            help="finish the cluster with this name or ID; no other option is needed but those "
            "that no record gives back",
        )
        parser.add_argument(
            "--no-wait",
            action="store_true",
            help="do not wait until members are active: a member that fails later is shown by "
            "list, and nothing is undone",
        )
        _add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Create or finish it."""
        with look.told():
            made = self._resume(parsed_args) if parsed_args.resume else self._create(parsed_args)
        return look.record(made)

    def _create(self, args: argparse.Namespace) -> Cluster:
        cloud = self.cloud
        if not NAME.fullmatch(args.name):
            # Before anything is asked: the name is in the cure of every later error.
            raise ClusterError(f"{args.name!r} cannot name a cluster: see the help of create")
        given = options.secrets(args)
        wish, need = options.wish(cloud, args, given)
        if any(each.name == args.name for each in cloud.clusters()):
            raise ClusterError(
                f"there is a cluster {args.name}: choose another name, "
                f"or finish it with {_command('create', '--resume', args.name)}"
            )
        cloud.check_quotas(need)
        with self.at_work(args, args.name, len(wish.members)) as pace:
            return commands.create(
                cloud,
                wish,
                given,
                Nearness(args.policy, args.max_per_host),
                chance.token_hex(4),
                pace,
                until_active=not args.no_wait,
            )

    def _resume(self, args: argparse.Namespace) -> Cluster:
        cloud = self.cloud
        cluster = cloud.find(args.name)
        given = options.secrets(args)
        said = None
        if args.flavor:
            args.name, args.members = cluster.name, None
            args.numbers = cluster.wanted
            said, _ = options.wish(cloud, args, given)
        with self.at_work(args, cluster.id, len(cluster.wanted)) as pace:
            return commands.resume(cloud, cluster, said, given, pace)


class DeleteCluster(HeardOutput, _Changes, command.Command):
    """Delete virtual clusters: their servers, ports and server groups"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("clusters", nargs="+", metavar="<cluster>", help="name or ID")
        _add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete one after the other; go on where one cannot be deleted."""
        wrong = []
        for name in parsed_args.clusters:
            try:
                cloud = self.cloud
                cluster = cloud.find(name)
                with self.at_work(parsed_args, cluster.id, len(cluster.members)) as pace:
                    commands.delete(cloud, cluster, pace)
            except (ClusterError, CloudError) as error:
                wrong.append(printable_lines(str(error)))
        if wrong:
            raise exceptions.CommandError("\n".join(wrong))


class ScaleCluster(HeardOutput, _Changes, InertOutput, command.ShowOne):
    """Give a virtual cluster more members, or fewer

    Of those that could go, the ones go whose going brings the others nearest; failed ones
    go first.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        how = parser.add_mutually_exclusive_group(required=True)
        how.add_argument("--members", type=options.size, metavar="<n>", help="how many there are")
        how.add_argument(
            "--add", metavar="<list>", help="members that come: numbers (4-6), or names (NAME-4)"
        )
        how.add_argument("--remove", metavar="<list>", help="members that go: numbers or names")
        parser.add_argument(
            "--drain",
            metavar="<program>",
            help="program that is called with the names of the members that go, before anything "
            "is changed; where it fails, nothing is",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="only say which members come and go"
        )
        options.add_secrets(parser)
        _add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Choose, drain, change."""
        with look.told():
            cloud = self.cloud
            cluster = cloud.find(parsed_args.cluster)
            wanted = _chosen(cluster, parsed_args)
            goes, comes = cluster.wanted - wanted, wanted - cluster.wanted
            if parsed_args.dry_run:
                names = (_names(cluster, goes), _names(cluster, comes))
                return ("Goes", "Comes"), tuple(map(format_columns.ListColumn, names))
            if not goes and not comes:
                return look.record(cluster)
            given = options.secrets(parsed_args)
            if comes and cluster.wish is not None:
                flavor = cloud.flavor(cluster.wish.flavor)
                cloud.check_quotas(
                    options.need(cluster.wish, flavor, len(comes), len(wanted), group=False)
                )
            commands.refuse_half(cluster)
            _drain(parsed_args.drain, cluster, goes)
            with self.at_work(parsed_args, cluster.id, len(wanted)) as pace:
                made = commands.scale(cloud, cluster, wanted, given, pace)
        return look.record(made)


class ReplaceMember(HeardOutput, _Changes, InertOutput, command.ShowOne):
    """Replace members of a virtual cluster, which keep their names and ports

    The new server comes where the cluster is. Without members, those that failed.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        parser.add_argument("members", nargs="*", metavar="<member>", help="names or numbers")
        options.add_secrets(parser)
        _add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Delete and create again."""
        with look.told():
            cloud = self.cloud
            cluster = cloud.find(parsed_args.cluster)
            which = [each for text in parsed_args.members for each in _numbered(cluster, text)]
            if not parsed_args.members:
                found = number(cluster).by_number
                which = [each for each, member in found.items() if member.failed]
                if not which:
                    raise ClusterError(f"no member of cluster {cluster.name} has failed: name one")
            with self.at_work(parsed_args, cluster.id, len(cluster.wanted)) as pace:
                made = commands.replace(
                    cloud, cluster, sorted(set(which)), options.secrets(parsed_args), pace
                )
        return look.record(made)


def _chosen(cluster: Cluster, args: argparse.Namespace) -> frozenset[int]:
    """The numbers that the cluster is to have."""
    wanted = cluster.wanted
    if args.add:
        return wanted | _numbered(cluster, args.add)
    if args.remove:
        leaving = _numbered(cluster, args.remove)
        unknown = leaving - wanted
        if unknown:
            names = printable(", ".join(_names(cluster, unknown)))
            raise ClusterError(f"cluster {cluster.name} has no member {names}")
        return wanted - leaving
    if args.members >= len(wanted):
        if cluster.wish is None:
            return wanted
        return decide.grown(cluster.wish, args.members)
    commands.refuse_half(cluster)
    return wanted - leave.choose(near.places(cluster), args.members)


def _numbered(cluster: Cluster, text: str) -> frozenset[int]:
    """Numbers of members: ``3-5,9``, ``NAME-3,NAME-4`` or ``NAME-[3-5,9]``.

    :raises ClusterError: it is none of them.
    """
    prefix = f"{cluster.name}-"
    inner = text
    if text.startswith(f"{prefix}[") and text.endswith("]"):
        inner = text[len(prefix) + 1 : -1]
    elif text.startswith(prefix):
        inner = ",".join(each.removeprefix(prefix) for each in text.split(","))
    try:
        return numbers.read(inner)
    except WireError as error:
        raise ClusterError(
            f"{text!r} does not say members of {cluster.name}: {error}; or {prefix}[1-3,7]"
        ) from error


def _names(cluster: Cluster, which: Collection[int]) -> Sequence[str]:
    found = number(cluster).by_number
    return [
        found[each].name if each in found else f"{cluster.name}-{each}" for each in sorted(which)
    ]


def _drain(program: str | None, cluster: Cluster, goes: Collection[int]) -> None:
    if not program or not goes:
        return
    names = _names(cluster, goes)
    found = number(cluster).by_number
    named.check_names((found[each].id, found[each].name) for each in goes if each in found)
    try:
        ended = subprocess.run([program, *names], check=False)
    except OSError as error:
        raise ClusterError(f"--drain {program}: {error.strerror}; nothing has changed") from error
    if ended.returncode:
        raise ClusterError(
            f"--drain {program} ended with status {ended.returncode}; nothing has changed"
        )
