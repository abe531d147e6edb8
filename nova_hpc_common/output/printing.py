# SPDX-License-Identifier: Apache-2.0
"""Output of text by other people, so that no terminal, shell or spreadsheet obeys it.

Rows keep their texts unchanged: JSON and YAML write them in ASCII, with escapes. For
all other formats :mod:`nova_hpc_common.outside.text` replaces the dangerous characters.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import stevedore
from cliff.columns import FormattableColumn
from cliff.formatters import shell
from rich.console import Console
from rich.segment import Segment

from nova_hpc_common.outside.text import printable_lines, printable_text, sheet_cell, shell_value

#: Formats that write every text unchanged, with escapes in ASCII.
_EXACT: Final = ("json", "yaml")
_NO_VARIABLE: Final = re.compile(r"[^A-Za-z0-9_]", re.ASCII)


class InertOutput:
    """Mixin that makes the output of a cliff command safe to print, in all its formats."""

    app: Any

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager:
        plugins = super()._load_formatter_plugins()  # type: ignore[misc]
        inert = [plugin for plugin in plugins if plugin.name != "shell"]
        if "shell" in plugins.names():
            inert.append(stevedore.extension.Extension("shell", None, _Shell, _Shell()))
        return stevedore.ExtensionManager.make_test_instance(inert)

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any
    ) -> int:
        """Write the rows, or the values of the one record, in the chosen format."""
        form = parsed_args.formatter
        # Replaced before cliff sorts the rows, so that the order is that of the shown texts.
        if form not in _EXACT:
            data = _make_value_inert(data, sheet_cell if form == "csv" else printable_text)
        status: int = super().produce_output(  # type: ignore[misc]
            parsed_args, column_names, data
        )
        return status


def _make_value_inert(value: Any, filtered: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return filtered(value)
    if isinstance(value, FormattableColumn):
        # A cell begins with the whole list or mapping, so its parts need no protection of cells.
        copied_column = copy.copy(value)
        copied_column._value = _make_value_inert(value._value, printable_text)
        return copied_column
    if isinstance(value, Mapping):
        return {
            _make_value_inert(key, printable_text): _make_value_inert(item, printable_text)
            for key, item in value.items()
        }
    if isinstance(value, tuple):
        return tuple(_make_value_inert(item, filtered) for item in value)
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_make_value_inert(item, filtered) for item in value]
    return value


class _Shell(shell.ShellFormatter):
    """Shell variables in quotes; cliff's own format would let a shell run ``$(...)``."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: Any,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write one shell variable per line."""
        wanted = parsed_args.variables
        for column, value in zip(column_names, data, strict=True):
            name = _NO_VARIABLE.sub("_", column.lower())
            if wanted and name not in wanted:
                continue
            text = value.machine_readable() if isinstance(value, FormattableColumn) else value
            stdout.write(f"{parsed_args.prefix}{name}={shell_value(str(text))}\n")


class InertConsole(Console):
    """A console of rich that replaces escape sequences in texts, but keeps its own colours."""

    def __init__(self, *words: Any, **keywords: Any) -> None:
        super().__init__(*words, **{"markup": False, "emoji": False, **keywords})

    @property
    def file(self) -> Any:
        """The stream without a filter in between, because this class filters itself."""
        stream = super().file
        return getattr(stream, "unfiltered", stream)

    @file.setter
    def file(self, new: Any) -> None:
        self._file = new

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """Render as rich does, but replace characters that a terminal would obey."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable_lines(text), style, control)


class InertStream:
    """A text stream that shows control characters instead of sending them to the terminal.

    :param stream: the target, which also has all other attributes.
    """

    def __init__(self, stream: Any) -> None:
        self.unfiltered = getattr(stream, "unfiltered", stream)

    def write(self, text: str) -> int:
        """Write text of any number of lines, without control characters; return its length."""
        self.unfiltered.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts with control characters replaced."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


@contextlib.contextmanager
def inert_streams() -> Iterator[None]:
    """Filter all output on standard output and error during the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = InertStream(before[0]), InertStream(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
