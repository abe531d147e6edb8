# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster heal``."""

from __future__ import annotations

import argparse
import datetime
import os
import secrets as chance
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import attrs
from osc_lib.command import command

from nova_hpc_client.accept.new_cluster import format_rejection
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.hostfiles import HostError
from nova_hpc_client.cluster.life_cycle import healer, healing
from nova_hpc_client.cluster.life_cycle.healer import HealEndedError, Healer, HealTools
from nova_hpc_client.cluster.life_cycle.healing import HealMemory, HealTerms
from nova_hpc_client.cluster.life_cycle.quota import HeadNeed, QuotaNeed
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.members import member_names
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember
from nova_hpc_client.openstack import acceptance, gpu_members, options
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.v1 import cluster_changes, cluster_views
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.host_names import OutsideError
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.server_faults import FaultWord
from nova_hpc_guest.accept.result import ACCEPTED
from nova_hpc_guest.host_list import HEAD

#: Seconds between two looks: of one round, and with ``--watch``.
_ONCE, _WATCHING = 5.0, 60.0
#: Seconds in which a program for a member has to end. One that hangs must not stop the healer.
_PROGRAM_TIME: Final = 300.0
#: The environment of the drain program has the faults of its member.
_WORDS: Final = "HPC_FAULTS"


class HealCluster(HeardOutput, cluster_changes.ClusterChange, command.Command):
    """Replace the faulty members of a virtual cluster, which keep their names and ports.

    A member is faulty if it failed, or if show has a word for it under faults; the words partition
    and firmware need no other devices. Members that run are replaced if --drain has drained them,
    or with --force. If more than half of the members are faulty, none is replaced. Members whose
    guests have ended by themselves are started again. Exit status: 0 no member is faulty any more,
    1 otherwise.

    Example: openstack hpc cluster heal train --watch --drain /etc/slurm/hpc-drain
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("cluster", metavar="<cluster>", help="name or ID")
        parser.add_argument(
            "members",
            nargs="*",
            metavar="<member>",
            help="names or numbers of the members to heal, default: all; the head has to be named",
        )
        parser.add_argument(
            "--fault",
            action="append",
            choices=[word.value for word in healing.WORDS],
            help="replace members only for this fault; may be given several times, default: all",
        )
        parser.add_argument(
            "--watch", action="store_true", help="go on until the command is ended by a signal"
        )
        parser.add_argument(
            "--interval",
            type=options.parse_seconds,
            metavar="<seconds>",
            help="time between two looks; a fault has to be seen in two looks, default: "
            f"{_ONCE:g}, with --watch {_WATCHING:g}",
        )
        parser.add_argument(
            "--most-per-hour",
            type=options.parse_size,
            default=4,
            metavar="<n>",
            help="replacements in any hour, of all healers together, default: 4, at most "
            f"{healing.MOST_PER_HOUR}",
        )
        parser.add_argument(
            "--at-once",
            type=options.parse_size,
            default=1,
            metavar="<n>",
            help="members that are replaced at the same time, default: 1",
        )
        parser.add_argument(
            "--drain",
            metavar="<program>",
            help="program that is called with the name of a member before it is replaced, and with "
            f"its faults in {_WORDS}; where it fails, the member is busy and stays",
        )
        parser.add_argument(
            "--undrain",
            metavar="<program>",
            help="program that is called with the name of each member without a fault: once at the "
            "beginning, after its replacement, and after its fault has gone",
        )
        parser.add_argument(
            "--force", action="store_true", help="replace members even if they are busy"
        )
        acceptance.add_accept_options(
            parser, "measure new members as accept does; one that is rejected is faulty"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="only say which members are faulty"
        )
        options.add_secret_options(parser)
        parser.add_argument(
            "--timeout",
            type=options.parse_seconds,
            default=cluster_changes.BRIEF,
            metavar="<seconds>",
            help="give up a replacement, and a single round, after so long, default: "
            f"{cluster_changes.BRIEF:g}; 0: never",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Look at the cluster, and replace its faulty members."""
        args = parsed_args
        with cluster_views.translate_errors():
            terms = _read_terms(args)
            floors = acceptance.read_floor_file(args.floors)
            given = options.read_secrets(args)
            cloud = self.cloud
            cluster = cloud.find(args.cluster)
            terms = attrs.evolve(terms, named=_find_named(cluster, args.members))
            if args.dry_run:
                return _show_plan(cloud, cluster, terms)

            def settle(made: Cluster, numbers: Collection[int]) -> None:
                gpu_members.attach_members(cloud, made, args.timeout)
                if args.accept:
                    _accept_members(cloud, made, numbers, args, floors)

            tools = HealTools(
                drain=lambda member: _drain_member(args.drain, member),
                undrain=lambda member: _undrain_member(args.undrain, member),
                check=lambda current, numbers, freed: _check_room(cloud, current, numbers, freed),
                count_endings=cloud.count_endings,
                settle=settle,
                tell=_print_event if args.watch else lambda text: print(text, flush=True),
            )
            with _sleep_until_ended() as sleep:
                pace = Pace(limit=args.timeout, sleep=sleep)
                work = Healer(cloud, cluster.id, terms, tools, given, pace)
                try:
                    work.heal(args.watch)
                except HealEndedError:
                    tools.tell("ended by a signal")
        return 0 if work.well else 1


