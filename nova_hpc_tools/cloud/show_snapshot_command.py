# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc snapshot show``: a cloud, a rack or a node of it, at one moment."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from nova_hpc_common.level import Level
from nova_hpc_common.output import hostlist
from nova_hpc_tools.base import PICTURES, CommandAnswer, ListCommand
from nova_hpc_tools.cloud.capacity_command import add_cloud_arguments, read_synced_map
from nova_hpc_tools.cloud.explain import find_nodes
from nova_hpc_tools.fabric import map_files
from nova_hpc_tools.fabric.problems import FabricMapError
from nova_hpc_tools.pictures import draw_cloud, page, snapshot_view
from nova_hpc_tools.pictures.model import CloudPicture, GroupNote, HostTile, LeafBox, RoleRow
from nova_hpc_tools.snapshot import Snapshot, SnapshotError, cloud_readers

#: Behind the counts: the largest set at each level.
_COLUMNS: Final = (
    *("Host", "Place", "Role", "Free", "Total"),
    *(f"Set at {level.word}" for level in Level),
)


class ShowSnapshot(ListCommand):
    """Show the devices of a cloud: free ones, owners of the others, and sets that still fit.

    For each host and role: how many devices are free, and the largest set that one
    server can still get at each level (switch, root, numa, socket, host). --format
    html and svg draw it: the cloud, a leaf (--leaf) or a node (--host). Hosts are
    below the leaves that nova-hpc fabric sync wrote into Nova, or those of --map.
    Changes nothing.
    """

    acts_with = ()
    draws = True
    errors = (SnapshotError, FabricMapError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        part = parser.add_mutually_exclusive_group()
        part.add_argument("--host", metavar="HOST", help="only this host")
        part.add_argument(
            "--leaf", metavar="NAME", help="only the hosts of this leaf, block or spine"
        )
        add_cloud_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Read the cloud or its snapshot and print or draw its hosts by fabric leaf."""
        args = parsed_args
        fabric = None if args.fabric is None else map_files.read_reported_map(args.fabric, args)
        cloud = cloud_readers.obtain_snapshot(args.snapshot, args.config)
        problems: tuple[str, ...] = ()
        if fabric is None:
            fabric, problems = read_synced_map(cloud)
        groups, unread = _read_groups(args) if args.snapshot is None else ((), ())
        shown = cloud if args.host is None else _restrict_to_hosts(cloud, args.host)
        picture = snapshot_view.view_cloud(shown, fabric, groups, args.leaf, (*problems, *unread))
        if args.leaf is not None and not picture.leaves:
            raise SnapshotError(
                f"no host is in {args.leaf}: give the name of a leaf, block or spine "
                "(nova-hpc fabric show has them)"
            )
        for problem in picture.problems:
            print(f"nova-hpc snapshot show: warning: {problem}", file=sys.stderr)
        return CommandAnswer(
            _COLUMNS,
            list(_list_rows(picture)),
            show=lambda: print("\n".join(_format_cloud_lines(picture))),
            nothing="The cloud has no host with devices.",
            pictures={
                form: functools.partial(_draw_snapshot, form, cloud, picture, args.host)
                for form in PICTURES
            },
        )


def _draw_snapshot(form: str, cloud: Snapshot, picture: CloudPicture, host: str | None) -> str:
    if host is None:
        return (page.draw_cloud_page if form == "html" else page.draw_cloud_svg)(picture)
    node = snapshot_view.view_snapshot_node(cloud, find_nodes(cloud, host)[0])
    return (page.draw_node_page if form == "html" else page.draw_node_svg)(node)


def _read_groups(args: argparse.Namespace) -> tuple[tuple[GroupNote, ...], tuple[str, ...]]:
    """Read the server groups that have a domain; return them, and why they could not be read."""
    try:
        lines = cloud_readers.read_fabric_groups(args.config)
    except SnapshotError as error:
        return (), (f"the domains of server groups could not be read: {error}",)
    return (
        tuple(
            GroupNote(line.group, line.level, line.domain, line.members, line.announced)
            for line in lines
        ),
        (),
    )


def _restrict_to_hosts(cloud: Snapshot, host: str) -> Snapshot:
    return attrs.evolve(
        cloud,
        hosts=find_nodes(cloud, host),
        servers=tuple(server for server in cloud.servers if server.host == host),
    )


def _list_rows(picture: CloudPicture) -> Iterator[tuple[object, ...]]:
    for leaf in picture.leaves:
        for host in leaf.hosts:
            for row in host.rows:
                levels = host.largest.get(row.role, {})
                sizes = (levels.get(level, "") for level in Level)
                place = " ".join(leaf.path[-1]) if leaf.path else ""
                yield (host.name, place, row.role, row.free, row.total, *sizes)


def _format_cloud_lines(picture: CloudPicture) -> Iterator[str]:
    yield from picture.facts
    for leaf in picture.leaves:
        yield ""
        yield from _format_leaf_lines(leaf)


def _format_leaf_lines(leaf: LeafBox) -> Iterator[str]:
    """Yield the lines for a leaf and its hosts; equal hosts share one line."""
    yield ", ".join(" ".join(step) for step in leaf.path) or leaf.title
    for note in leaf.groups:
        yield f"  group {note.group}: {note.members} of {note.announced} members"
    alike: dict[tuple[str, ...], list[str]] = {}
    for host in leaf.hosts:
        alike.setdefault(tuple(_format_host_words(host)), []).append(host.name)
    for words, names in alike.items():
        yield f"  {hostlist.compress_hostlist(names)}{_format_count(names)}"
        for line in words:
            yield f"    {line}"


def _format_count(names: Sequence[str]) -> str:
    return f" ({len(names)} hosts alike)" if len(names) > 1 else ""


def _format_host_words(host: HostTile) -> Iterator[str]:
    if host.out:
        yield f"out of service: {host.out}"
    for row in host.rows:
        yield _format_row(host, row)
    if not host.rows:
        yield "no device"


def _format_row(host: HostTile, row: RoleRow) -> str:
    fits = draw_cloud.format_largest_sets(host.largest, row.role)
    return f"{row.role}: {row.free} of {row.total} free" + (f"; {fits}" if fits else "")
