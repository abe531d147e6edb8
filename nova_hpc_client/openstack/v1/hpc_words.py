# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc`` with no command or an unknown one, and the completion of ``openstack``."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, Final

from cliff.complete import CompleteCommand
from osc_lib.command import command

from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import HeardOutput
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.completion import format_completion, list_option_words

_FIRST: Final = "hpc "
_USAGE: Final = 2


class RefuseWords(InertOutput, HeardOutput, command.Command):
    """Name the commands of openstack hpc; refuse words that are none.

    Example: openstack hpc cluster list
    """

    auth_required = False
    #: cliff's own list of commands leaves it out.
    deprecated = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the words, and list the commands."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("words", nargs=argparse.REMAINDER, help="a command, and its options")
        parser.epilog = f"Commands: {', '.join(self._list_names())}"
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Refuse the words in one line, with the commands that are near."""
        names = self._list_names()
        typed = " ".join(word for word in parsed_args.words if not word.startswith("-"))
        near = difflib.get_close_matches(typed, names, n=3)
        below = [name for name in names if name.startswith(f"{typed} ")]
        hint = f"; near it: {', '.join(near or below)}" if near or below else ""
        text = f"there is no command {typed!a}{hint}" if typed else "a command is missing"
        print(printable_text(f"openstack hpc: {text}; see openstack help hpc"), file=sys.stderr)
        return _USAGE

    def _list_names(self) -> list[str]:
        names = (name for name, _ in getattr(self.app, "command_manager", None) or ())
        return sorted(name.removeprefix(_FIRST) for name in names if name.startswith(_FIRST))


class PrintClientCompletion(HeardOutput, CompleteCommand):
    """Print the script with which bash and zsh complete all commands of openstack.

    Both read it with source <(openstack hpc complete), and need no package for it.

    Example: openstack hpc complete
    """

    auth_required = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return a parser without cliff's options: one script serves both shells."""
        parser: argparse.ArgumentParser = command.Command.get_parser(self, prog_name)
        return parser

    def take_action(self, parsed_args: Any) -> None:
        """Write the script."""
        offers = {
            name: list_option_words(self.get_actions(name.split()))
            for name, _ in self.app.command_manager
        }
        self.app.stdout.write(format_completion(self.app.NAME, offers))