def _read_terms(args: argparse.Namespace) -> HealTerms:
    """The limits in the options.

    :raises ClusterError: one is out of range.
    """
    if args.most_per_hour > healing.MOST_PER_HOUR:
        raise ClusterError(f"--most-per-hour {args.most_per_hour}: at most {healing.MOST_PER_HOUR}")
    interval = args.interval or (_WATCHING if args.watch else _ONCE)
    return HealTerms(
        healer=chance.token_hex(4),
        interval=interval,
        most_per_hour=args.most_per_hour,
        at_once=args.at_once,
        drains=bool(args.drain),
        undrains=bool(args.undrain) and not args.dry_run,
        force=args.force,
        words=frozenset(map(FaultWord, args.fault or (word.value for word in healing.WORDS))),
    )


def _find_named(cluster: Cluster, names: Collection[str]) -> frozenset[int]:
    """Numbers of the named members, HEAD for the head.

    :raises ClusterError: there is no such member.
    """
    head = wishes.head_name(cluster.name)
    parse = cluster_changes.parse_member_numbers
    numbers = [parse(cluster, name) for name in names if name != head]
    named = frozenset[int]().union(*numbers)
    unknown = sorted(named - cluster.wanted)
    if unknown:
        raise ClusterError(f"cluster {cluster.name} has no member {cluster.name}-{unknown[0]}")
    if head in names and not cluster.wants_head:
        raise ClusterError(f"cluster {cluster.name} has no {head}")
    return named | ({HEAD} if head in names else frozenset())


def _show_plan(cloud: SdkCloud, cluster: Cluster, terms: HealTerms) -> int:
    """Print the faulty members and the next action; returns the exit status."""
    cluster = healing.keep_faults(cluster, terms)
    memory = HealMemory().remember(cluster, 0.0)
    seen = dict.fromkeys(memory.seen, -terms.interval)
    date = datetime.datetime.now(datetime.UTC).timestamp()
    endings = healer.read_endings(cluster, {}, cloud.count_endings)
    memory = attrs.evolve(memory, seen=seen, endings=endings)
    move = healing.plan_healing(cluster, memory, terms, 0.0, date)
    for line in healer.describe_move(cluster, move, terms):
        print(line)
    return 0 if isinstance(move, healing.Healthy) else 1


def _print_event(text: str) -> None:
    date = datetime.datetime.now(datetime.UTC)
    print(f"{date:%Y-%m-%dT%H:%M:%SZ} {text}", flush=True)


def _drain_member(program: str | None, member: ClusterMember) -> bool:
    words = ",".join(word.value for word in member.faults) or "failed"
    try:
        _run_program(program or "", member, words)
    except (ClusterError, OutsideError) as error:
        print(printable_text(f"--drain {error}"), file=sys.stderr)
        return False
    return True


def _undrain_member(program: str, member: ClusterMember) -> bool:
    try:
        _run_program(program, member, "")
    except (ClusterError, OutsideError) as error:
        print(printable_text(f"--undrain {error}"), file=sys.stderr)
        return False
    return True


def _run_program(program: str, member: ClusterMember, words: str) -> None:
    member_names.check_names([(member.id, member.name)])
    environment = {**os.environ, _WORDS: words}
    try:
        ended = subprocess.run(
            [program, member.name], env=environment, check=False, timeout=_PROGRAM_TIME
        )
    except OSError as error:
        raise ClusterError(f"{program}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"{program} {member.shown} has not ended within {_PROGRAM_TIME:g} seconds"
        ) from error
    if ended.returncode:
        raise ClusterError(f"{program} {member.shown} ended with status {ended.returncode}")


def _check_room(
    cloud: SdkCloud, cluster: Cluster, numbers: Collection[int], freed: Collection[int]
) -> None:
    """Check that Nova can make new servers, before an old one is deleted.

    Ports are left out: those that the client made stay.

    :raises ClusterError: a quota, a flavor or an image is missing; the text contains the cure.
    """
    wish = cluster.wish
    if wish is None or not numbers:
        return
    flavor = cloud.flavor(wish.flavor)
    head = cloud.flavor(wish.head) if HEAD in numbers else None

    def need_of(some: Collection[int]) -> QuotaNeed:
        members = [number for number in some if number != HEAD]
        need = options.quota_need_of(wish, flavor, len(members), len(wish.members), group=False)
        add = HeadNeed(int(head["vcpus"]), int(head["ram"]), 0) if head and HEAD in some else None
        return attrs.evolve(need, ports=0, head=add)

    for number in numbers:
        if number != HEAD:
            cloud.images.find_boot_image(wish.image, number)
    cloud.check_quotas(need_of(numbers), need_of(freed))


def _accept_members(
    cloud: SdkCloud,
    cluster: Cluster,
    numbers: Collection[int],
    args: argparse.Namespace,
    floors: Mapping[str, float],
) -> None:
    """Measure the cluster, and write the verdicts of its new members.

    :raises ClusterError: a new member is not accepted.
    """
    try:
        measured = acceptance.measure_new_cluster(
            cluster, args.accept, args, lambda what, done, total: None, floors
        )
    except HostError as error:
        raise ClusterError(str(error)) from error
    new = tuple(member for member in measured.members if member.number in numbers)
    measured = attrs.evolve(measured, members=new)
    acceptance.record_verdicts(cloud, measured)
    if new and measured.verdict != ACCEPTED:
        raise ClusterError(format_rejection(measured))


@contextmanager
def _sleep_until_ended() -> Iterator[Any]:
    """A sleep that the first signal (SIGTERM, SIGINT) ends; the second one ends the process.

    So a healer ends between two requests, and the next healer goes on from there.
    """
    ended = threading.Event()

    def end(number: int, frame: Any) -> None:
        ended.set()
        for word, handler in before.items():
            signal.signal(word, handler)

    def sleep(seconds: float) -> None:
        if ended.wait(seconds):
            raise HealEndedError

    before = {word: signal.signal(word, end) for word in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield sleep
    finally:
        for word, handler in before.items():
            signal.signal(word, handler)
