# SPDX-License-Identifier: Apache-2.0
"""The options of ``openstack hpc cluster create``, and the ``ClusterWish`` that they describe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc_client.cluster import addresses, snapshots
from nova_hpc_client.cluster import head as heads
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.addresses import MemberAddressError
from nova_hpc_client.cluster.life_cycle.quota import HeadNeed, QuotaNeed
from nova_hpc_client.cluster.life_cycle.run import ClusterError
from nova_hpc_client.cluster.snapshots import ClusterSnapshot
from nova_hpc_client.cluster.user_data import SPARE
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_client.openstack import gpu_members
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_common.outside.text import shell_command
from nova_hpc_common.wire import cluster_wish, numbers
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from nova_hpc_common.wire.mounts import Mount, MountError, parse_mount
from nova_hpc_common.wire.version import WireError

#: Values of ``--network`` that are not networks.
_WORDS: Final = (cluster_wish.AUTO, cluster_wish.NONE)
_NO_USER_DATA: Final = (
    "the members of the snapshot had user data, which no record gives back: --user-data gives them "
    "again"
)
_UNKNOWN_USER_DATA: Final = (
    "no record says whether the members of the snapshot had user data: --user-data gives them "
    "again, --no-user-data says that there are none"
)


class _Nics(argparse.Action):
    """Collects ``--network`` and ``--nic`` in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add one network."""
        nics = [*(getattr(namespace, self.dest) or ()), values]
        setattr(namespace, self.dest, nics)


def _parse_network(text: str) -> Nic:
    return Nic(text)


def _parse_nic_option(text: str) -> Nic:
    values = {"vnic-type": "normal"}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in ("net-id", "vnic-type") or not value:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not net-id=NETWORK[,vnic-type=TYPE], where TYPE is one of "
                f"{', '.join(wishes.VNICS)}"
            )
        values[key] = value
    if "net-id" not in values:
        raise argparse.ArgumentTypeError(f"{text!r} names no network: net-id=NETWORK")
    return Nic(values["net-id"], values["vnic-type"])


def _parse_mount_option(text: str) -> Mount:
    try:
        return parse_mount(text)
    except MountError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_member_list(text: str) -> frozenset[int]:
    """Parse numbers of members such as 1-3,7, as argparse's type."""
    try:
        return numbers.parse_number_ranges(text)
    except WireError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_size(text: str) -> int:
    """Parse a positive number, for example of members or GiB, as argparse's type."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= numbers.MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {numbers.MOST}")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a number of seconds, at least 0 and less than 10^9, as argparse's type."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe a cluster."""
    count = parser.add_mutually_exclusive_group()
    count.add_argument(
        "--members",
        type=parse_size,
        metavar="<n>",
        help="how many members; they are called NAME-1 ...",
    )
    count.add_argument(
        "--numbers",
        type=parse_member_list,
        metavar="<list>",
        help="numbers of the members instead, such as 3-5,9 (for Slurm's node names)",
    )
    parser.add_argument("--flavor", metavar="<flavor>", help="flavor of the members (name or ID)")
    parser.add_argument("--image", metavar="<image>", help="image of the members (name or ID)")
    parser.add_argument(
        "--from-snapshot",
        metavar="<snapshot>",
        help="snapshot of a cluster (ID): each member boots from its own image, and all else is as "
        "in that cluster unless an option says otherwise",
    )
    parser.add_argument(
        "--boot-from-volume",
        type=parse_size,
        metavar="<GiB>",
        help="boot from new volumes of this size, made from the image and deleted with the members",
    )
    parser.add_argument(
        "--head",
        metavar="<flavor>",
        help="also create NAME-head, a server without devices for login and the scheduler of "
        "jobs, with this flavor (name or ID)",
    )
    parser.add_argument(
        "--head-image",
        metavar="<image>",
        help="image of the head (name or ID), default: the members'",
    )
    add_secret_options(parser)
    parser.add_argument(
        "--network",
        dest="nics",
        action=_Nics,
        type=_parse_network,
        metavar="<network>",
        help="network of each member (name or ID, or auto or none); may be repeated",
    )
    parser.add_argument(
        "--nic",
        dest="nics",
        action=_Nics,
        type=_parse_nic_option,
        metavar="net-id=<network>[,vnic-type=<type>]",
        help="network in which a port is made for each member before it is created, "
        "for example of vnic-type direct; may be repeated",
    )
    parser.add_argument(
        "--security-group",
        action="append",
        default=[],
        metavar="<group>",
        help="security group of the members; may be repeated",
    )
    parser.add_argument("--key-name", metavar="<key>", default="", help="key pair of the members")
    parser.add_argument(
        "--config-drive",
        action=argparse.BooleanOptionalAction,
        help="give members a configuration drive, default: only if no network of theirs is an "
        "ordinary one with DHCP",
    )
    parser.add_argument(
        "--availability-zone",
        default="",
        metavar="<zone>",
        help="availability zone; a host in it (ZONE:HOST) is refused: Nova would skip its filters",
    )
    parser.add_argument(
        "--policy",
        choices=wishes.POLICIES,
        default=wishes.POLICIES[0],
        help=f"policy of the server group, default: {wishes.POLICIES[0]}",
    )
    parser.add_argument(
        "--max-per-host",
        type=parse_size,
        metavar="<k>",
        help="with --policy anti-affinity: how many members may share a host, default: 1",
    )
    parser.add_argument(
        "--one-by-one",
        action="store_true",
        help="create members one by one; it is always so with --nic and --volume",
    )
    parser.add_argument(
        "--gpu-share",
        metavar="<share>",
        help="share of a GPU (name or ID) of which each member gets a slot once it is active",
    )
    parser.add_argument(
        "--hosts",
        action=argparse.BooleanOptionalAction,
        help="let members know each other, so that jobs start over ssh: they get keys with their "
        "user data, and a host list",
    )
    parser.add_argument(
        "--mount",
        dest="mounts",
        action="append",
        type=_parse_mount_option,
        default=[],
        metavar="<server>:<export>:<directory>",
        help="file system of an NFS server that each member mounts in a directory; may be repeated",
    )
    parser.add_argument(
        "--guest-check",
        action="store_true",
        help="a member counts once nova-hpc-guest check has said on its console that all is as "
        "promised",
    )


