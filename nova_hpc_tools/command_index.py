# SPDX-License-Identifier: Apache-2.0
"""The commands by their entry points: found without importing any of them.

cliff imports every command to find one, which took ``nova-hpc inventory --help`` most of a
second. Here a command's module is imported only to run it, or to list its options.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cliff.command import Command
from cliff.commandmanager import CommandManager
from cliff.complete import CompleteCommand

from nova_hpc_guest.completion import format_completion, list_option_words


class CommandIndex(CommandManager):
    """The commands of nova-hpc with their entry points; modules are imported only when used."""

    def load_commands(self, namespace: str) -> None:
        """List the commands of a group of entry points, and import none."""
        self.group_list.append(namespace)
        for entry_point in importlib.metadata.entry_points(group=namespace):
            self.commands[entry_point.name.replace("_", " ")] = entry_point

    def list_names_below(self, words: Sequence[str]) -> list[str]:
        """List the commands that begin with these words and have more, sorted."""
        start = f"{' '.join(words)} "
        return sorted(name for name in self.commands if name.startswith(start))

    def format_commands(self, names: Sequence[str]) -> Iterator[str]:
        """Yield a line for each command: its name and its summary."""
        wide = max(map(len, names), default=0)
        for name in names:
            yield f"  {name:<{wide}}  {summarise_command(self.commands[name])}".rstrip()


def summarise_command(entry_point: Any) -> str:
    """Return the first line of a command's docstring, without its period.

    It is read from the source; the module is imported only if that fails.
    """
    text = _read_first_line(getattr(entry_point, "value", ""))
    if text is None:
        kind: type[Command] = entry_point.load()
        text = (kind.__doc__ or "").strip().partition("\n")[0]
    return text.rstrip(".")


def _read_first_line(place: str) -> str | None:
    """Read the first line of a class's docstring; None if its source is missing or has none."""
    module, _, name = place.partition(":")
    try:
        spec = importlib.util.find_spec(module)
        source = Path(str(spec.origin if spec else "")).read_text(encoding="utf-8")
    except (ImportError, OSError, ValueError):
        return None
    match = re.search(
        rf'^class {re.escape(name)}\b[^\n]*:\n    """([^\n]+?)(?:""")?$', source, re.MULTILINE
    )
    return match[1].strip() if match else None


class PrintCompletion(CompleteCommand):
    """Print the script with which bash and zsh complete commands and options.

    Use it so: source <(nova-hpc complete)
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return a parser without cliff's options: one script serves both shells."""
        parser: argparse.ArgumentParser = Command.get_parser(self, prog_name)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write the script."""
        offers = {
            name: list_option_words(self.get_actions(name.split()))
            for name, _ in self.app.command_manager
        }
        self.app.stdout.write(format_completion(self.app.NAME, offers))
        return 0
