# SPDX-License-Identifier: Apache-2.0
"""The base of every ``nova-hpc`` command: its output formats and its one error handler.

A command answers with columns and rows, and ``-f json|yaml|table|csv|value``
writes them as the ``openstack`` command does. Without ``-f`` most commands write for people:
a tree, a difference, a line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs
import stevedore
import yaml
from cliff.display import DisplayCommandBase
from cliff.formatters import base as formatters
from cliff.formatters import commaseparated
from cliff.lister import Lister
from cliff.show import ShowOne

from nova_hpc_common.output.printing import InertOutput
from nova_hpc_common.output.standard_streams import OutletError, Outlets, open_outlets
from nova_hpc_common.outside.text import printable_lines
from nova_hpc_tools import command_help

#: Exit status for bad input and failed commands; argparse uses it for bad options.
BAD_INPUT: Final = 2

#: Formats without rows: one page or one drawing, for people.
PICTURES: Final = ("html", "svg")

#: The highest number that an option takes.
MOST: Final = 1_000_000


class CommandError(Exception):
    """The command failed; each line of the text is a message for the user.

    :cvar status: the exit status.
    """

    status: ClassVar[int] = BAD_INPUT


@attrs.frozen
class CommandAnswer:
    """The result of a command: rows, exit status, and other forms of output."""

    columns: Sequence[str]
    #: The rows of a list; the values of a single record.
    rows: Iterable[Any]
    #: The exit status.
    status: int = 0
    #: Writes the result for people; None if the command has written it already.
    show: Callable[[], None] | None = None
    #: Returns the result as JSON; None if the rows contain all of it.
    document: Callable[[], str] | None = None
    #: Text in place of an empty table.
    nothing: str = ""
    #: Format of PICTURES -> function that draws it.
    pictures: Mapping[str, Callable[[], str]] = attrs.field(factory=dict)


class _BaseCommand(InertOutput, DisplayCommandBase):
    """Base class of all commands: output formats, errors and exit status."""

    #: Exceptions that end the command with their text on standard error and status 2.
    errors: ClassVar[tuple[type[Exception], ...]] = ()
    #: Whether the command writes for people if -f is not given; otherwise it writes a table.
    for_people: ClassVar[bool] = True
    #: The options with which this command changes something; None if it always does. The command
    #: completes a change even if the reader of its output is gone.
    acts_with: ClassVar[tuple[str, ...] | None] = None
    #: Whether the command also has the formats of PICTURES.
    draws: ClassVar[bool] = False

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager:
        plugins = super()._load_formatter_plugins()
        drawn = [
            stevedore.extension.Extension(name, None, _PictureFormatter, _PictureFormatter())
            for name in PICTURES * self.draws
        ]
        return stevedore.ExtensionManager.make_test_instance([*plugins, *drawn])

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        self._name = prog_name
        command_help.shape_parser(parser, prog_name)
        if self.for_people:
            parser.set_defaults(formatter=None)
            action = parser._option_string_actions["-f"]
            action.help = "the output format (default: text for people)"
        return parser

    @classmethod
    def list_errors(cls) -> tuple[type[Exception], ...]:
        """Return the exceptions that end the command with one line: :attr:`errors`.

        A command may override the method to import them late.
        """
        return cls.errors

    def say(self, text: str = "", end: str = "\n") -> None:
        """Write a line for people, unless the output has a format of programs."""
        if self._people:
            print(text, end=end)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; return its status, or 2 after an error with its reason."""
        if parsed_args.columns and parsed_args.formatter is None:
            parsed_args.formatter = "table"
        self._people = parsed_args.formatter is None
        with open_outlets(self.app) as streams:
            streams.out.stops = not self._acts(parsed_args)
            return streams.end(self._run(parsed_args, streams), self._name)

    def _acts(self, args: argparse.Namespace) -> bool:
        if self.acts_with is None:
            return True
        return any(getattr(args, option) not in (None, False) for option in self.acts_with)

    def _run(self, parsed_args: argparse.Namespace, streams: Outlets) -> int:
        status = 0
        wrong: tuple[type[Exception], ...] = (CommandError, *self.list_errors())
        try:
            answer: CommandAnswer = self.take_action(parsed_args)
            status = answer.status
            self._emit(parsed_args, answer)
            sys.stdout.flush()
        except OutletError:
            return status
        except SystemExit:
            if streams.out.lost is None:
                raise  # otherwise it is rich's exit after its output was lost
        except wrong as error:
            if getattr(self.app, "options", None) and self.app.options.debug:
                raise
            for line in str(error).splitlines() or [""]:
                print(f"{self._name}: {line}", file=sys.stderr)
            return error.status if isinstance(error, CommandError) else BAD_INPUT
        return status

    def _emit(self, args: argparse.Namespace, answer: CommandAnswer) -> None:
        if self._people:
            if answer.show is not None:
                answer.show()
        elif args.formatter in PICTURES:
            draw = answer.pictures.get(args.formatter)
            if draw is None or args.columns:
                raise CommandError(f"--format {args.formatter} draws no lists and no columns")
            sys.stdout.write(draw())
        elif (
            answer.document is not None and args.formatter in ("json", "yaml") and not args.columns
        ):
            text = answer.document()
            if args.formatter == "yaml":
                text = _dump_yaml_safely(json.loads(text))
            sys.stdout.write(text)
        else:
            self._emit_rows(args, answer)

    def _emit_rows(self, args: argparse.Namespace, answer: CommandAnswer) -> None:
        rows = list(answer.rows)
        if answer.nothing and args.formatter == "table" and not rows:
            print(answer.nothing)
            return
        self.formatter = self._formatter_plugins[args.formatter].obj
        try:
            self.produce_output(args, answer.columns, rows)
        except ValueError as error:
            raise CommandError(str(error)) from error  # an unknown --column


def _dump_yaml_safely(document: Any) -> str:
    """Dump the document in YAML; with escapes for all non-ASCII letters if a terminal obeys one."""
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    if printable_lines(text) != text:
        text = yaml.safe_dump(document, sort_keys=False)
    return text


class ListCommand(_BaseCommand, Lister):
    """Base class of commands whose answer is a list."""


class RecordCommand(_BaseCommand, ShowOne):
    """Base class of commands whose answer is one record."""

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager:
        plugins = super()._load_formatter_plugins()
        csv = stevedore.extension.Extension("csv", None, _OneLine, _OneLine())
        return stevedore.ExtensionManager.make_test_instance([*plugins, csv])


class _PictureFormatter(formatters.ListFormatter, formatters.SingleFormatter):
    """A format of cliff for pictures; it prints nothing, because the command itself draws."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: pictures have no options."""

    def emit_list(self, *words: Any) -> None:
        """Write nothing: the command itself draws the picture."""

    emit_one = emit_list


class _OneLine(commaseparated.CSVLister):
    """CSV for a single record, as a list of one; cliff has CSV only for lists."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: Any,
        parsed_args: argparse.Namespace,
    ) -> None:
        self.emit_list(column_names, [data], stdout, parsed_args)


@attrs.frozen
class Count:
    """argparse type for a whole number of at least *least*."""

    least: int

    def __call__(self, text: str) -> int:
        """Read the number."""
        try:
            value = int(text)
        except ValueError:
            value = self.least - 1
        if not self.least <= value <= MOST:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {self.least} to {MOST}"
            )
        return value
