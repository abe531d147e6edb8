# SPDX-License-Identifier: Apache-2.0
"""Options that measure a cluster, and a run with them: for ``accept`` and ``create --accept``."""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nova_hpc_client.accept.cluster_result import ClusterAcceptance
from nova_hpc_client.accept.cluster_run import ClusterMeasuring
from nova_hpc_client.accept.cluster_terms import AcceptedHost, ClusterTerms, ShowStep
from nova_hpc_client.accept.launchers import GUEST_COMMAND, LAUNCHERS, SRUN, SSH, Reach
from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_client.cluster import hostfiles
from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.members.neighbours import order_seats_by_nearness
from nova_hpc_client.cluster.members.server_state import Standing
from nova_hpc_client.openstack import options
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.accept.options import BUDGETS, PAIRS, find_budget
from nova_hpc_guest.accept.own_probes import join_probes, read_probe_file
from nova_hpc_guest.accept.probes import CLUSTER, FULL, QUICK, Probe
from nova_hpc_guest.accept.sample import AcceptanceError
from nova_hpc_guest.accept.session import read_floors

TIERS: Final = (QUICK, FULL)
#: Seconds in which new members have to answer.
PATIENCE: Final = 300.0


def add_accept_options(parser: argparse.ArgumentParser, explanation: str) -> None:
    """Declare ``--accept TIER`` and all its options for a command that creates members.

    :param explanation: the help of ``--accept``, with the fate of a rejected member.
    """
    parser.add_argument("--accept", choices=TIERS, help=explanation)
    parser.add_argument(
        "--accept-network",
        default="",
        metavar="<network>",
        help="name of the network over which members are reached; default: each member's first",
    )
    add_reach_options(parser)


def add_reach_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that reach members, and those of the measurement's time and floors."""
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default=SSH,
        help=f"what runs nova-hpc-guest on members, default: {SSH}; {SRUN}: on the nodes of Slurm "
        "with the members' names",
    )
    parser.add_argument(
        "--login", type=_parse_login, metavar="<user>", help="user on members, for ssh"
    )
    parser.add_argument(
        "--ssh-option",
        action="append",
        default=[],
        type=_parse_ssh_option,
        metavar="<option=value>",
        help="option of ssh, as in IdentityFile=key or StrictHostKeyChecking=accept-new; may be "
        "repeated. ssh never asks: a key that is not known, or a password, is an error",
    )
    parser.add_argument(
        "--guest-command",
        type=_parse_words,
        default=GUEST_COMMAND,
        metavar="<words>",
        help="what runs nova-hpc-guest there, as in 'sudo nova-hpc-guest'",
    )
    parser.add_argument(
        "--accept-budget",
        type=options.parse_seconds,
        metavar="<seconds>",
        help="time for the turns of all members, default for each member: "
        + ", ".join(f"{seconds:g} ({tier})" for tier, seconds in BUDGETS.items()),
    )
    parser.add_argument(
        "--floors",
        metavar="<file>",
        help="JSON object: probe and the ratio below which it is slow",
    )


def _parse_login(text: str) -> str:
    # It becomes an argument of ssh, and a user name on the member.
    if not text.isascii() or not text.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a user")
    if text.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a user")
    return text


def _parse_ssh_option(text: str) -> str:
    key, separator, value = text.partition("=")
    if not key.isalnum() or not separator or not value or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not OPTION=VALUE of ssh_config")
    return text