def add_secret_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that no record returns, so users give them again to finish a cluster."""
    add_user_data_options(parser)
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="<volume-id>",
        help="bootable volume that exists already; repeat it, one for each member in the order of "
        "their numbers",
    )


def add_user_data_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the user data of members."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--user-data", type=Path, metavar="<file>", help="user data of the members")
    data.add_argument(
        "--no-user-data",
        action="store_true",
        help="members of an adopted cluster have no user data: Nova does not tell it",
    )


def read_secrets(args: argparse.Namespace) -> Secrets:
    """Read the options of :func:`add_secret_options`.

    :raises ClusterError: the file of user data cannot be read.
    """
    return Secrets(read_user_data(args), tuple(args.volume), args.no_user_data)


def read_user_data(args: argparse.Namespace) -> bytes:
    """Read the file of user data; empty if the option was not given.

    :raises ClusterError: the file cannot be read.
    """
    try:
        return bytes(args.user_data.read_bytes()) if args.user_data else b""
    except OSError as error:
        raise ClusterError(f"--user-data {args.user_data}: {error.strerror}") from error


def wish_of_options(
    cloud: SdkCloud, args: argparse.Namespace, given: Secrets
) -> tuple[ClusterWish, QuotaNeed]:
    """Build the ``ClusterWish`` from the options, with ids instead of names.

    :param given: the secrets in the options.
    :returns: also the amounts that the quotas have to leave room for.
    :raises ClusterError: the options describe no valid cluster, or a name does not exist.
    """
    if args.from_snapshot:
        take_from_snapshot(args, cloud.images.find_snapshot(args.from_snapshot))
    if not args.members and not args.numbers:
        raise ClusterError("say how many members: --members N")
    if not args.flavor:
        raise ClusterError("say what members are: --flavor FLAVOR")
    if args.max_per_host and args.policy != "anti-affinity":
        raise ClusterError(f"--max-per-host goes with --policy anti-affinity, not {args.policy}")
    numbered = args.numbers or frozenset(range(1, args.members + 1))
    _refuse_wrong_head(args)
    flavor = cloud.flavor(args.flavor)
    head = cloud.flavor(args.head) if args.head else None
    word, nics = _look_up_networks(cloud, args.nics or ())
    image = _choose_image(cloud, args)
    new_wish = ClusterWish(
        name=args.name,
        members=numbered,
        flavor=str(flavor["id"]),
        image=image,
        head=str(head["id"]) if head else "",
        head_image=(cloud.image(args.head_image) if args.head_image else image) if head else "",
        nics=nics,
        networks=word,
        key=args.key_name,
        zone=args.availability_zone,
        security_groups=tuple(args.security_group),
        boot_gib=args.boot_from_volume or 0,
        config_drive=_choose_config_drive(cloud, args, nics),
        check=args.guest_check,
        hosts=args.hosts is not False,
        single=args.one_by_one,
        # In a resumed cluster, some members may have their slots already.
        gpu_share=gpu_members.find_share_for(
            cloud, args.gpu_share, 0 if args.resume else len(numbered)
        ),
        user_data=given.digests["user_data"],
        mounts=tuple(args.mounts),
        volumes=given.digests["volumes"],
    )
    try:
        spare = 0 if args.resume else SPARE
        wishes.check_cluster_wish(new_wish, given, spare)
        if head is not None:
            heads.check_head(new_wish, head)
    except WishError as error:
        raise ClusterError(str(error)) from error
    need = quota_need_of(new_wish, flavor, len(numbered), len(numbered), group=True)
    if head is not None:
        ports = len(heads.head_nics(new_wish))
        need = attrs.evolve(need, head=HeadNeed(int(head["vcpus"]), int(head["ram"]), ports))
    return new_wish, need


def _refuse_wrong_head(args: argparse.Namespace) -> None:
    if args.head_image and not args.head:
        raise ClusterError("--head-image goes with --head")
    if args.head and args.from_snapshot and not args.head_image:
        raise ClusterError("a snapshot has no disk of a head: name its image with --head-image")


def take_from_snapshot(args: argparse.Namespace, snapshot: ClusterSnapshot) -> None:
    """Set missing options to the values of the cluster that the snapshot was made of.

    A GPU share is left out, because all of its slots may be taken. User data cannot be set: the
    images contain only their digest, so a message reminds the user.

    :raises ClusterError: no cluster can be made from the snapshot, or not with these options.
    """
    if args.image or args.volume:
        raise ClusterError(
            "--from-snapshot gives each member its own image: leave --image and --volume out"
        )
    wish = snapshot.wish
    if wish is None or snapshot.problem:
        delete = shell_command("openstack", "hpc", "snapshot", "delete", snapshot.id)
        raise ClusterError(f"snapshot {snapshot.id} is not whole: {snapshot.problem}; {delete}")
    if 0 in wish.members:
        listed = shell_command(
            *("openstack", "image", "list", "--property", f"{snapshots.KEY}={snapshot.id}")
        )
        raise ClusterError(
            f"snapshot {snapshot.id} is of an adopted cluster with a member 0, and members of "
            "other clusters count from 1: --image makes all members from one of its images, which "
            f"{listed} lists"
        )
    numbered = args.numbers or (range(1, args.members + 1) if args.members else wish.members)
    # A resumed cluster may have been scaled since.
    if not args.resume and frozenset(numbered) != wish.members:
        raise ClusterError(
            f"snapshot {snapshot.id} has the members {numbers.format_number_ranges(wish.members)}: "
            "leave --members and --numbers out, and scale the cluster afterwards"
        )
    args.numbers, args.members = frozenset(numbered), None
    args.flavor = args.flavor or wish.flavor
    args.nics = args.nics or wish.nics or (Nic(wish.networks),)
    args.security_group = args.security_group or list(wish.security_groups)
    args.key_name = args.key_name or wish.key
    args.availability_zone = args.availability_zone or wish.zone
    args.boot_from_volume = args.boot_from_volume or wish.boot_gib
    args.mounts = args.mounts or wish.mounts
    args.hosts = wish.hosts if args.hosts is None else args.hosts
    args.config_drive = (
        (wish.config_drive or None) if args.config_drive is None else args.config_drive
    )
    args.guest_check = args.guest_check or wish.check
    args.one_by_one = args.one_by_one or wish.single
    if wish.user_data and not (args.user_data or args.no_user_data):
        known = wish.user_data != cluster_wish.UNKNOWN
        print(_NO_USER_DATA if known else _UNKNOWN_USER_DATA, file=sys.stderr)


def _choose_image(cloud: SdkCloud, args: argparse.Namespace) -> str:
    if args.from_snapshot:
        return snapshots.write_snapshot_image(args.from_snapshot)
    return cloud.image(args.image) if args.image else ""


def _choose_config_drive(cloud: SdkCloud, args: argparse.Namespace, nics: Sequence[Nic]) -> bool:
    """Whether members get a configuration drive; without one they may have no address.

    :raises ClusterError: the members, or the head, have no network with a subnet.
    """
    subnets = {nic.network: cloud.subnets(nic.network) for nic in nics}
    try:
        needed = addresses.needs_config_drive(nics, subnets)
        if args.head:
            ordinary = [nic for nic in nics if nic.vnic in addresses.ORDINARY]
            addresses.needs_config_drive(ordinary, subnets, "the head")
    except MemberAddressError as error:
        raise ClusterError(str(error)) from error
    if args.config_drive is None and needed:
        print(addresses.DRIVE_ADDED, file=sys.stderr)
    return needed if args.config_drive is None else bool(args.config_drive)


def quota_need_of(
    wish: ClusterWish, flavor: Any, members: int, in_group: int, group: bool
) -> QuotaNeed:
    """Compute the amounts that quotas have to leave room for.

    :param flavor: the members' flavor, a record of Nova's API.
    :param members: the number of servers that the command creates.
    :param in_group: the number of members in the server group afterwards.
    :param group: whether the command creates the server group.
    """
    return QuotaNeed(
        members=members,
        in_group=in_group,
        group=group,
        vcpus=int(flavor["vcpus"]),
        ram_mb=int(flavor["ram"]),
        ports=len(wish.nics),
    )


def _look_up_networks(cloud: SdkCloud, nics: Sequence[Nic]) -> tuple[str, tuple[Nic, ...]]:
    words = [nic.network for nic in nics if not nic.vnic and nic.network in _WORDS]
    if words:
        if len(nics) > 1:
            raise ClusterError(f"--network {words[0]} leaves no room for other networks")
        return words[0], ()
    return cluster_wish.AUTO, tuple(Nic(cloud.network(nic.network), nic.vnic) for nic in nics)
