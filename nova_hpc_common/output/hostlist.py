# SPDX-License-Identifier: Apache-2.0
"""Lists of names as Slurm writes them: ``n[01-03,7],login``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

#: The most names that one list may stand for.
MOST: Final = 100_000
#: The most digits of a number.
_DIGITS: Final = 9
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,9})")


class HostListError(ValueError):
    """A host list such as ``n[1-4],n7`` cannot be parsed. The text contains the reason."""


def expand_hostlist(text: str) -> list[str]:
    """Expand a host list: ``n[1-3],m7`` gives n1, n2, n3 and m7, in the order of the list.

    :raises HostListError: brackets do not match, a range is invalid, or there are too many names.
    """
    names: list[str] = []
    for word in _split_at_commas(text):
        names += _expand_word(word)
        if len(names) > MOST:
            raise HostListError(f"{_quote_start_of(text)} stands for more than {MOST} names")
    return names


def compress_hostlist(names: Iterable[str]) -> str:
    """Return a host list such as ``n[1-3],m7`` for *names*, each once, in a fixed order.

    Only the last number of a name is gathered into ranges: every release of Slurm reads that.
    """
    numbers: dict[tuple[str, int], list[int]] = {}
    entries: list[tuple[str, str]] = []
    plain = set(names)
    parts = {name: match for name in plain if (match := _split_number(name)) is not None}
    # n1 and n01 are two names. 10 belongs to 08 and 09 if they are in *names*, else to 8 and 9.
    padded_widths = {
        (match[1], len(match[2])) for match in parts.values() if match[2].startswith("0")
    }
    for name in plain:
        match = parts.get(name)
        if match is None:
            entries.append((name, name))
            continue
        width = len(match[2])
        key = (match[1], width if (match[1], width) in padded_widths else 0)
        numbers.setdefault(key, []).append(int(match[2]))
    for (prefix, width), group in numbers.items():
        padded = [str(number).zfill(width) for number in sorted(group)]
        ranges = [_format_range(run) for run in _consecutive_runs(padded)]
        text = f"{prefix}[{','.join(ranges)}]" if len(padded) > 1 else prefix + padded[0]
        entries.append((prefix + padded[0], text))
    return ",".join(text for _, text in sorted(entries))


def _split_number(name: str) -> re.Match[str] | None:
    """Split a name into its start and its last number; None if it has brackets or no number."""
    return None if any(letter in name for letter in "[],") else _NUMBERED.fullmatch(name)


def _split_at_commas(text: str) -> Iterator[str]:
    """Yield the parts between commas that are outside of brackets.

    :raises HostListError: the brackets do not match.
    """
    depth = start = 0
    for number, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        if depth not in (0, 1):
            raise HostListError(f"the brackets of {_quote_start_of(text)} do not match")
        if letter == "," and not depth:
            yield text[start:number].strip()
            start = number + 1
    if depth:
        raise HostListError(f"the brackets of {_quote_start_of(text)} do not match")
    yield text[start:].strip()


def _expand_word(word: str) -> list[str]:
    if not word:
        raise HostListError("a name is empty")
    parts: list[list[str]] = []
    rest = word
    count = 1
    while rest:
        before, bracket, rest = rest.partition("[")
        parts.append([before])
        if bracket:
            inside, _, rest = rest.partition("]")
            numbers = [
                number for part in inside.split(",") for number in _numbers_of_range(part, word)
            ]
            count *= len(numbers)
            if count > MOST:
                raise HostListError(f"{_quote_start_of(word)} stands for more than {MOST} names")
            parts.append(numbers)
    return ["".join(combination) for combination in itertools.product(*parts)]


def _numbers_of_range(text: str, word: str) -> list[str]:
    match = _RANGE.fullmatch(text.strip())
    if match is None or max(len(digits or "") for digits in match.groups()) > _DIGITS:
        raise HostListError(
            f"{text.strip()!r} in {_quote_start_of(word)} is no number and no range"
        )
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise HostListError(f"the range {text.strip()} in {_quote_start_of(word)} runs backwards")
    if int(last) - int(first) >= MOST:
        raise HostListError(f"{_quote_start_of(word)} stands for more than {MOST} names")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _consecutive_runs(padded: list[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for text in padded:
        if run and int(text) != int(run[-1]) + 1:
            yield run
            run = []
        run.append(text)
    if run:
        yield run


def _format_range(run: list[str]) -> str:
    return run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _quote_start_of(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
