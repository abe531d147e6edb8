# SPDX-License-Identifier: Apache-2.0
"""The files of ``nova-hpc configure --layout``: where they are, and what they say now."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from nova_hpc.outside.host_names import quoted, wrong_host
from nova_hpc.topology.model import Node
from nova_hpc_tools.adopt import declaration_file as node_file
from nova_hpc_tools.adopt import include_files, layouts, settings
from nova_hpc_tools.adopt import option_changes as effective
from nova_hpc_tools.adopt.layouts import Override, Sections
from nova_hpc_tools.base import CommandError


def declaration(args: argparse.Namespace, node: Node) -> str:
    """Name of the node's declaration below the directory of ``--write``."""
    if args.layout == layouts.PLAIN:
        return node_file.HERE.name
    return f"nova-hpc/{_hostname(node)}.yaml"


def merged(args: argparse.Namespace, node: Node) -> dict[str, str] | None:
    """Part -> what this command has written of it before; None: it has files of its own.

    :raises include_files.IncludeError: a file cannot be read.
    """
    if args.layout == layouts.PLAIN:
        return None
    found: dict[str, str] = {}
    for override in _overrides(args, node, settings.PARTS):
        text = None if args.write is None else include_files.read(args.write / override.path)
        if text is not None and include_files.is_owned(text):
            # The parts of one file are never needed by themselves.
            found.setdefault(override.parts[-1], layouts.ours(text, override))
    return found


def files(
    args: argparse.Namespace,
    node: Node,
    parts: Sequence[str],
    result: settings.Settings,
    others: Sections,
) -> dict[str, str]:
    """Path below the directory of ``--write`` -> text."""
    said = {part: effective.sections(result.files[part]) for part in settings.PARTS}
    return {each.path: layouts.render(each, said, others) for each in _overrides(args, node, parts)}


def _overrides(args: argparse.Namespace, node: Node, parts: Sequence[str]) -> list[Override]:
    found = layouts.overrides(args.layout, _hostname(node))
    return [each for each in found if each.parts[-1] in parts]


def _hostname(node: Node) -> str:
    if node.hostname is None:
        raise CommandError(
            f"{node.source} does not say the node's host name, by which --layout names its files: "
            "read a capture of sys and proc (nova-hpc inventory --save FILE --keep-names)"
        )
    # Captures and lstopo's XML are files of others, and the name becomes one of a folder.
    wrong = wrong_host(node.hostname.replace("_", "-"))
    if wrong is not None:
        raise CommandError(
            f"{node.source} calls the node {quoted(node.hostname)}, which cannot name files: "
            f"{wrong}"
        )
    return node.hostname
