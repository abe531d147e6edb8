# SPDX-License-Identifier: Apache-2.0
"""Lines of configuration files that this project did not write, for messages that quote them.

``configure`` edits no file of others. A refusal quotes the line, so that operators can remove it in
their configuration management.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc_tools.site import include_files, layout_cures
from nova_hpc_tools.site.configured import Loss
from nova_hpc_tools.site.layout_names import PLAIN

_SECTION: Final = re.compile(r"\[(.+)\]\s*", re.ASCII)


@attrs.frozen
class FileLine:
    """One line of a configuration file, with path, number and text."""

    path: Path
    #: Counts from 1.
    number: int
    text: str

    @property
    def place(self) -> str:
        """The file and line number as ``path:number``."""
        return f"{self.path}:{self.number}"

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def find_object_lines(wanted: Mapping[str, Any], paths: Iterable[Path]) -> Iterator[FileLine]:
    """Find the lines on which a JSON object begins that equals *wanted*.

    Works on INI files and on YAML files that quote the object by ``'``. Skips comments and files
    that cannot be read.
    """
    canonical = json.dumps(wanted, sort_keys=True)
    for path in paths:
        # oslo.config writes $$ for $.
        text = include_files.read_text_or_empty(path).replace("$$", "$")
        lines = text.split("\n")
        for number in sorted(set(_object_line_numbers(text, canonical))):
            line = lines[number - 1].strip()
            if not line.startswith(("#", ";")):
                yield FileLine(path, number, line)


def _object_line_numbers(text: str, canonical: str) -> Iterator[int]:
    decoder = json.JSONDecoder()
    start = 0
    while (start := text.find("{", start)) >= 0:
        try:
            parsed, stop = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        if json.dumps(parsed, sort_keys=True) == canonical:
            yield text.count("\n", 0, start) + 1
        start = stop


def find_option_line(group: str, name: str, paths: Iterable[Path]) -> FileLine | None:
    """Find the last line that sets an option, in the order of *paths*; None if no line does."""
    last = None
    for path in paths:
        section = ""
        for number, line in enumerate(include_files.read_text_or_empty(path).split("\n"), start=1):
            if (heading := _SECTION.fullmatch(line)) is not None:
                section = heading[1]
            elif section.lower() == group.lower() and re.split("[=:]", line)[0].rstrip() == name:
                last = FileLine(path, number, line.strip())
    return last


@attrs.frozen
class ForeignFiles:
    """Configuration files of a service that ``configure`` did not write."""

    layout: str = PLAIN
    #: Host name of the node; None if it is unknown.
    host: str | None = None
    #: Files that the service reads.
    read: tuple[Path, ...] = ()
    #: Files on the deployment host from which the tool makes the files in *read*.
    sources: tuple[Path, ...] = ()

    def quote(self, text: str) -> str:
        """Return the lines on which a JSON object begins, each as ``path:number: text``.

        They come from the sources, or from the files that the service reads if no source has it.

        :param text: the object, as the service has it; returned if no line contains it.
        """
        lines = self._lines(text, self.sources) or self._lines(text, self.read)
        return " and ".join(map(str, lines)) or text

    def explain_removal(self, text: str) -> str:
        """Explain how the object is removed, in the words of the deployment tool."""
        sources = [line.place for line in self._lines(text, self.sources)]
        made = [line.place for line in self._lines(text, self.read)]
        return layout_cures.explain_removal(self.layout, self.host, sources, made)

    def name_line_of(self, loss: Loss) -> Loss:
        """Add the foreign line to a loss that it causes, and its removal as the cure."""
        if loss.foreign is None:
            return loss
        return attrs.evolve(
            loss,
            text=f"{self.quote(loss.foreign)}: {loss.text}",
            cure=f"{self.explain_removal(loss.foreign)}, and run this command again",
        )

    def _lines(self, text: str, paths: Iterable[Path]) -> list[FileLine]:
        return list(find_object_lines(json.loads(text), paths))
