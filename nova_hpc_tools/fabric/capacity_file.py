# SPDX-License-Identifier: Apache-2.0
"""Reads how many members fit on each host from CSV: the columns ``host`` and ``fit``."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_hpc.cluster.plan.model import MOST_MEMBERS
from nova_hpc.fabric.model import wrong_name
from nova_hpc.outside.name_lists import cut_after

COLUMNS: Final = ("host", "fit")
#: Errors that are named before the rest is only counted.
_SHOWN: Final = 10


class CapacityError(Exception):
    """A capacity file that cannot be used; one line an error."""


def read_capacity_lines(lines: Iterable[str], source: str) -> dict[str, int]:
    """Read the lines of a file.

    :param source: what the errors call it.
    :returns: host -> how many members fit on it.
    :raises CapacityError: names the lines that are wrong.
    """
    capacity: dict[str, int] = {}
    first: dict[str, int] = {}
    errors: list[str] = []
    reader = csv.reader(lines, strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        # Spreadsheets put a mark before the first letter, and other commands write "Host".
        if [column.removeprefix("\ufeff").lower() for column in header] != list(COLUMNS):
            raise CapacityError(
                f"{source}: line 1: the header is {','.join(header)!r}; it must be "
                f"{','.join(COLUMNS)!r}"
            )
        for row in reader:
            for wrong in _find_row_errors(row, first):
                errors.append(f"{source}: line {reader.line_num}: {wrong}")
                break
            else:
                if row:
                    capacity[row[0].strip()] = int(row[1])
                    first[row[0].strip()] = reader.line_num
    except csv.Error as error:
        errors.append(f"{source}: line {reader.line_num}: {error}")
    if errors:
        lines = cut_after(errors, _SHOWN, lambda rest: f"and {rest} more errors")
        raise CapacityError("\n".join(lines))
    return capacity


def _find_row_errors(row: list[str], first: Mapping[str, int]) -> Iterator[str]:
    if not row:
        return
    if len(row) != len(COLUMNS):
        yield f"it has {len(row)} columns; there must be {len(COLUMNS)}: {','.join(COLUMNS)}"
        return
    host, fit = row[0].strip(), row[1].strip()
    problem = wrong_name(host)
    if problem is not None:
        yield f"host: {problem}"
    if host in first:
        yield f"host {host!r} stands in line {first[host]} already"
    if not (fit.isascii() and fit.isdecimal() and len(fit) <= len(str(MOST_MEMBERS))):
        yield f"fit is {fit[:20]!r}; it must be a whole number from 0 to {MOST_MEMBERS}"
    elif int(fit) > MOST_MEMBERS:
        yield f"fit is {fit}; the most is {MOST_MEMBERS}"
