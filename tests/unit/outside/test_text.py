# SPDX-License-Identifier: Apache-2.0
"""What is printed is shown, and nothing of it is obeyed."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.outside.text import (
    printable_lines,
    printable_text,
    sheet_cell,
    shell_command,
    shell_value,
)
from tests.unit import hostile

ANY = st.text(st.characters(exclude_categories=[])) | st.sampled_from(hostile.texts())


@given(ANY)
def test_a_text_becomes_one_line_that_can_be_shown(text: str) -> None:
    shown = printable_text(text)
    assert shown.isprintable()
    assert printable_text(shown) == shown
    assert (shown == text) == text.isprintable()


@given(ANY)
def test_a_text_of_several_lines_keeps_its_lines(text: str) -> None:
    shown = printable_lines(text)
    assert hostile.obeyed(shown.replace("\t", "")) == []
    assert shown.count("\n") == text.count("\n")
    assert printable_lines(shown) == shown
    assert printable_lines(text.replace("\n", "").replace("\t", "")) == printable_text(
        text.replace("\n", "").replace("\t", "")
    )


@given(ANY)
def test_numbers_of_characters_are_those_of_json(text: str) -> None:
    plain = text.replace("\\", "").replace('"', "")
    assert json.loads(f'"{printable_text(plain)}"') == plain


@given(ANY)
def test_a_cell_is_no_formula(text: str) -> None:
    cell = sheet_cell(text)
    assert cell.isprintable()
    first = cell.lstrip()[:1]
    if first and first in "=+-@\uff1d\uff0b\uff0d\uff20":
        float(cell)  # a number
    assert cell.removeprefix("'") in (printable_text(text), printable_text(text).removeprefix("'"))


def test_a_negative_number_stays_one() -> None:
    assert [sheet_cell(each) for each in ("-1.5", "+2", "-", "=1", "n-1")] == [
        *("-1.5", "+2", "'-", "'=1", "n-1"),
    ]


@given(st.lists(ANY, min_size=1))
def test_a_command_is_its_words_alone(words: list[str]) -> None:
    assert shlex.split(shell_command(*words)) == [printable_text(each) for each in words]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_runs_nothing_of_it(tmp_path: Path, shell: str) -> None:
    marker = tmp_path / "ran"
    texts = hostile.texts(marker)
    lines = [f"one={shell_value(text)}; printf '%s\\n' \"$one\"" for text in texts]
    lines += [shell_command("printf", "%s\\n", text) for text in texts]
    done = subprocess.run([shell], input="\n".join(lines), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [printable_text(each) for each in (*texts, *texts)]
    assert not marker.exists()
