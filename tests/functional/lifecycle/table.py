# SPDX-License-Identifier: Apache-2.0
"""The table of the life cycle: rows, and how the documentation has them.

Nothing of Nova is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

PAGE = Path(__file__).parents[3] / "docs/source/user/life-cycle-actions.inc"
_BEGIN = ".. The table is written by python -m tests.functional.lifecycle --write\n"
_END = ".. The end of the table.\n"
_HEADS = (
    "Action",
    "Devices",
    "Alignment",
    "PCIe tree",
    "Guest addresses",
    "Refused, the server as before, when",
    "What you read then",
)
_WIDTHS = (14, 10, 10, 10, 10, 16, 30)

#: Every action that has to have a row, in the order of the page.
ACTIONS = (
    "Create",
    "Soft reboot",
    "Hard reboot",
    "Stop, start",
    "Pause, unpause",
    "Suspend",
    "Suspend (allowed), resume",
    "Snapshot, live",
    "Snapshot, cold",
    "Snapshot, cold (allowed)",
    "Shelve",
    "Unshelve",
    "Shelve and offload",
    "Unshelve after an offload",
    "Rescue",
    "Unrescue",
    "Rebuild",
    "Attach, detach a volume",
    "Attach, detach an interface",
    "Attach a direct port",
    "Hard reboot with a direct port",
    "Suspend (allowed) with a direct port",
    "Snapshot, cold (allowed), with a direct port",
    "Detach a direct port",
    "Restart of nova-compute",
    "Reboot of the host",
    "Resize up",
    "Resize down",
    "Cold migration",
    "Cold migration or resize, reverted",
    "Evacuation",
    "Live migration",
    "Delete while waiting for a host",
    "Delete while networks are made",
    "Delete while the guest is made",
    "Delete",
)


@attrs.frozen
class Row:
    """One action: what it leaves, when it is refused and what is read then."""

    action: str
    devices: str
    alignment: str
    tree: str
    addresses: str
    #: When it is refused, and the text; ``-`` where nothing refuses it.
    refused: str
    text: str

    def cells(self) -> tuple[str, ...]:
        return tuple(str(cell) for cell in attrs.astuple(self))


class TableError(ValueError):
    """The page has no table, or one that cannot be read."""


def render(rows: Iterable[Row]) -> str:
    """The rows as reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1"]
    lines += [f"   :widths: {' '.join(map(str, _WIDTHS))}", ""]
    for cells in (_HEADS, *(row.cells() for row in rows)):
        for number, cell in enumerate(cells):
            lines.append(f"   {'*' if number == 0 else ' '} - {cell}")
    return "\n".join([*lines, ""])


def parse(text: str) -> list[Row]:
    """The rows of a page.

    :raises TableError: it has none.
    """
    _, begin, rest = text.partition(_BEGIN)
    body, end, _ = rest.partition(_END)
    if not begin or not end:
        raise TableError("the page has no table: its marks are missing")
    rows: list[list[str]] = []
    for line in body.splitlines():
        if line.startswith("   * -"):
            rows.append([])
        if line.startswith(("   * -", "     -")):
            rows[-1].append(line[6:].strip())
    if not rows or tuple(rows[0]) != _HEADS:
        raise TableError("the table's first row is not that of this release")
    if any(len(cells) != len(_HEADS) for cells in rows):
        raise TableError("a row of the table has another number of cells")
    return [Row(*cells) for cells in rows[1:]]


def replace(text: str, rows: Iterable[Row]) -> str:
    """The page with other rows."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise TableError("the page has no table: its marks are missing")
    return f"{before}{_BEGIN}\n{render(rows)}\n{_END}{after}"


def problems(rows: Sequence[Row]) -> list[str]:
    """What is wrong with a table, in words; empty: nothing."""
    found = []
    names = [row.action for row in rows]
    for action in ACTIONS:
        if names.count(action) != 1:
            found.append(f"{action}: {names.count(action)} rows")
    found += [f"{name}: no such action" for name in names if name not in ACTIONS]
    for row in rows:
        for head, cell in zip(_HEADS, row.cells(), strict=True):
            if not cell.strip():
                found.append(f"{row.action}: {head} is empty")
            elif "LOST" in cell or "HELD" in cell:
                found.append(f"{row.action}: {head} says {cell}")
    return found
