# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster create``, ``scale``, ``replace`` and ``delete``."""

from __future__ import annotations

import argparse
import contextlib
import secrets as chance
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc_client.accept.cluster_result import ClusterAcceptance
from nova_hpc_client.accept.new_cluster import settle_cluster
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.hostfiles import HostError
from nova_hpc_client.cluster.life_cycle import adoption, commands, decide
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError, Pace
from nova_hpc_client.cluster.members import leave, member_names, neighbours
from nova_hpc_client.cluster.members.model import Cluster, number_members
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_client.openstack import acceptance, gpu_members, options, progress
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.rest import RestClient
from nova_hpc_client.openstack.v1 import cluster_views
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.text import printable_lines, printable_text, shell_command
from nova_hpc_common.wire import numbers, room_note
from nova_hpc_common.wire.cluster_wish import NAME
from nova_hpc_common.wire.version import WireError

_INTERRUPTED: Final = 130
#: Seconds after which a command gives up.
BRIEF: Final = 3600.0


class ClusterChange:
    """Common parts of the commands that change a cluster."""

    app: Any

    @property
    def cloud(self) -> SdkCloud:
        """Nova and Neutron with the user's rights."""
        return SdkCloud(RestClient(self.app.client_manager.hpc))

    @contextlib.contextmanager
    def at_work(
        self,
        args: argparse.Namespace,
        name: str,
        total: int,
        ways: str = "",
        **progress_words: Any,
    ) -> Iterator[Pace]:
        """Show the progress of a command, and print the way on if the user interrupts it.

        :param ways: the commands that finish or undo it; empty for those of a creation.
        :param progress_words: arguments of :func:`progress.show_member_progress`.
        :raises SystemExit: the user has interrupted the command.
        """
        wanted = args.wait or sys.stderr.isatty()
        ways = ways or (
            f"{_openstack_cluster_command('create', '--resume', name)} goes on, "
            f"{_openstack_cluster_command('delete', name)} ends it"
        )
        try:
            with progress.show_member_progress(total, wanted, **progress_words) as report:
                yield Pace(limit=args.timeout, said=report)
        except KeyboardInterrupt:
            print(
                f"interrupted; see {_openstack_cluster_command('show', name)}\n{ways}",
                file=sys.stderr,
            )
            raise SystemExit(_INTERRUPTED) from None


def _openstack_cluster_command(*words: str) -> str:
    return shell_command("openstack", "hpc", "cluster", *words)


