# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc gpu share create``, ``list``, ``show`` and ``delete``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError, Pace
from nova_hpc_client.gpu import cleaning, keys, refusals, sharing
from nova_hpc_client.gpu.cloud import ask_again
from nova_hpc_client.gpu.model import SharedGpu, ShareSlot, ShareState
from nova_hpc_client.gpu.refusals import ShareError, format_gpu_command
from nova_hpc_client.openstack import options
from nova_hpc_client.openstack.gpu_cloud import SdkShareCloud
from nova_hpc_client.openstack.progress import show_text_progress
from nova_hpc_client.openstack.rest import RestClient
from nova_hpc_client.openstack.v1.cluster_views import translate_errors
from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.host_names import is_uuid
from nova_hpc_common.outside.text import printable_lines, printable_text
from nova_hpc_guest.gpu import records
from nova_hpc_guest.gpu.records import GpuShare

_BRIEF: Final = 1800.0
_MEMORY: Final = re.compile(r"([1-9][0-9]{0,7})(M|MiB|G|GiB)", re.ASCII)


def share_cloud_of(app: Any) -> SdkShareCloud:
    """Build the object that reaches Nova and Neutron with the rights of the command's user.

    :param app: the OpenStack client's application object.
    """
    return SdkShareCloud(RestClient(app.client_manager.hpc))


def parse_memory(text: str) -> int:
    """Parse a size such as 16G or 512M, as an argparse type, and return it in MiB.

    :raises argparse.ArgumentTypeError: the text is no such size, or the size is 0 or too large.
    """
    match = _MEMORY.fullmatch(text)
    size = int(match[1]) * (1024 if match[2].startswith("G") else 1) if match else 0
    if not 0 < size <= records.MOST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!a} is no size of memory, such as 16G or 512M")
    return size


