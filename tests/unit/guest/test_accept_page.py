# SPDX-License-Identifier: Apache-2.0
"""The guide has what the code and the recorded trials say."""

from __future__ import annotations

import re

import pytest

from nova_hpc_guest.accept.causes import CAUSES
from nova_hpc_guest.accept.options import BUDGETS, PAIRS
from nova_hpc_guest.accept.result import PLACE, STATUSES
from tests.unit.guest.accept_page import FOLDER, PARTS

PAGE = FOLDER.parent / "acceptance.rst"


@pytest.mark.parametrize("name", PARTS)
def test_the_tables_are_those_of_the_code(name: str) -> None:
    """``python -m tests.unit.guest.accept_page`` writes them again."""
    assert (FOLDER / name).read_text(encoding="utf-8") == PARTS[name]()
    assert f".. include:: accept/{name}\n" in PAGE.read_text(encoding="utf-8")


def test_each_cause_has_its_anchor() -> None:
    text = (FOLDER / "causes.inc").read_text(encoding="utf-8")
    assert re.findall(r"^\.\. _(cause-[\w-]+):$", text, re.M) == [one.anchor for one in CAUSES]


def test_the_page_says_the_numbers_of_the_code() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for verdict in STATUSES:
        assert f"*{verdict}*" in text
    assert f"after {BUDGETS['quick']:g} seconds" in text
    assert f"{PAIRS['full']} pairs" in text
    assert f":file:`{PLACE}`" in text
    assert f"{len(CAUSES)} causes" in text
