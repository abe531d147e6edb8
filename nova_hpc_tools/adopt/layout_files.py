# SPDX-License-Identifier: Apache-2.0
"""The files of ``nova-hpc configure --layout``: their paths, and their present content."""

from __future__ import annotations

import argparse
import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from nova_hpc.topology.model import Node
from nova_hpc_common.outside.host_names import explain_wrong_host, quote_bad_name
from nova_hpc_tools.adopt import declaration_file, option_changes
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.site import include_files, layout_names, layouts, settings
from nova_hpc_tools.site.layouts import LayoutFile, Sections

#: Letters of a message that quotes another program's.
_QUOTE: Final = 500
#: Layout -> patterns of the files that the tool reads for a host, in its order (kolla-ansible:
#: roles/nova-cell/tasks/config.yml; openstack-ansible: variables of Ansible).
_SOURCES: Final[Mapping[str, Sequence[str]]] = {
    layout_names.KOLLA: ("global.conf", "nova.conf", "nova/*.conf", "nova/{host}/*.conf"),
    layout_names.OSA: (
        "group_vars/**/*.y*ml",
        "host_vars/{host}/*.y*ml",
        "host_vars/{host}.y*ml",
        "user_*.y*ml",
    ),
}


def declaration_name_of(args: argparse.Namespace, node: Node) -> str:
    """Return the path of the node's declaration below the directory of ``--write``."""
    if args.layout == layout_names.PLAIN:
        return declaration_file.HERE.name
    return f"nova-hpc/{_checked_hostname_of(node)}.yaml"


def read_merged_parts(args: argparse.Namespace, node: Node) -> dict[str, str] | None:
    """Return part -> text that ``configure`` wrote before; None in the layout with include files.

    :raises include_files.IncludeError: a file cannot be read.
    """
    if args.layout == layout_names.PLAIN:
        return None
    texts_by_part: dict[str, str] = {}
    for override in _wanted_overrides(args, node, settings.PARTS):
        text = (
            None
            if args.write is None
            else include_files.read_plain_file(args.write / override.path)
        )
        if text is not None and include_files.has_project_mark(text):
            # The parts of one file are never needed separately.
            texts_by_part.setdefault(override.parts[-1], layouts.own_lines_of(text, override))
    return texts_by_part


def render_layout_files(
    args: argparse.Namespace,
    node: Node,
    parts: Sequence[str],
    result: settings.NovaSettings,
    others: Sections,
) -> dict[str, str]:
    """Return path below the directory of ``--write`` -> text of the file, in the chosen layout."""
    sections_by_part = {
        part: option_changes.parse_config_sections(result.files[part]) for part in settings.PARTS
    }
    return {
        override.path: layouts.render_override(override, sections_by_part, others)
        for override in _wanted_overrides(args, node, parts)
    }


def names_of_layout_files(args: argparse.Namespace, node: Node, parts: Sequence[str]) -> list[str]:
    """Return paths of the files of these parts, below the directory of ``--write``."""
    return [override.path for override in _wanted_overrides(args, node, parts)]


def find_source_files(args: argparse.Namespace, node: Node) -> tuple[Path, ...]:
    """Find the files of others from which the deployment tool makes Nova's configuration.

    :returns: only files below the directory of ``--write``, which the tool reads; none for the
        plain layout, whose services read the files themselves.
    """
    if args.layout == layout_names.PLAIN or args.write is None:
        return ()
    patterns = _SOURCES[args.layout]
    host = glob.escape(node.hostname or "")
    return tuple(
        path
        for pattern in patterns
        for path in sorted(args.write.glob(pattern.format(host=host)))
        if not include_files.has_project_mark(include_files.read_text_or_empty(path))
    )


def find_winning_variables(args: argparse.Namespace, node: Node, parts: Sequence[str]) -> list[str]:
    """Return refusals for variables that OpenStack-Ansible reads in place of the ones in our files.

    ``openstack-ansible`` gives ``user_*.yml`` to Ansible by ``-e``, which wins over ``group_vars``
    and ``host_vars``.
    """
    if args.layout != layout_names.OSA or args.write is None:
        return []
    refusals = []
    ours = {file.variable: file.path for file in _wanted_overrides(args, node, parts)}
    for path in sorted(args.write.glob("user_*.y*ml")):
        try:
            found = _list_top_keys(include_files.read_text_or_empty(path))
        except yaml.YAMLError as error:
            refusals.append(f"{path} is not YAML: {error}"[:_QUOTE])
            continue
        refusals += [
            f"{path}:{number}: {key} wins over {args.write / ours[key]} and hides all of it: "
            "move it into a file below group_vars, and run this command again"
            for key, number in found
            if key in ours
        ]
    return refusals


def _list_top_keys(text: str) -> list[tuple[str, int]]:
    """List keys of a YAML mapping, with their lines; none of a file that ansible-vault encrypted.

    The text is not constructed, so tags of Ansible such as ``!vault`` are allowed.
    """
    top = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = top.value if isinstance(top, yaml.MappingNode) else []
    return [(str(key.value), key.start_mark.line + 1) for key, _ in pairs]


def _wanted_overrides(
    args: argparse.Namespace, node: Node, parts: Sequence[str]
) -> list[LayoutFile]:
    overrides = layouts.overrides_of_layout(args.layout, _checked_hostname_of(node))
    return [override for override in overrides if override.parts[-1] in parts]


def _checked_hostname_of(node: Node) -> str:
    if node.hostname is None:
        raise CommandError(
            f"{node.source} does not contain the node's host name, by which --layout names its "
            "files: read a capture of sys and proc (nova-hpc inventory --save FILE --keep-names)"
        )
    # Captures and lstopo's XML come from others, and the name becomes the name of a folder.
    wrong = explain_wrong_host(node.hostname.replace("_", "-"))
    if wrong is not None:
        raise CommandError(
            f"{node.source} calls the node {quote_bad_name(node.hostname)}, which cannot "
            f"name files: "
            f"{wrong}"
        )
    return node.hostname
