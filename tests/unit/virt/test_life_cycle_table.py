# SPDX-License-Identifier: Apache-2.0
"""The committed table of the life cycle: whole, and written as it is read."""

from __future__ import annotations

import attrs
import pytest

from tests.functional.lifecycle import table

PAGE = table.PAGE.read_text()


def test_the_page_has_every_action_and_no_gap() -> None:
    rows = table.parse(PAGE)
    assert table.problems(rows) == []
    assert [row.action for row in rows] == list(table.ACTIONS)


def test_the_page_is_as_it_would_be_written() -> None:
    assert table.replace(PAGE, table.parse(PAGE)) == PAGE


def test_gaps_are_found() -> None:
    rows = table.parse(PAGE)
    assert "Create: 0 rows" in table.problems(rows[1:])
    empty = attrs.evolve(rows[0], tree=" ")
    assert "Create: PCIe tree is empty" in table.problems([empty, *rows[1:]])
    lost = attrs.evolve(rows[0], addresses="LOST")
    assert "Create: Guest addresses says LOST" in table.problems([lost, *rows[1:]])
    assert "Fly: no such action" in table.problems([*rows, attrs.evolve(rows[0], action="Fly")])


def test_a_page_without_a_table() -> None:
    with pytest.raises(table.TableError, match="marks are missing"):
        table.parse("nothing")
    with pytest.raises(table.TableError, match="another number of cells"):
        table.parse(PAGE.replace("     - claimed\n", "", 1))
