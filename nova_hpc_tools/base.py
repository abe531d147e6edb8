# SPDX-License-Identifier: Apache-2.0
"""The base of every ``nova-hpc`` command: its output formats and its one error handler.

A command answers with columns and rows, which ``-f json|yaml|table|csv|value``
writes as the ``openstack`` command does. Without ``-f`` most commands write for people:
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

from nova_hpc.outside.text import printable_lines
from nova_hpc_tools import command_help
from nova_hpc_tools.outlet import OutletError, Outlets, open_outlets
from nova_hpc_tools.printing import InertOutput

#: Exit status of bad input, and of what cannot be done; argparse uses it for bad options.
BAD_INPUT: Final = 2

#: Formats that are no rows: one page or one drawing, for people.
PICTURES: Final = ("html", "svg")

#: The highest number that an option takes.
MOST: Final = 1_000_000


class CommandError(Exception):
    """The command cannot be done; the text is for the user, one line each.

    :cvar status: the exit status.
    """

    status: ClassVar[int] = BAD_INPUT


@attrs.frozen
class CommandAnswer:
    """The findings or deeds of a command."""

    columns: Sequence[str]
    #: The rows of a list; the values of a single record.
    rows: Iterable[Any]
    #: The exit status.
    status: int = 0
    #: Writes it for people; None: the command has done so already.
    show: Callable[[], None] | None = None
    #: Says it in JSON where rows would not say everything.
    document: Callable[[], str] | None = None
    #: What an empty table says to people, in place of an empty line.
    nothing: str = ""
    #: Format of PICTURES -> draws it.
    pictures: Mapping[str, Callable[[], str]] = attrs.field(factory=dict)


class _BaseCommand(InertOutput, DisplayCommandBase):
    """Common to lists and single records."""

    #: What ends the command with one line and status 2.
    errors: ClassVar[tuple[type[Exception], ...]] = ()
    #: Without -f, this command writes for people; otherwise it writes a table.
    for_people: ClassVar[bool] = True
    #: The options with which this command changes something, which is done whether anybody
    #: reads of it or not; None: it always does.
    acts_with: ClassVar[tuple[str, ...] | None] = None
    #: Its formats are those of PICTURES as well.
    draws: ClassVar[bool] = False

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager:
        plugins = super()._load_formatter_plugins()
        drawn = [
            stevedore.extension.Extension(name, None, _PictureFormatter, _PictureFormatter())
            for name in PICTURES * self.draws
        ]
        return stevedore.ExtensionManager.make_test_instance([*plugins, *drawn])

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
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
        """What ends the command with one line; asked for when it runs."""
        return cls.errors

    def say(self, text: str = "", end: str = "\n") -> None:
        """Write a line for people, where they are the readers."""
        if self._people:
            print(text, end=end)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; 2 after a line that says what is wrong."""
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
                raise  # else rich gives up, as it does without a reader
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
    """The document with letters of all scripts, but not where one of them would be obeyed."""
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    if printable_lines(text) != text:
        text = yaml.safe_dump(document, sort_keys=False)
    return text


class ListCommand(_BaseCommand, Lister):
    """A command whose answer is a list."""


class RecordCommand(_BaseCommand, ShowOne):
    """A command whose answer is about one thing."""

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager:
        plugins = super()._load_formatter_plugins()
        csv = stevedore.extension.Extension("csv", None, _OneLine, _OneLine())
        return stevedore.ExtensionManager.make_test_instance([*plugins, csv])


class _PictureFormatter(formatters.ListFormatter, formatters.SingleFormatter):
    """A format that the command draws."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """It has no options."""

    def emit_list(self, *words: Any) -> None:
        """Not reached: the command has drawn it."""

    emit_one = emit_list


class _OneLine(commaseparated.CSVLister):
    """cliff has CSV for lists alone: one record is a list of one."""

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
    """An argparse type: a whole number of at least *least*."""

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
