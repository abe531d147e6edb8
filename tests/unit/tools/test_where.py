# SPDX-License-Identifier: Apache-2.0
"""Each place that the page of places names is there."""

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
PAGE = TOP / "docs" / "source" / "contributor" / "where.rst"
_ROW = re.compile(r"^   \* - (.+)\n     - ``(.+)``\n     - ``(.+)``\n     - ``(.+)``$", re.M)
ROWS = _ROW.findall(PAGE.read_text())


def test_no_row_is_passed_over():
    # The heading of the table is the one that names no file.
    assert len(ROWS) == PAGE.read_text().count("   * - ") - 1
    assert len(ROWS) >= 25
    assert len({question for question, *_ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("question", "first", "second", "tests"), ROWS, ids=[r[0] for r in ROWS])
def test_the_places_of_a_question_are_there(question, first, second, tests):
    assert [path for path in (first, second, tests) if not (TOP / path).exists()] == []
    code = TOP / first
    assert code.suffix in (".py", ".c") or any(code.glob("*.py")), f"{question}: {first} is no code"
    assert re.fullmatch(r"tests/(\w+/)*test_\w+\.py", tests)
