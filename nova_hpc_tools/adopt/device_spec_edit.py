# SPDX-License-Identifier: Apache-2.0
"""Takes single entries of ``[pci]device_spec`` out of an operator's own configuration file.

oslo.config's own parser says where the values are; all else stays byte for byte. What is not
found, or found twice, is refused, and the result is read again before it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from oslo_config import iniparser

from nova_hpc_tools.adopt import include_files, option_changes, replacement, spec_entries
from nova_hpc_tools.adopt.include_files import FileChange, IncludeError

_NAMES: Final = frozenset((group, name) for group, name in option_changes.DEVICE_SPEC)
_SPACES: Final = " \t\r\n"


@attrs.frozen
class _OptionSpan:
    """One value of the option, and where it is in the text of a file."""

    #: Number of its first line, for people.
    line: int
    #: Offsets: of its lines as a whole, and of the single entries in it.
    start: int
    end: int
    entries: tuple[tuple[int, int], ...]


@attrs.frozen
class _EntryPlace:
    """One entry in a file."""

    path: Path
    value: _OptionSpan
    number: int


def edit_device_spec(
    paths: Iterable[Path], removed: Iterable[str], rewritten: Mapping[str, str]
) -> list[FileChange]:
    """The files without some entries, and with others written anew.

    :param paths: files that are not this project's.
    :param removed: entries, one JSON object each, however they are written in the files.
    :param rewritten: entry -> what is to be in its place.
    :raises IncludeError: an entry is not there, or in more than one place; a file cannot be
        read, or is not a plain file.
    """
    before = {path: include_files.read_exact_file(path) for path in paths}
    texts = {path: text for path, text in before.items() if text is not None}
    old = dict(texts)
    for line, new in [*((entry, None) for entry in removed), *rewritten.items()]:
        place = _find_only_place(texts, line)
        texts[place.path] = _edit_entry(texts[place.path], place, new)
    file_changes = []
    for path, text in texts.items():
        if text != old[path]:
            _verify_edit(path, old[path], text, removed, rewritten)
            file_changes.append(include_files.build_foreign_edit(path, old[path], text))
    return file_changes


def _find_only_place(texts: Mapping[Path, str], line: str) -> _EntryPlace:
    entry = spec_entries.read_spec_entry(line)
    places = [
        _EntryPlace(path, value, number)
        for path, text in texts.items()
        for value in _find_option_values(path, text)
        for number, (start, end) in enumerate(value.entries)
        if replacement.is_same_entry(text[start:end].replace("$$", "$"), entry)
    ]
    if not places:
        raise IncludeError(
            f"{line} is in no file as it counts (a value that oslo.config substitutes?): take it "
            "out yourself"
        )
    if len(places) > 1:
        where = ", ".join(f"{place.path}:{place.value.line}" for place in places)
        raise IncludeError(
            f"{line} is in several places ({where}): leave one of them, and name it again"
        )
    return places[0]


# --- reading ----------------------------------------------------------------------


class _OptionLocator(iniparser.BaseParser):
    """Finds the values of the option: the number of the first line of each, and its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []
        self._section = ""
        self._first = 0

    def new_section(self, section: str) -> None:
        self._section = section if section.upper() == "DEFAULT" else section.lower()

    def _split_key_value(self, line: str) -> Any:
        self._first = self.lineno
        return super()._split_key_value(line)

    def assignment(self, key: str, value: list[str]) -> None:
        if (self._section, key) in _NAMES:
            self.found.append((self._first, len(value)))


def _find_option_values(path: Path, text: str) -> Iterator[_OptionSpan]:
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    parser = _OptionLocator()
    try:
        parser.parse(lines)
    except iniparser.ParseError as error:
        raise IncludeError(f"{path} cannot be read: {error}") from error
    for number, count in parser.found:
        start, end = starts[number - 1], min(starts[number - 1 + count], len(text))
        head = min(place for sign in "=:" if (place := text.find(sign, start, end)) >= 0)
        yield _OptionSpan(number, start, end, tuple(_find_entry_spans(text, head + 1, end)))


def _find_entry_spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The places of the entries in one value; none, where it is no JSON of entries."""
    decoder = json.JSONDecoder()
    place = _skip_characters(text, start, end, _SPACES + "\"'")
    several = text[place : place + 1] == "["
    if several:
        place = _skip_characters(text, place + 1, end)
    spans = []
    while place < end and text[place] == "{":
        try:
            _, stop = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        if stop > end:
            return []
        spans.append((place, stop))
        place = _skip_characters(text, stop, end)
        if not several or text[place : place + 1] != ",":
            break
        place = _skip_characters(text, place + 1, end)
    return spans


def _skip_characters(text: str, place: int, end: int, what: str = _SPACES) -> int:
    while place < end and text[place] in what:
        place += 1
    return place


# --- writing ----------------------------------------------------------------------


def _edit_entry(text: str, place: _EntryPlace, new: str | None) -> str:
    value, number = place.value, place.number
    start, end = value.entries[number]
    if new is not None:
        return text[:start] + new.replace("$", "$$") + text[end:]
    if len(value.entries) == 1:
        return text[: value.start] + text[value.end :]
    if number + 1 < len(value.entries):
        return text[:start] + text[value.entries[number + 1][0] :]
    return text[: value.entries[number - 1][1]] + text[end:]


def _verify_edit(
    path: Path, old: str, new: str, removed: Iterable[str], rewritten: Mapping[str, str]
) -> None:
    """See whether oslo.config reads what was meant.

    :raises IncludeError: it does not; nothing was written.
    """
    before, after = (
        option_changes.parse_config_sections(old),
        option_changes.parse_config_sections(new),
    )
    lists = [
        [entry for group, name in _NAMES for entry in _entries_in_sections(sections, group, name)]
        for sections in (before, after)
    ]
    gone = [spec_entries.read_spec_entry(line) for line in removed]
    wanted = [
        _canonical_entry_of(replacement_of_line(line, rewritten))
        for line in lists[0]
        if not any(replacement.is_same_entry(line, removed_entry) for removed_entry in gone)
    ]
    for sections in (before, after):
        for group, name in _NAMES:
            sections.get(group, {}).pop(name, None)
    rest = [
        {group: pairs for group, pairs in parsed.items() if pairs} for parsed in (before, after)
    ]
    if rest[0] != rest[1] or sorted(wanted) != sorted(map(_canonical_entry_of, lists[1])):
        raise IncludeError(f"{path} cannot be edited safely: take the entry out yourself")


def replacement_of_line(line: str, rewritten: Mapping[str, str]) -> str:
    """The text that takes the place of an entry."""
    for old, new in rewritten.items():
        if replacement.is_same_entry(line, spec_entries.read_spec_entry(old)):
            return new
    return line


def _entries_in_sections(
    sections: Mapping[str, Mapping[str, Sequence[str]]], group: str, name: str
) -> list[str]:
    values = sections.get(group, {}).get(name, ())
    return [
        text.replace("$$", "$") for value in values for text in spec_entries.entries_of_value(value)
    ]


def _canonical_entry_of(line: str) -> str:
    entry = spec_entries.read_spec_entry(line)
    return json.dumps(entry, sort_keys=True) if entry else line
