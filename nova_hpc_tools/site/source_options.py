# SPDX-License-Identifier: Apache-2.0
"""The options for the sources of a node and of its services' settings.

Imports nothing but argparse, for a quick ``--help``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

#: The words of :func:`add_config_options` begin with one of these.
CONFIG_FILE: Final = "--config-file="
CONFIG_DIR: Final = "--config-dir="


def add_node_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the node and its declaration to a command that only reads."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="directory that holds sys and proc of the node (default: /)",
    )
    parser.add_argument(
        "--declaration",
        type=Path,
        metavar="FILE",
        help="the node's declaration (default: /etc/nova-hpc/node.yaml, of this machine)",
    )


def add_config_options(
    parser: argparse._ActionsContainer, whose: str = "this node's nova-compute"
) -> None:
    """Add ``--config-file`` and ``--config-dir`` to *parser*.

    ``config`` becomes the words in the order of the command line: as for a service, a later one
    wins.
    """
    for option, metavar, what in (
        (CONFIG_FILE, "FILE", f"configuration of {whose}"),
        (CONFIG_DIR, "DIR", "directory whose .conf files are read, too"),
    ):
        parser.add_argument(
            option.rstrip("="),
            # argparse calls a type with the text that was given.
            type=(option + "{}").format,
            action="append",
            dest="config",
            default=[],
            metavar=metavar,
            help=f"{what} (default: where the service itself looks); may be repeated",
        )