def add_patience(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the time that a command waits, and for its progress."""
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the end (the default), with a progress bar also if no terminal reads it",
    )
    parser.add_argument(
        "--timeout",
        type=options.parse_seconds,
        default=BRIEF,
        metavar="<seconds>",
        help=f"give up after so long, default: {BRIEF:g}; 0: never",
    )


def delete_each(names: Sequence[str], delete: Callable[[str], None]) -> None:
    """Delete one after the other; an error does not stop the next.

    :raises CommandError: with the error of each one that was not deleted.
    """
    wrong = []
    for name in names:
        try:
            delete(name)
        except (ClusterError, ClusterCloudError) as error:
            wrong.append(printable_lines(str(error)))
    if wrong:
        raise exceptions.CommandError("\n".join(wrong))


class CreateCluster(HeardOutput, ClusterChange, InertOutput, command.ShowOne):
    """Create a virtual cluster: every member becomes active, or nothing is left.

    With --resume, finish a cluster that another client has left half-way. With --when, create
    nothing, and show from when on so many members fit: the operators may have published it.

    Example: openstack hpc cluster create train --members 4 --flavor hpc.gpu4 --image debian-12
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="<name>", help="name of the cluster")
        options.add_cluster_options(parser)
        parser.add_argument(
            "--resume",
            action="store_true",
            help="finish the cluster with this name or ID; no other option is needed but those "
            "that no record gives back",
        )
        parser.add_argument(
            "--when",
            action="store_true",
            help="create nothing: show from when on so many members of the flavor fit",
        )
        parser.add_argument(
            "--no-wait",
            action="store_true",
            help="do not wait until members are active: a member that fails later is shown by "
            "list, and nothing is undone",
        )
        acceptance.add_accept_options(
            parser,
            "measure the members as accept does: one that is rejected is replaced once, then "
            "the creation fails",
        )
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Create a cluster, or finish an incomplete one, or show when one fits."""
        with cluster_views.translate_errors():
            if parsed_args.when:
                return self._show_time(parsed_args)
            made = self._resume(parsed_args) if parsed_args.resume else self._create(parsed_args)
            if not parsed_args.no_wait:
                gpu_members.attach_members(self.cloud, made, parsed_args.timeout)
        return cluster_views.cluster_record_of(made)

    def _create(self, args: argparse.Namespace) -> Cluster:
        cloud = self.cloud
        if not NAME.fullmatch(args.name):
            # Checked before any request: the name is in the cure of every later error.
            raise ClusterError(f"{args.name!r} cannot name a cluster: see the help of create")
        if args.gpu_share and args.no_wait:
            raise ClusterError("--gpu-share needs members that are active: leave --no-wait out")
        given = options.read_secrets(args)
        wish, need = options.wish_of_options(cloud, args, given)
        if args.accept and args.no_wait:
            raise ClusterError("--accept measures members that are active: leave --no-wait out")
        if args.accept and len(wish.members) < 2:
            raise ClusterError("--accept compares members with each other: there is only one")
        if any(cluster.name == args.name for cluster in cloud.clusters()):
            raise ClusterError(
                f"there is a cluster {args.name}: choose another name, "
                f"or finish it with {_openstack_cluster_command('create', '--resume', args.name)}"
            )
        cloud.check_quotas(need)
        with self.at_work(args, args.name, len(wish.members)) as pace:
            return commands.create_cluster(
                cloud,
                wish,
                given,
                Nearness(args.policy, args.max_per_host),
                chance.token_hex(4),
                pace,
                until_active=not args.no_wait,
                settle=_settle_with(cloud, args, given, pace),
            )

    def _show_time(self, args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        """Show from when on the cluster fits, as the operators have published it.

        :raises ClusterError: they have not, or it is unknown.
        """
        members = len(args.numbers or ()) or args.members
        if not args.flavor or not members or args.resume:
            raise ClusterError(
                "--when needs --flavor and --members (or --numbers), and no --resume"
            )
        flavor = self.cloud.flavor(args.flavor)
        name = printable_text(str(flavor["name"]))
        note = room_note.read_room_note(flavor.get("description"))
        if note is None:
            raise ClusterError(
                f"the description of flavor {name} has no times: operators publish them with "
                "nova-hpc when --publish"
            )
        time = note.find_time(members)
        if time == room_note.UNKNOWN:
            raise ClusterError(
                f"at {note.taken} no time was known from which {members} members of {name} fit"
            )
        return ("members", "flavor", "fits_from", "as_of"), (members, name, time, note.taken)

    def _resume(self, args: argparse.Namespace) -> Cluster:
        cloud = self.cloud
        cluster = cloud.find(args.name)
        given = options.read_secrets(args)
        stated_wish = None
        if args.flavor or args.from_snapshot:
            args.name, args.members = cluster.name, None
            args.numbers = cluster.wanted
            stated_wish, _ = options.wish_of_options(cloud, args, given)
        with self.at_work(args, cluster.id, len(cluster.wanted)) as pace:
            settle = _settle_with(cloud, args, given, pace)
            made = commands.resume_cluster(cloud, cluster, stated_wish, given, pace)
            return made if settle is None else settle(made)


def _settle_with(
    cloud: SdkCloud, args: argparse.Namespace, given: Secrets, pace: Pace
) -> Callable[[Cluster], Cluster] | None:
    """The measurement that ``--accept`` adds when all members are active; None without the option.

    :raises ClusterError: the file of floors is invalid; nothing has been made yet.
    """
    if not args.accept:
        return None
    floors = acceptance.read_floor_file(args.floors)

    def measure(cluster: Cluster) -> ClusterAcceptance:
        def show(what: str, done: int, total: int) -> None:
            pace.said(cluster, f"{what} ({done} of {total})")

        try:
            measured = acceptance.measure_new_cluster(cluster, args.accept, args, show, floors)
        except HostError as error:
            raise ClusterError(str(error)) from error
        acceptance.record_verdicts(cloud, measured)
        return measured

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    return lambda cluster: settle_cluster(cloud, cluster, given, pace, measure, tell)


class DeleteCluster(HeardOutput, ClusterChange, command.Command):
    """Delete virtual clusters: their servers, ports and server groups.

    Of adopted clusters, the server group stays, and so do ports that another tool made.

    Example: openstack hpc cluster delete train
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("clusters", nargs="+", metavar="<cluster>", help="name or ID")
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete one after the other."""
        delete_each(parsed_args.clusters, lambda name: self._delete(parsed_args, name))

    def _delete(self, args: argparse.Namespace, name: str) -> None:
        cloud = self.cloud
        cluster = cloud.find(name)
        # Checked before a slot is taken from a member.
        commands.check_deletion(cluster)
        with self.at_work(args, cluster.id, len(cluster.members)) as pace:
            gpu_members.give_back_slots(cloud, cluster)
            commands.delete_cluster(cloud, cluster, pace)
        for port in cluster.lent:
            text = f"port {port.name} is left: server {port.server} has it"
            print(printable_text(text), file=sys.stderr)
        if cluster.adopted:
            print(adoption.format_what_stays(cluster), file=sys.stderr)


class ScaleCluster(HeardOutput, ClusterChange, InertOutput, command.ShowOne):
    """Give a virtual cluster more members, or fewer.

    Of those that could go, the ones go whose going brings the others nearest; failed ones
    go first, then those that accept has rejected.

    Example: openstack hpc cluster scale train --members 6
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        how = parser.add_mutually_exclusive_group(required=True)
        how.add_argument(
            "--members", type=options.parse_size, metavar="<n>", help="how many there are"
        )
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
        options.add_secret_options(parser)
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Choose the members, run the drain program, change the cluster."""
        with cluster_views.translate_errors():
            cloud = self.cloud
            cluster = cloud.find(parsed_args.cluster)
            wanted = _choose_wanted_numbers(cluster, parsed_args)
            goes, comes = cluster.wanted - wanted, wanted - cluster.wanted
            if parsed_args.dry_run:
                names = (_names_of_members(cluster, goes), _names_of_members(cluster, comes))
                return ("Goes", "Comes"), tuple(map(format_columns.ListColumn, names))
            if not goes and not comes:
                return cluster_views.cluster_record_of(cluster)
            given = options.read_secrets(parsed_args)
            if comes and cluster.wish is not None:
                for member_number in comes:
                    cloud.images.find_boot_image(cluster.wish.image, member_number)
                flavor = cloud.flavor(cluster.wish.flavor)
                cloud.check_quotas(
                    options.quota_need_of(
                        cluster.wish, flavor, len(comes), len(wanted), group=False
                    )
                )
            commands.refuse_half(cluster)
            _run_drain_program(parsed_args.drain, cluster, goes)
            with self.at_work(parsed_args, cluster.id, len(wanted)) as pace:
                made = commands.scale_cluster(cloud, cluster, wanted, given, pace)
            gpu_members.attach_members(cloud, made, parsed_args.timeout)
        return cluster_views.cluster_record_of(made)


class ReplaceMember(HeardOutput, ClusterChange, InertOutput, command.ShowOne):
    """Replace members of a virtual cluster, which keep their names and ports.

    The new server comes where the cluster is. Without members, those that failed or that
    accept has rejected. The head is called NAME-head; it gets a new disk, and new ports.

    Example: openstack hpc cluster replace train 2
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        parser.add_argument("members", nargs="*", metavar="<member>", help="names or numbers")
        options.add_secret_options(parser)
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Delete the members, and create them again."""
        with cluster_views.translate_errors():
            cloud = self.cloud
            cluster = cloud.find(parsed_args.cluster)
            head_name = wishes.head_name(cluster.name)
            head = head_name in parsed_args.members
            which = [
                member_number
                for text in parsed_args.members
                if text != head_name
                for member_number in parse_member_numbers(cluster, text)
            ]
            if not parsed_args.members:
                numbered = number_members(cluster)
                which = [
                    member_number
                    for member_number, member in numbered.by_number.items()
                    if member.failed or member.rejected
                ]
                head = numbered.head is not None and numbered.head.failed
                if not which and not head:
                    raise ClusterError(
                        f"no member of cluster {cluster.name} has failed or was rejected: name one"
                    )
            for member_number in which:
                # Checked before a member is deleted: without its image it could not be made again.
                image = cluster.wish.image if cluster.wish is not None else ""
                cloud.images.find_boot_image(image, member_number)
            with self.at_work(parsed_args, cluster.id, len(cluster.wanted)) as pace:
                given = options.read_secrets(parsed_args)
                which = sorted(set(which))
                made = commands.replace_members(cloud, cluster, which, given, pace, head)
            gpu_members.attach_members(cloud, made, parsed_args.timeout)
        return cluster_views.cluster_record_of(made)


def _choose_wanted_numbers(cluster: Cluster, args: argparse.Namespace) -> frozenset[int]:
    """The numbers of the members that the cluster should have."""
    wanted = cluster.wanted
    if args.add:
        return wanted | parse_member_numbers(cluster, args.add)
    if args.remove:
        leaving = parse_member_numbers(cluster, args.remove)
        unknown = leaving - wanted
        if unknown:
            names = printable_text(", ".join(_names_of_members(cluster, unknown)))
            raise ClusterError(f"cluster {cluster.name} has no member {names}")
        return wanted - leaving
    if args.members >= len(wanted):
        if cluster.wish is None:
            return wanted
        return decide.grow_member_numbers(cluster.wish, args.members)
    commands.refuse_half(cluster)
    return wanted - leave.choose_leavers(neighbours.member_places_of(cluster), args.members)


def parse_member_numbers(cluster: Cluster, text: str) -> frozenset[int]:
    """Numbers of members: ``3-5,9``, ``NAME-3,NAME-4`` or ``NAME-[3-5,9]``.

    :raises ClusterError: the text has none of these forms.
    """
    prefix = f"{cluster.name}-"
    inner = text
    if text.startswith(f"{prefix}[") and text.endswith("]"):
        inner = text[len(prefix) + 1 : -1]
    elif text.startswith(prefix):
        inner = ",".join(name.removeprefix(prefix) for name in text.split(","))
    try:
        return numbers.parse_number_ranges(inner, lowest=int(not cluster.adopted))
    except WireError as error:
        raise ClusterError(
            f"{text!r} does not say members of {cluster.name}: {error}; or {prefix}[1-3,7]"
        ) from error


def _names_of_members(cluster: Cluster, which: Collection[int]) -> Sequence[str]:
    by_number = number_members(cluster).by_number
    return [
        by_number[member_number].name
        if member_number in by_number
        else f"{cluster.name}-{member_number}"
        for member_number in sorted(which)
    ]


def _run_drain_program(program: str | None, cluster: Cluster, goes: Collection[int]) -> None:
    if not program or not goes:
        return
    names = _names_of_members(cluster, goes)
    by_number = number_members(cluster).by_number
    member_names.check_names(
        (by_number[member_number].id, by_number[member_number].name)
        for member_number in goes
        if member_number in by_number
    )
    try:
        ended = subprocess.run([program, *names], check=False)
    except OSError as error:
        raise ClusterError(f"--drain {program}: {error.strerror}; nothing has changed") from error
    if ended.returncode:
        raise ClusterError(
            f"--drain {program} ended with status {ended.returncode}; nothing has changed"
        )
