# SPDX-License-Identifier: Apache-2.0
"""Probes of the user: programs of his own, described in an INI file with a section for each.

INI, because a regular expression needs no doubled backslashes there and a file may have comments.
The text of the file goes to other machines as one word without a special character for a shell.
"""

from __future__ import annotations

import argparse
import base64
import configparser
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from .probes import OWN, PROBE_OF, Probe
from .sample import AcceptanceError
from .tools import find_last_line

#: The option that carries the text of a file to another machine.
DATA_OPTION: Final = "--probe-data"
PEER: Final = "{peer}"
HOSTS: Final = "{hosts}"
#: Scope of a probe -> the thing that it needs.
_SCOPES: Final[dict[str, tuple[str, ...]]] = {"member": (), "pair": ("peer",), "whole": ("hosts",)}
#: Required fields, with an example for the error.
_REQUIRED: Final = {
    "command": "mpirun -np {ranks} lmp -in in.lj -log none",
    "figure": "([0-9.]+) timesteps/s",
    "unit": "steps/s",
    "better": "higher",
}
_FIELDS: Final = (*_REQUIRED, "expect", "scope", "seconds", "floor", "of")
#: Fields of a section that reads a further figure of another section's run.
_FURTHER: Final = ("figure", "unit", "better", "expect", "floor", "of")
_SECONDS: Final = 300.0
_MOST_SECONDS: Final = 7200.0
_FLOOR: Final = 0.90
#: Longest file, and longest line in which a figure is searched: a pattern may take the square of
#: the length in time.
_LONGEST_FILE: Final = 1 << 14
_LONGEST_LINE: Final = 1 << 14
_DECIMAL: Final = r"(?:\d+\.?\d*|\.\d+)"
_NUMBER: Final = re.compile(rf"{_DECIMAL}(?:[eE][-+]?\d+)?", re.ASCII)
#: Text beside a number that shows that it is a part of a longer one: digits, signs, exponents
#: (also Fortran's), the marks of other languages, hexadecimal digits.
_MARKS: Final = r"[.,'_\u2019\u00a0\u2009\u202f]"
_BEFORE: Final = re.compile(rf"(?:[-+.\d]|\d{_MARKS}|\d[eEdD])$", re.ASCII)
_AFTER: Final = re.compile(rf"\d|{_MARKS}\d|[eEdD][-+]?\d|[xX][0-9a-fA-F]", re.ASCII)


class OwnProbes(NamedTuple):
    """The content of one file: its text and its probes."""

    text: str
    probes: tuple[Probe, ...]

    @property
    def words(self) -> tuple[str, str]:
        """The option and its value that give these probes to another machine's command."""
        return DATA_OPTION, base64.urlsafe_b64encode(self.text.encode("utf-8")).decode("ascii")


class FigureReader(NamedTuple):
    """Reader of the one number in a program's output that a pattern finds."""

    pattern: str
    #: Pattern of a line that a good run prints; "" for none.
    expect: str = ""

    def read(self, text: str, _: str = "", __: float = 0.0) -> float:
        """Return the number.

        :raises ValueError: the pattern does not match exactly once, or not a whole number of the C
            locale above 0; the error quotes the line.
        """
        lines = re.split(r"\r\n|[\r\n]", text)
        if max(map(len, lines)) > _LONGEST_LINE:
            raise ValueError(f"a line has more than {_LONGEST_LINE} characters")
        last = find_last_line(text)
        if self.expect and not any(re.search(self.expect, line) for line in lines):
            raise ValueError(f"expect matches no line; the last one is {last!a}")
        matches = [match for line in lines for match in re.finditer(self.pattern, line)]
        if not matches:
            raise ValueError(f"figure matches no line; the last one is {last!a}")
        match, *more = matches
        if more:
            places = f"{_quote(match.string)} and {_quote(more[0].string)}"
            raise ValueError(f"figure matches {len(matches)} times: {places}")
        line, number, (start, end) = match.string, match[1] or "", match.span(1)
        if not _NUMBER.fullmatch(number):
            raise ValueError(f"{_quote(number)} is no number of the C locale: {_quote(line)}")
        if _BEFORE.search(line[:start]) or _AFTER.match(line[end:]):
            raise ValueError(f"{number} is a part of another number: {_quote(line)}")
        if end == len(line) and line is lines[-1]:
            raise ValueError(f"the output ends within the line of the figure: {_quote(line)}")
        if not 0 < float(number) < float("inf"):
            raise ValueError(f"{number} is no finite number above 0: {_quote(line)}")
        return float(number)


def read_probe_file(path: str) -> OwnProbes:
    """Read a file of probes.

    :raises AcceptanceError: it cannot be used; the error names file, section, field and cure.
    """
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return parse_probes(file.read(_LONGEST_FILE + 1))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise AcceptanceError(f"--probe {path!a}: {reason}") from error