def add_patience(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the time that a command waits, and for its progress."""
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the end (the default), with progress also if no terminal reads it",
    )
    parser.add_argument(
        "--timeout",
        type=options.parse_seconds,
        default=_BRIEF,
        metavar="<seconds>",
        help=f"give up after so long, default: {_BRIEF:g}; 0: never",
    )


def clean_before(cloud: SdkShareCloud, pace: Pace) -> None:
    """Remove the leftovers of deleted servers, with a line on standard error for each.

    :raises ShareError: the cloud refuses a request, or does not answer.
    """
    view = ask_again(pace, cloud.look)
    for line in cleaning.clean_leftovers(cloud, view, pace):
        print(printable_text(line), file=sys.stderr)


class CreateShare(HeardOutput, InertOutput, command.ShowOne):
    """Create a GPU server that serves servers of its project which have no GPU.

    It is a server of any flavor with a GPU, and of an image with an engine and
    nova-hpc-guest. If the command was interrupted, the same command goes on.

    Example: openstack hpc gpu share create left --flavor hpc.gpu1 --image gpu-share --engine pocl
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="<name>", help="name of the share and of its server")
        parser.add_argument("--flavor", required=True, metavar="<flavor>", help="name or ID")
        parser.add_argument("--image", required=True, metavar="<image>", help="name or ID")
        parser.add_argument(
            "--network",
            action="append",
            default=[],
            metavar="<network>",
            help="network in which its clients are (name or ID); may be repeated",
        )
        parser.add_argument(
            "--near",
            metavar="<cluster>",
            help="virtual cluster or server group (ID) that the server joins, so that the group's "
            "policy and hpc:fabric of its flavor place it",
        )
        parser.add_argument(
            "--slots",
            type=options.parse_size,
            default=1,
            metavar="<n>",
            help=f"clients at one time, at most {records.MOST_SLOTS}; default: 1",
        )
        parser.add_argument(
            "--memory",
            type=parse_memory,
            default=0,
            metavar="<size>",
            help="memory of the GPU for each process of a slot, as in 16G, default: no limit; it "
            "needs NVIDIA's MPS in the image",
        )
        parser.add_argument(
            "--engine",
            required=True,
            metavar="<engine>",
            help="pocl (OpenCL) or another one of the image; no test has run lupine (CUDA) yet",
        )
        parser.add_argument(
            "--encrypt", action="store_true", help="serve clients through WireGuard alone"
        )
        parser.add_argument(
            "--security-group",
            action="append",
            default=[],
            metavar="<group>",
            help="further security group of the server, as for SSH; may be repeated",
        )
        parser.add_argument("--key-name", metavar="<key>", default="", help="key pair")
        parser.add_argument(
            "--availability-zone", metavar="<zone>", default="", help="availability zone"
        )
        parser.add_argument("--user-data", type=Path, metavar="<file>", help="user data")
        parser.add_argument(
            "--force",
            action="store_true",
            help="also if the flavor names no GPU, or others may reach the server's ports",
        )
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Create a shared GPU, or finish an incomplete one; return it as (columns, values)."""
        cloud = share_cloud_of(self.app)
        wanted = parsed_args.wait or sys.stderr.isatty()
        with translate_errors(), show_text_progress(wanted) as said:
            record = _record_of_options(parsed_args)
            pace = Pace(limit=parsed_args.timeout)
            wish = _wish_of_options(cloud, parsed_args, record)
            clean_before(cloud, pace)
            share = sharing.create_share(cloud, wish, pace, said)
        return share_record_of(share)


def _record_of_options(args: argparse.Namespace) -> GpuShare:
    if not records.NAME.fullmatch(args.name):
        raise ShareError(
            f"{args.name!a} cannot name a share: take 1 to 40 letters, digits and hyphens, a "
            "letter first, no hyphen last"
        )
    if not records.ENGINE.fullmatch(args.engine):
        raise ShareError(f"--engine {args.engine!a} is no name of an engine")
    if args.slots > records.MOST_SLOTS:
        raise ShareError(f"--slots {args.slots}: a share has at most {records.MOST_SLOTS}")
    return GpuShare(args.name, args.engine, args.slots, args.memory, args.encrypt)


def _wish_of_options(
    cloud: SdkShareCloud, args: argparse.Namespace, record: GpuShare
) -> sharing.ShareWish:
    if ":" in args.availability_zone:
        raise ShareError(
            f"--availability-zone {args.availability_zone}: a host in the zone makes Nova skip its "
            "filters"
        )
    flavor = cloud.names.flavor(args.flavor)
    refusals.check_flavor(args.flavor, flavor.get("extra_specs"), args.force)
    try:
        data = args.user_data.read_bytes() if args.user_data else b""
    except OSError as error:
        raise ShareError(f"--user-data {args.user_data}: {error.strerror}") from error
    near = args.near or ""
    if near and not is_uuid(near):
        near = cloud.names.find(near).id
    return sharing.ShareWish(
        record,
        str(flavor["id"]),
        cloud.names.image(args.image),
        tuple(cloud.names.network(name) for name in args.network),
        near,
        args.key_name,
        args.availability_zone,
        tuple(cloud.named_group(name) for name in args.security_group),
        data,
        args.force,
    )


class DeleteShare(HeardOutput, command.Command):
    """Delete shares: their slots, servers and security groups.

    Example: openstack hpc gpu share delete left
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("shares", nargs="+", metavar="<share>", help="name or ID")
        parser.add_argument(
            "--force", action="store_true", help="also with clients, whose jobs then end"
        )
        add_patience(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the named GPU shares one after the other; an error does not stop the next."""
        cloud, pace = share_cloud_of(self.app), Pace(limit=parsed_args.timeout)
        wanted = parsed_args.wait or sys.stderr.isatty()
        wrong = []
        with translate_errors():
            clean_before(cloud, pace)
        with show_text_progress(wanted) as said:
            for name in parsed_args.shares:
                try:
                    sharing.delete_share(cloud, name, parsed_args.force, pace, said)
                except (ClusterError, ClusterCloudError) as error:
                    wrong.append(printable_lines(str(error)))
        if wrong:
            raise exceptions.CommandError("\n".join(wrong))


class ListShare(HeardOutput, InertOutput, command.Lister):
    """List the shares of the project, and what is left of those that are gone.

    Example: openstack hpc gpu share list --long
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--long", action="store_true", help="also why, and what helps")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the table of the project's shared GPUs: (column titles, a row for each)."""
        cloud = share_cloud_of(self.app)
        with translate_errors():
            shares = ask_again(Pace(), cloud.look).shares
        columns = ["Name", "ID", "State", "Engine", "Slots", "Clients", "Wrong"]
        if parsed_args.long:
            columns += ["Reason", "Next"]
        return columns, [_format_share_row(share, parsed_args.long) for share in shares]


def _format_share_row(share: SharedGpu, long: bool) -> list[Any]:
    wrong = [slot for slot in share.slots if slot.problem]
    row: list[Any] = [
        share.name,
        share.id,
        share.state.value,
        share.record.engine if share.record else "",
        f"{share.taken}/{share.record.slots if share.record else '?'}",
        format_columns.ListColumn([_name_of_client(slot) for slot in share.slots]),
        len(wrong),
    ]
    if long:
        row += [format_reasons(share), format_next(share)]
    return row


def _name_of_client(slot: ShareSlot) -> str:
    return slot.client.name if slot.client is not None else slot.client_id


def format_reasons(share: SharedGpu) -> str:
    """Return the problems of a share and of its slots, joined by "; "; "" if there are none."""
    texts = [share.reason] if share.reason else []
    texts += [f"{_name_of_client(slot)}: {slot.problem}" for slot in share.slots if slot.problem]
    return "; ".join(texts)


def format_next(share: SharedGpu) -> str:
    """Return the command that mends the share's problem, as the user types it; "" if none."""
    if share.state is ShareState.GONE:
        return "any command of openstack hpc gpu that changes something takes it back"
    if share.state is ShareState.UNFINISHED:
        again = format_gpu_command("share", "create", share.name)
        return f"{again} with its options, or {format_gpu_command('share', 'delete', share.id)}"
    if share.state is ShareState.UNKNOWN:
        return format_gpu_command("share", "delete", "--force", share.id)
    for slot in share.slots:
        if slot.has_old_key:
            return format_gpu_command("attach", share.name, _name_of_client(slot), "--encrypt")
        if slot.problem:
            return format_gpu_command("detach", share.id, slot.client_id)
    return ""


class ShowShare(HeardOutput, InertOutput, command.ShowOne):
    """Show who uses a share, since when, and what is wrong.

    Example: openstack hpc gpu share show left
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("share", metavar="<share>", help="name or ID")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return the facts about one shared GPU as (columns, values), with its keys compared."""
        cloud, pace = share_cloud_of(self.app), Pace()
        with translate_errors():
            share = refusals.find_share(ask_again(pace, cloud.look).shares, parsed_args.share)
            return share_record_of(keys.compare_keys(cloud, share, pace))


def share_record_of(share: SharedGpu) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the facts about one shared GPU as (names of the columns, their values)."""
    record = share.record
    values: dict[str, Any] = {
        "name": share.name,
        "id": share.id,
        "state": share.state.value,
        "reason": format_reasons(share),
        "next": format_next(share),
        "engine": record.engine if record else "",
        "slots": record.slots if record else 0,
        "memory_mib": record.memory if record else 0,
        "encrypted": bool(record and record.encrypted),
        "addresses": format_columns.ListColumn(
            sorted(address for port in share.ports for address in port.addresses.values())
        ),
        "clients": format_columns.ListDictColumn(list(map(_describe_slot, share.slots))),
    }
    return tuple(values), tuple(values.values())


def _describe_slot(slot: ShareSlot) -> dict[str, Any]:
    record = slot.slot
    return {
        "name": _name_of_client(slot),
        "id": slot.client_id,
        "address": record.address if record else "",
        "port": record.port if record else 0,
        "since": sharing.format_since(record.since) if record else "",
        "memory_mib": record.memory if record else 0,
        "encrypted": bool(record and record.key),
        "may_connect": slot.may_connect,
        "wrong": slot.problem,
    }
