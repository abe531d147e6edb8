# SPDX-License-Identifier: Apache-2.0
"""Collects what the tests see, and compares it with the committed table."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.functional.lifecycle import table

#: Names the file in which the tests put what they see, for the page to be written.
WRITE = "NOVA_HPC_WRITE_LIFECYCLE"


class Book:
    """Cells of the table, by action."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, str]] = {}

    def note(self, action: str, **cells: str) -> None:
        """Keep some cells of an action's row; a second look must not say another thing."""
        if action not in table.ACTIONS:
            raise ValueError(f"{action} is no action of the table")
        row = self.cells.setdefault(action, {})
        for column, cell in cells.items():
            if row.setdefault(column, cell) != cell:
                raise ValueError(f"{action}: {column} was {row[column]!r} and is {cell!r}")

    def differences(self) -> list[str]:
        """Where the page says something else; or put the cells into the file to write."""
        target = os.environ.get(WRITE)
        if target:
            path = Path(target)
            known = json.loads(path.read_text()) if path.exists() else {}
            for action, cells in self.cells.items():
                known.setdefault(action, {}).update(cells)
            path.write_text(json.dumps(known))
            return []
        rows = {row.action: row for row in table.parse(table.PAGE.read_text())}
        return [
            f"{action}: {column} is {cell!r}, and the page says {getattr(rows[action], column)!r}"
            for action, cells in self.cells.items()
            for column, cell in cells.items()
            if getattr(rows[action], column) != cell
        ]