def decode_probes(word: str) -> OwnProbes:
    """Return the probes of the word that another machine's command was given, as argparse's type.

    :raises argparse.ArgumentTypeError: it is something else.
    """
    try:
        return parse_probes(base64.urlsafe_b64decode(word.encode("ascii")).decode("utf-8"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_probes(text: str) -> OwnProbes:
    """Parse the text of a file.

    :raises ValueError: it cannot be used; the error names section, field and cure.
    """
    if len(text) > _LONGEST_FILE:
        raise ValueError(f"it has more than {_LONGEST_FILE} characters")
    # No section gives defaults to others.
    parser = configparser.RawConfigParser(delimiters=("=",), default_section="")
    try:
        parser.read_string(text, "it")
    except configparser.Error as error:
        raise ValueError(f"no INI file: {ascii(' '.join(str(error).split()))[1:-1]}") from error
    probes: dict[str, Probe] = {}
    for name in parser.sections():
        try:
            probes[name] = _build_probe(name, parser[name], probes)
        except ValueError as error:
            raise ValueError(f"[{ascii(name)[1:-1]}] {error}") from error
    if not probes:
        raise ValueError("it has no section: begin with the probe's name, as in [lammps]")
    return OwnProbes(text, tuple(probes.values()))


def join_probes(files: Sequence[OwnProbes], only: Sequence[str] = ()) -> tuple[Probe, ...]:
    """Return the probes of all files.

    :param only: names that the user chose, which have to be probes.
    :raises AcceptanceError: two files have a probe of one name, or a chosen one is none.
    """
    probes = [probe for file in files for probe in file.probes]
    names = [*PROBE_OF, *(probe.name for probe in probes)]
    for probe in probes:
        if names.count(probe.name) > 1:
            raise AcceptanceError(f"--probe: two files have [{probe.name}]: rename one")
    for name in only:
        if name not in names:
            raise AcceptanceError(f"--only: {name!a} is not one of {', '.join(names)}")
    return tuple(probes)


def list_digests(probes: Sequence[Probe]) -> dict[str, str]:
    """Return the tool that stands for each probe of the user -> a digest of its definition.

    A baseline file is compared only with runs of the same command and figure.
    """
    # The text of a bound method contains the reader with its patterns.
    return {
        name_tool(probe): hashlib.sha256(
            repr((probe.words, probe.read, probe.unit, probe.higher, probe.of)).encode()
        ).hexdigest()[:12]
        for probe in probes
        if probe.tier == OWN
    }


def name_tool(probe: Probe) -> str:
    """Return the name under which :func:`list_digests` has a probe."""
    return f"probe {probe.name}"


def _build_probe(name: str, fields: Mapping[str, str], earlier: Mapping[str, Probe]) -> Probe:
    """Build a probe from its section; ValueError names a wrong field and its cure."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,12}", name) or name in PROBE_OF:
        raise ValueError("the name: use up to 13 of a-z, 0-9 and _, and no name of another probe")
    of = fields.get("of")
    allowed = _FIELDS if of is None else _FURTHER
    for key in fields:
        if key not in allowed:
            raise ValueError(f"{key!a} is no field here: use {', '.join(allowed)}")
    for key, example in _REQUIRED.items():
        if key in allowed and not fields.get(key):
            raise ValueError(f"{key} is missing: add a line as {key} = {example}")
    if not re.fullmatch(r"[!-~]{1,16}", fields["unit"]):
        raise ValueError("unit: use up to 16 characters of ASCII without blanks")
    leader = None
    if of is not None:
        leader = earlier.get(of)
        if leader is None or leader.of is not None:
            raise ValueError(f"of: {of!a} is no section above with a command")
    words = leader.words if leader else _split_command(fields["command"])
    scope, text = _choose(fields, "scope", tuple(_SCOPES)), " ".join(words)
    if leader is None and (scope == "pair") != (PEER in text):
        raise ValueError(
            "scope: a command with {peer}, the other member's address, has scope = pair, and no "
            "other has"
        )
    if leader is None and (scope == "whole") != (HOSTS in text):
        raise ValueError(
            "scope: a command with {hosts}, all members' addresses, has scope = whole, and no "
            "other has"
        )
    return Probe(
        name=name,
        says=name,
        unit=fields["unit"],
        higher=_choose(fields, "better", ("higher", "lower")) == "higher",
        floor=_read_part(fields, "floor", _FLOOR, 1.0),
        tool=PurePath(words[0]).name,
        words=() if leader else words,
        read=FigureReader(
            _check_pattern(fields, "figure", 1), _check_pattern(fields, "expect", 0)
        ).read,
        tier=OWN,
        cpus="all",
        limit=_read_part(fields, "seconds", leader.limit if leader else _SECONDS, _MOST_SECONDS),
        of=of,
        needs=leader.needs if leader else _SCOPES[scope],
    )


def _split_command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"command: {error}: close the quotation") from error
    if not words or not words[0] or not all(word.isprintable() for word in words):
        raise ValueError("command: use printable words, with the program first")
    return words


def _check_pattern(fields: Mapping[str, str], key: str, wanted: int) -> str:
    pattern = fields.get(key, "")
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{key} is no regular expression: {error}") from error
    if groups != wanted:
        raise ValueError(
            f"{key} has {groups} groups, not {wanted}: ( ) is for the number of figure, (?: ) for "
            "all else"
        )
    return pattern


def _choose(fields: Mapping[str, str], key: str, words: tuple[str, ...]) -> str:
    word = fields.get(key, words[0])
    if word not in words:
        raise ValueError(f"{key}: {word!a} is not one of {', '.join(words)}")
    return word


def _read_part(fields: Mapping[str, str], key: str, default: float, most: float) -> float:
    text = fields.get(key)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or not 0 < float(text) <= most:
        raise ValueError(f"{key}: {text!a} is no number above 0 and up to {most:g}")
    return float(text)


def _quote(text: str) -> str:
    return ascii(" ".join(text.split())[:100])
