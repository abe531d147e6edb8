#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Count four turns of phrase in comments and docstrings, and in messages, room by room.

``python tools/english.py`` compares each room with its bounds in ``english.toml`` and fails if a
room has more. ``python tools/english.py nova_hpc/topology`` prints each finding of a room with its
file and line. ``--lower`` writes the bounds that have become lower.

A bound is a number of findings per 1,000 words, so that a room may grow. A room is a folder, with
the folders below it. Literals and names of parameters have no findings.

A room has a second part, ``messages nova_hpc/topology``: each string constant with three words or
more that is not a docstring. These are the texts of errors, helps, options and log lines. A measure
of all constants also finds the texts that a function returns for a later message.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import io
import math
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TOP: Final = Path(__file__).resolve().parents[1]
BOUNDS: Final = "tools/english.toml"
#: Packages whose folders are rooms of their own, and packages that are one room.
SPLIT: Final = (
    *("extras", "nova_hpc", "nova_hpc_client", "nova_hpc_common", "nova_hpc_tools"),
    "virt_driver_patches",
)
WHOLE: Final = (
    *("benchmarks", "docs", "lab", "neutron_drivers", "nova_hpc_guest", "scheduler_filters"),
    "tools",
)
#: Name of the part of a room with its messages: this and the name of the room.
MESSAGES: Final = "messages "
#: A constant with fewer words is a key, a name or a unit.
LEAST_WORDS: Final = 3
#: Each rule, and the cure of a finding.
RULES: Final = {
    "what": 'name the thing instead of "what"',
    "speaking": "a file contains, a driver reports, an option sets: only people say, know and ask",
    "person": "name the process, the server or the operator",
    "clause": "start with a noun, and put the condition at the end",
}
_PATTERNS: Final = {
    "what": re.compile(r"\bwhat\s+(?!kind\b|sort\b)\w", re.IGNORECASE),
    # A name in the code is "wish", and "unknown" and "well-known" are words of the field.
    "speaking": re.compile(
        r"(?<!-)\b(?:says?|said|saying|tells?|told|telling|knows?|knew|asks?|asked|wished)\b",
        re.IGNORECASE,
    ),
    "person": re.compile(r"\b(?:no|some|any|every)body\b|\bwh(?:o|om)ever\b", re.IGNORECASE),
    "clause": re.compile(r"(?:\A|[.:;!?]\s+)(?:Who|What)(?:ever)?\s(?![^.:;]*\?)"),
}
#: Code in a text: literals, names of parameters and fields.
_LITERAL: Final = re.compile(r"``.*?``|`[^`]+`|\*\w+\*|:\w+ \w+:", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A place in a file that breaks a rule."""

    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text}"


@dataclasses.dataclass
class Room:
    """The findings of a folder, in its docstrings and comments or in its messages, and its size.

    :ivar text_lines: lines with a docstring or a comment; the others that are not blank are code.
    """

    findings: list[Finding] = dataclasses.field(default_factory=list)
    words: int = 0
    text_lines: int = 0
    code_lines: int = 0

    def compute_rates(self) -> dict[str, float]:
        """Findings per 1,000 words by rule, with one decimal, rounded up."""
        counts = collections.Counter(finding.rule for finding in self.findings)
        return {rule: math.ceil(counts[rule] * 1e4 / max(1, self.words)) / 10 for rule in RULES}


def list_texts(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring and each block of comments with its first line.

    :raises SyntaxError: *source* is not Python.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str() as text)):
                yield node.lineno, text
    block: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# SPDX")):
            continue
        line = token.start[0]
        # A phrase may continue in the comment of the next line.
        joined = token.line.lstrip().startswith("#") and line == first + len(block)
        if block and not joined:
            yield first, "\n".join(block)
        if not joined:
            block, first = [], line
        block.append(token.string.lstrip("#: "))
    if block:
        yield first, "\n".join(block)


def list_messages(source: str) -> Iterator[tuple[int, str]]:
    """Each string constant that may be a message with its first line; ``_`` for a value in it.

    :raises SyntaxError: *source* is not Python.
    """
    tree = ast.parse(source)
    parts = set[ast.AST]()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str()) as docstring):
                parts.add(docstring)
            case ast.JoinedStr(values):
                parts.update(values)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str() as text) if node not in parts:
                pass
            case ast.JoinedStr(values):
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else "_" for v in values)
            case _:
                continue
        if len(text.split()) >= LEAST_WORDS:
            yield node.lineno, text


def judge_text(text: str) -> Iterator[tuple[int, str, str]]:
    """Each finding in a text: number of lines before it, rule, and the words."""
    masked = _LITERAL.sub(lambda match: "_" + "\n" * match[0].count("\n"), text)
    for rule, pattern in _PATTERNS.items():
        for match in pattern.finditer(masked):
            # The match of a clause may begin with the end of the sentence before it.
            start = match.start() + len(match[0]) - len(match[0].lstrip(".:;!?\n\t "))
            words = " ".join(masked[start : start + 60].split())
            yield masked.count("\n", 0, start), rule, words


def judge_file(path: Path, top: Path, room: Room, messages: Room) -> None:
    """Add a file to its room: its docstrings and comments to *room*, its messages to *messages*.

    :raises SyntaxError: the file is not Python.
    """
    source = path.read_text(encoding="utf-8")
    file = path.relative_to(top).as_posix()
    for line, text in list_messages(source):
        messages.words += len(text.split())
        # A constant may continue on several lines of code, so only its first line is certain.
        messages.findings += [Finding(file, line, *rest) for _, *rest in judge_text(text)]
    text_lines = 0
    for line, text in list_texts(source):
        room.words += len(text.split())
        text_lines += sum(bool(part.strip()) for part in text.splitlines())
        room.findings += [Finding(file, line + n, *rest) for n, *rest in judge_text(text)]
    room.text_lines += text_lines
    lines = sum(part.strip() not in ("", '"""') for part in source.splitlines())
    room.code_lines += lines - text_lines


def judge_rooms(top: Path) -> dict[str, Room]:
    """All rooms below *top* by name, and the messages of each one that has messages."""
    rooms: dict[str, Room] = collections.defaultdict(Room)
    for package in (*SPLIT, *WHOLE):
        for path in sorted((top / package).rglob("*.py")):
            parts = path.relative_to(top).parent.parts
            name = "/".join(parts[: 2 if package in SPLIT else 1])
            judge_file(path, top, rooms[name], rooms[MESSAGES + name])
    return {name: room for name, room in sorted(rooms.items()) if room.words}


def list_excesses(
    rooms: Mapping[str, Room], bounds: Mapping[str, Mapping[str, float]]
) -> list[tuple[str, str, float, float]]:
    """Each rate above its bound: room, rule, rate, bound. A room without bounds is a new one."""
    return [
        (name, rule, rate, bound)
        for name, room in rooms.items()
        for rule, rate in room.compute_rates().items()
        if rate > (bound := bounds.get(name, bounds["new"])[rule])
    ]


def write_bounds(rooms: Mapping[str, Room], bounds: Mapping[str, Mapping[str, float]]) -> str:
    """The text of ``english.toml``: for each room the lower one of its bound and its rate."""
    lines = [
        "# Findings of tools/english.py per 1,000 words, by room. They only fall:",
        "# python tools/english.py --lower",
        "new = { what = 1.0, speaking = 3.0, person = 0.3, clause = 0.1 }",
    ]
    for name, room in rooms.items():
        bound = bounds.get(name, bounds["new"])
        lower = (f"{r} = {min(n, bound[r])}" for r, n in room.compute_rates().items())
        lines.append(f'"{name}" = {{ {", ".join(lower)} }}')
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None, top: Path = TOP) -> int:
    """Judge the rooms; return 0 if all are within their bounds, 1 if not, 2 for bad arguments."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("rooms", nargs="*", help="rooms whose findings are printed")
    parser.add_argument("--lower", action="store_true", help="lower the bounds to today's rates")
    options = parser.parse_args(arguments)
    rooms = judge_rooms(top)
    bounds: dict[str, Any] = tomllib.loads((top / BOUNDS).read_text(encoding="utf-8"))
    asked = [name.rstrip("/") for name in options.rooms]
    if missing := [name for name in asked if name not in rooms]:
        names = ", ".join(name for name in rooms if not name.startswith(MESSAGES))
        print(f"english: no room {missing[0]!r}; rooms: {names}", file=sys.stderr)
        return 2
    if options.lower:
        (top / BOUNDS).write_text(write_bounds(rooms, bounds), encoding="utf-8")
    for name in [n for a in asked for n in (a, MESSAGES + a) if n in rooms] or rooms:
        room = rooms[name]
        if asked:
            _print_findings(room.findings)
        rates = ", ".join(f"{rule} {rate}" for rule, rate in room.compute_rates().items())
        if room.code_lines:
            rates = f"{room.text_lines / room.code_lines:.2f} text lines per code line: {rates}"
        print(f"{name}: {room.words} words, {rates}")
    if asked:
        return 0
    excesses = list_excesses(rooms, bounds)
    for name, rule, rate, bound in excesses:
        print(f"{name}: {rule}: {rate} per 1,000 words, at most {bound}: {RULES[rule]}")
        _print_findings(one for one in rooms[name].findings if one.rule == rule)
    return 1 if excesses else 0


def _print_findings(findings: Iterable[Finding]) -> None:
    print("".join(f"  {finding}\n" for finding in findings), end="")


if __name__ == "__main__":
    sys.exit(main())