def _parse_words(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if not words:
        raise argparse.ArgumentTypeError("it is empty")
    return words


def read_own_probes(args: argparse.Namespace) -> tuple[tuple[Probe, ...], list[str]]:
    """Read the files of ``--probe``; return their probes, and the words that members get.

    :raises ClusterError: a file cannot be used, or ``--only`` names a probe that is none.
    """
    try:
        files = [read_probe_file(path) for path in args.probe]
        return join_probes(files, args.only), [word for file in files for word in file.words]
    except AcceptanceError as error:
        raise ClusterError(str(error)) from error


def measure_cluster(
    cluster: Cluster,
    tier: str,
    args: argparse.Namespace,
    show: ShowStep,
    patience: float = 0.0,
    words: Sequence[str] = (),
    **more: Any,
) -> ClusterAcceptance:
    """Measure all members of a cluster with the options of :func:`add_reach_options`.

    :param patience: seconds until members without an answer are given up.
    :param words: further words of the command on members.
    :param more: fields of :class:`ClusterTerms`.
    :raises ClusterError: the cluster has fewer than two members, so there is no comparison.
    :raises HostError: a member has no address, or a name that must not be given to a program.
    """
    names = args.launcher == SRUN or getattr(args, "names", False)
    network = getattr(args, "accept_network", "") if not names else ""
    hosts = hostfiles.list_cluster_hosts(cluster, network, names)
    hosts = hostfiles.check_member_hosts(hosts)
    if len(hosts) < 2:
        raise ClusterError(
            f"cluster {cluster.name} has {len(hosts)} member: nothing to compare it with; run "
            "nova-hpc-guest accept in it"
        )
    reach = Reach(args.launcher, args.login or "", tuple(args.ssh_option), args.guest_command)
    accepted = [
        AcceptedHost(
            seat.number,
            seat.member.name,
            seat.member.id,
            host.reached,
            RemoteMember(functools.partial(reach.build_words, host), tier, more=words),
            "" if seat.member.standing is Standing.RUNS else f"it is {seat.member.state_text}",
            hostfiles.list_addresses(seat.member),
        )
        for seat, host in zip(order_seats_by_nearness(cluster), hosts, strict=True)
    ]
    accepted.sort(key=lambda host: host.number)
    budget, own = args.accept_budget, more.get("own", ())
    terms = ClusterTerms(
        tier=tier,
        least=PAIRS[tier],
        budget=find_budget(tier, own) * len(hosts) if budget is None else budget,
        patience=patience,
        **more,
    )
    return ClusterMeasuring(cluster.name, accepted, terms, show).measure()


def measure_new_cluster(
    cluster: Cluster,
    tier: str,
    args: argparse.Namespace,
    show: ShowStep,
    floors: Mapping[str, float],
) -> ClusterAcceptance:
    """Measure members that have just been created; they get time to answer.

    The user's file of known hosts does not contain their keys, and may contain the key of a former
    server with the same address. So ssh accepts the members' keys at the first contact, and stores
    them in a file for only this measurement: the next one may measure a replaced member with
    another key. The user's own options of ssh win over these.

    :raises ClusterError: the cluster has fewer than two members, so there is no comparison.
    :raises HostError: a member has no address, or a name that must not be given to a program.
    """
    with tempfile.TemporaryDirectory(prefix="nova-hpc-accept-") as folder:
        known_hosts = Path(folder, "known_hosts")
        new = [f'UserKnownHostsFile="{known_hosts}"', "StrictHostKeyChecking=accept-new"]
        stated = argparse.Namespace(**vars(args) | {"ssh_option": [*args.ssh_option, *new]})
        return measure_cluster(cluster, tier, stated, show, PATIENCE, floors=floors)


def record_verdicts(
    cloud: SdkCloud, measured: ClusterAcceptance, cluster: Cluster | None = None
) -> None:
    """Write each member's verdict into its metadata; print a message for each one that fails.

    The tier ``cluster`` measures members only together. So it records the member that it names, and
    otherwise replaces only its own former verdicts in *cluster*.
    """
    former = {} if cluster is None else {member.id: member.verdict for member in cluster.members}
    for member in measured.members:
        own = former.get(member.server)
        ours = own is not None and own.tier == CLUSTER
        if measured.tier == CLUSTER and not (member.slow or ours):
            continue
        try:
            cloud.set_verdict(member.server, member.make_verdict(measured.taken))
        except ClusterCloudError as error:
            print(
                f"the verdict of {printable_text(member.name)} is not in its metadata: {error}",
                file=sys.stderr,
            )


def read_floor_file(path: str | None, own: Sequence[Probe] = ()) -> dict[str, float]:
    """Read the floors in a file: probe -> ratio below which it is slow; empty without a file.

    :param own: the probes of the user, which the file may name, too.
    :raises ClusterError: the file cannot be read, or is not a file of floors.
    """
    try:
        return read_floors(path, own)
    except AcceptanceError as error:
        raise ClusterError(str(error)) from error
