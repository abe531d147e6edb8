# SPDX-License-Identifier: Apache-2.0
"""The shape of ``--help``: a command's own options, an example, and the formats at the end."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Collection
from typing import Final, NoReturn

#: Options of cliff that the usage names; the others are at the end of the help.
_SHOWN: Final = ("formatter", "columns")

#: Command -> an example of its use.
EXAMPLES: Final = {
    "accept": "nova-hpc accept --beside instance-00000007 --rounds rounds.json",
    "capacity": "nova-hpc capacity --flavor hpc.gpu4 --members 16",
    "configure": "nova-hpc configure --write /etc/nova/nova.conf.d --dry-run",
    "device accept": "nova-hpc device accept 0000:19:00.0 --reason 'new firmware'",
    "device check": "nova-hpc device check 0000:19:00.0",
    "device list": "nova-hpc device list",
    "device maintenance": "nova-hpc device maintenance --start --for 2h --reason firmware",
    "device quarantine": "nova-hpc device quarantine 0000:19:00.0 --reason 'fan is dead'",
    "device release": "nova-hpc device release 0000:19:00.0",
    "device show": "nova-hpc device show 0000:19:00.0",
    "doctor": "nova-hpc doctor --part node",
    "drain": "nova-hpc drain node7",
    "explain": "nova-hpc explain --flavor hpc.gpu4",
    "fabric check": "nova-hpc fabric check",
    "fabric diff": "nova-hpc fabric diff topology.conf",
    "fabric export": "nova-hpc fabric export topology.conf --format slurm-tree",
    "fabric groups": "nova-hpc fabric groups",
    "fabric ports": "nova-hpc fabric ports",
    "fabric reap": "nova-hpc fabric reap",
    "fabric show": "nova-hpc fabric show topology.conf",
    "fabric sync": "nova-hpc fabric sync topology.conf",
    "flavor create": "nova-hpc flavor create --family hpc --snapshot cloud.json",
    "help check": "nova-hpc help check iommu-off",
    "install-shim": "nova-hpc install-shim --check",
    "inventory": "nova-hpc inventory --matrix",
    "metrics cloud": "nova-hpc metrics cloud --flavor hpc.gpu8 --members 4 --textfile cloud.prom",
    "metrics fabric": "nova-hpc metrics fabric --listen 127.0.0.1:9480",
    "metrics node": "nova-hpc metrics node --listen 127.0.0.1:9480",
    "prepare": "nova-hpc prepare",
    "requirements": "nova-hpc requirements --os-cloud admin --try --flavor hpc.gpu1 --image ubuntu",
    "requirements step": "nova-hpc requirements step query_sanitization",
    "requirements suite": (
        "nova-hpc requirements suite ai-cloud-validation suite.d --flavor hpc.gpu1 --image ubuntu"
    ),
    "simulate": "nova-hpc simulate --snapshot cloud.json",
    "simulate snapshot": "nova-hpc simulate snapshot cloud.json",
    "snapshot show": "nova-hpc snapshot show --format html",
    "status upgrade check": "nova-hpc status upgrade check",
    "when": "nova-hpc when --flavor hpc.gpu8 --members 4 --level leaf",
}


def shape_parser(parser: argparse.ArgumentParser, program: str) -> None:
    """Replace the help format and the error messages of *parser* with nova-hpc's own.

    :param parser: has only cliff's options so far.
    :param program: the words that call the command.
    """
    common = frozenset(id(action) for action in parser._actions if action.dest != "help")
    name = program.removeprefix("nova-hpc ")
    # Set on the instance: cliff makes the parser, and its class is private.
    vars(parser)["format_help"] = functools.partial(
        _format_help, parser, common, EXAMPLES.get(name, "")
    )
    shape_errors(parser)


def shape_errors(parser: argparse.ArgumentParser) -> None:
    """Make a mistake in the options one line that refers to the help."""
    vars(parser)["error"] = functools.partial(_refuse_words, parser)


def _refuse_words(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.exit(2, f"{parser.prog}: {message}; see {parser.prog} --help\n")


def _format_help(parser: argparse.ArgumentParser, common: Collection[int], example: str) -> str:
    formatter = parser._get_formatter()
    own = [action for action in parser._actions if id(action) not in common]
    formats = [
        action for action in parser._actions if id(action) in common and action.dest in _SHOWN
    ]
    formatter.add_usage(parser.usage, [*own, *formats], parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    if example:
        formatter.start_section("example")
        formatter._add_item(lambda: f"  {example}\n", [])
        formatter.end_section()
    groups = sorted(
        parser._action_groups,
        key=lambda group: any(id(action) in common for action in group._group_actions),
    )
    for group in groups:
        formatter.start_section(group.title)
        formatter.add_text(group.description)
        formatter.add_arguments(group._group_actions)
        formatter.end_section()
    formatter.add_text(parser.epilog)
    return formatter.format_help()
