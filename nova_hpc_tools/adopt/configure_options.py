# SPDX-License-Identifier: Apache-2.0
"""The options of ``nova-hpc configure``: its sources and its output.

The decisions for a node are not options but keys of its declaration
(:mod:`nova_hpc_tools.wire.node_declaration`).
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nova_hpc.topology import roles
from nova_hpc.topology.model import Node
from nova_hpc_tools.adopt import node_wishes
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.site import layout_names, service_settings, settings, source_options
from nova_hpc_tools.wire.node_declaration import NodeDeclaration


def add_configure_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``configure`` to *parser*."""
    _add_source_options(parser.add_argument_group("input files"))
    _add_output_options(parser.add_argument_group("output files"))


def parse_as_configure(args: argparse.Namespace, parts: Iterable[str]) -> argparse.Namespace:
    """Parse the options that ``configure`` would have on the same node."""
    parser = argparse.ArgumentParser()
    add_configure_options(parser)
    words = ["--root", str(args.root)]
    if args.declaration is not None:
        words += ["--declaration", str(args.declaration)]
    for part in parts:
        words += ["--part", part]
    parsed_args = parser.parse_args(words)
    parsed_args.config = args.config
    return parsed_args


def _add_source_options(source: Any) -> None:
    inventory_group = source.add_mutually_exclusive_group()
    inventory_group.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="directory that holds sys and proc of the node (default: /)",
    )
    inventory_group.add_argument(
        "--xml",
        type=Path,
        metavar="FILE",
        help="an lstopo XML instead. It does not distinguish physical and virtual functions",
    )
    source.add_argument(
        "--also",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="capture (a directory like --root, or an lstopo XML) of a node of another kind, "
        "whose devices the aliases have to name, too; may be repeated",
    )
    source.add_argument(
        "--declaration",
        type=Path,
        metavar="FILE",
        help="the node's declaration, a YAML file with all decisions for the node and its cloud "
        "(default: /etc/nova-hpc/node.yaml; of a node that is not this machine, node.yaml "
        "in the directory of --write)",
    )
    source.add_argument(
        "--ask",
        action="store_true",
        help=argparse.SUPPRESS,  # Removed; check_removed_options() names the replacement.
    )
    source.add_argument(
        "--add-device-role",
        action="append",
        default=[],
        metavar="JSON",
        help="write the roles that count now into the declaration, and this one after them, as "
        "a value of [hpc]device_role; may be repeated",
    )
    source_options.add_config_options(source, "Nova's services: its settings are kept and added to")
    source.add_argument(
        "--enabled-filters",
        metavar="LIST",
        help="the deployment's filters, separated by commas, to which those of this project "
        "are added in their place (default: the configured ones, or Nova's)",
    )


def _add_output_options(output: Any) -> None:
    output.add_argument(
        "--part",
        choices=settings.PARTS,
        action="append",
        help="only this file; may be repeated (default: all of them, or none of a node without "
        "devices)",
    )
    output.add_argument(
        "--layout",
        choices=layout_names.NAMES,
        default=layout_names.PLAIN,
        help="kolla: files below the custom configuration of Kolla-Ansible (/etc/kolla/config); "
        "osa: variables of OpenStack-Ansible (/etc/openstack_deploy). Give the merged "
        "nova.conf of the service with --config-file: all other settings in it are kept "
        "(default: plain, include files)",
    )
    output.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="show the differences to the files in DIR and to the services' settings, then write "
        "them there",
    )
    output.add_argument(
        "--dry-run", action="store_true", help="with --write: show the differences only"
    )
    output.add_argument(
        "--undo",
        action="store_true",
        help="with --write: remove the files that this command has written there. The "
        "declaration and files of others stay",
    )
    output.add_argument(
        "--keep",
        choices=settings.SINGLE,
        action="append",
        default=[],
        help="leave this option as it is configured; may be repeated",
    )
    output.add_argument(
        "--replace",
        action="append",
        default=[],
        metavar="NAME",
        help="remove the setting of this name: an option, or one filter, alias or device of it. "
        "Without this option, nothing is written if a setting would be lost; may be repeated",
    )


def check_removed_options(args: argparse.Namespace) -> None:
    """Refuse options of the previous release.

    :raises CommandError: such an option is present; the text names the replacement.
    """
    if args.ask:
        raise CommandError(
            "--ask was removed: run configure --write, edit the declaration that it writes, and "
            "run it again"
        )
    entries = [word for word in args.replace if word.lstrip().startswith(("{", "["))]
    if entries:
        raise CommandError(
            f"--replace {shlex.quote(entries[0])} was removed, because this command edits no file "
            "of others: run it without this option; it names the line of the entry and the cure"
        )


# --- values of the options -------------------------------------------------------


def add_roles_to_current(
    args: argparse.Namespace,
    before: NodeDeclaration,
    node: Node,
    told: service_settings.ServiceSettings,
) -> tuple[Mapping[str, str], ...]:
    """Return the roles in effect, followed by those of --add-device-role.

    :param before: the present content of the file.
    :raises CommandError: another file sets the roles.
    :raises roles.RoleError: a bad role.
    """
    roles.parse_roles(args.add_device_role)
    if told.other_roles:
        raise CommandError(
            "--add-device-role: [hpc]device_role is set in a configuration file of yours, of which "
            "Nova takes all: add the line there"
        )
    current_roles = node_wishes.wishes_for_node(before, node.hostname, "the declaration").roles
    if current_roles is None:
        # Devices of this node keep the names that its entries use.
        kept = service_settings.role_table_of(
            told.device_role, node, told.configured.device_spec
        ).kept
        entries = [json.loads(text) for text in told.device_role]
        current_roles = tuple(
            {**entry, "role": kept.get(entry["role"], entry["role"])} for entry in entries
        )
    more = [json.loads(text) for text in args.add_device_role]
    return (*current_roles, *(entry for entry in more if entry not in current_roles))


def split_filter_names(text: str | None) -> Sequence[str] | None:
    """Split ``--enabled-filters`` into names; None without the option.

    :raises CommandError: an item is not a name.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not all(name.isidentifier() for name in names):
        raise CommandError("--enabled-filters: write names of filters, separated by commas")
    return names
