# SPDX-License-Identifier: Apache-2.0
"""The page of all keys has what the code says, and each way to refuse a flavor."""

from __future__ import annotations

import ast
import re

import pytest

from nova_hpc.placement import flavor, grouping, roles
from tests.unit.placement.flavor_page import CASES, FOLDER, PARTS, TOP
from tests.unit.refusal_texts import read_texts

PAGE = FOLDER.parent / "flavor-keys.rst"
MODULES = [flavor, grouping, roles]
#: No reader meets it: Nova's API takes no other extra specs.
NEVER = "must be a string, not"


@pytest.mark.parametrize("name", PARTS)
def test_the_tables_are_those_of_the_code(name: str) -> None:
    """``python -m tests.unit.placement.flavor_page`` writes them again."""
    assert (FOLDER / name).read_text(encoding="utf-8") == PARTS[name]()
    assert f".. include:: flavor/{name}\n" in PAGE.read_text(encoding="utf-8")


def test_each_key_has_its_words_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for key in (flavor.AFFINITY, flavor.AFFINITY_POLICY, flavor.NVLINK):
        section = re.search(rf"^{key}\n=+\n(.*?)(?=^hpc:\w+\n=|\Z)", text, re.M | re.S)
        assert section is not None
        for word in flavor.WORDS[key]:
            assert f"``{word}``" in section[1], (key, word)


def test_each_refusal_of_the_code_is_shown() -> None:
    """Every text that a flavor is refused with comes from one of the page's cases."""
    said = [case.text() for case in CASES]
    patterns = {
        text
        for module in MODULES
        for text in read_texts(TOP / module.__file__.replace(f"{TOP}/", ""))
        if NEVER not in text.literal
    }
    assert len(patterns) == len(CASES)
    assert [str(each) for each in patterns if not any(map(each.matches, said))] == []


def test_a_refusal_without_a_case_is_found(tmp_path) -> None:
    module = tmp_path / "module.py"
    module.write_text('raise FlavorError(f"{KEY} is never shown")\n')
    ast.parse(module.read_text())
    (text,) = read_texts(module)
    assert not any(map(text.matches, (case.text() for case in CASES)))
