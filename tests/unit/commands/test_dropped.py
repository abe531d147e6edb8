# SPDX-License-Identifier: Apache-2.0
"""A command that was dropped is refused, and names a command that exists."""

from __future__ import annotations

import re

import pytest

from nova_hpc_tools.command_index import CommandIndex
from nova_hpc_tools.dropped import DROPPED
from nova_hpc_tools.main import NAMESPACE
from tests.unit.commands import pages
from tests.unit.commands.test_help import shown
from tests.unit.commands.test_typed import parser_of


@pytest.mark.parametrize("name", DROPPED)
@pytest.mark.parametrize(
    "form", ["{}", "{} --help", "help {}", "{} FILE --members 4", "--debug {} -f json"]
)
def test_it_is_refused_whatever_stands_around_it(
    name: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = shown(capsys, *form.format(name).split())
    assert (status, out) == (2, "")
    assert err == f"nova-hpc: {name} was dropped; use {DROPPED[name]}\n"


@pytest.mark.parametrize("name", DROPPED)
def test_its_replacement_is_a_command_with_these_options(name: str) -> None:
    lines = re.split(r", or |; ", DROPPED[name])
    for line in lines:
        words = [pages.PLACEHOLDERS.get(word, word) for word in line.split()]
        assert words[0] == "nova-hpc"
        parser, count = parser_of(tuple(words))
        parser.parse_args(words[count:])


def test_it_is_no_command_any_more() -> None:
    assert not DROPPED.keys() & CommandIndex(NAMESPACE).commands.keys()


def test_first_words_of_commands_name_no_dropped_one(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = shown(capsys, "fabric")
    assert (status, err) == (2, "")
    assert "fabric show" in out


def test_a_first_word_without_commands_names_all_replacements(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = shown(capsys, "nvlink")
    assert (status, out) == (2, "")
    assert [line.split()[1:3] for line in err.splitlines()] == [
        ["nvlink", verb] for verb in ("check", "list")
    ]
