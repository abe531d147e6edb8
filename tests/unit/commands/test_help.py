# SPDX-License-Identifier: Apache-2.0
"""What commands say of themselves, and what they import to say it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nova_hpc_guest import command as guest
from nova_hpc_tools import command_help
from nova_hpc_tools.command_index import CommandIndex, summarise_command
from nova_hpc_tools.main import NAMESPACE, NovaHpc, main
from tests.unit.commands.test_typed import entry_points, parser_of

OWN = sorted(" ".join(words[1:]) for words in entry_points() if words[0] == "nova-hpc")
OWN = [name for name in OWN if not name.startswith("lab ")]
#: Prints the modules that a call has imported.
IMPORTED = """
import contextlib, io, json, sys
from nova_hpc_tools.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
"""


def imported_by(*words: str) -> set[str]:
    """The modules that a call of nova-hpc imports."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Status, output and errors of a call."""
    try:
        status = main(list(words))
    except SystemExit as error:
        status = int(error.code or 0)
    out = capsys.readouterr()
    return status, out.out, out.err


def test_each_command_has_an_example() -> None:
    assert sorted(command_help.EXAMPLES) == OWN


@pytest.mark.parametrize("name", sorted(command_help.EXAMPLES))
def test_an_example_is_taken(name: str) -> None:
    words = shlex.split(command_help.EXAMPLES[name])
    assert words[0] == "nova-hpc"
    parser, count = parser_of(tuple(words[:4]))
    assert " ".join(words[1:count]) == name
    parser.parse_args(words[count:])


@pytest.mark.parametrize("name", ["capacity", "device show", "explain"])
def test_own_options_come_before_formats(name: str) -> None:
    parser, _ = parser_of(("nova-hpc", *name.split()))
    text = parser.format_help()
    usage, _, rest = text.partition("\n\n")
    assert usage.index("--config-file") < usage.index("[-c COLUMN]")
    assert "--max-width" not in usage
    assert f"example:\n  {command_help.EXAMPLES[name]}\n" in text
    assert rest.index("\noptions:") < rest.index("\noutput formatters:")
    assert rest.index("--config-file") < rest.index("\noutput formatters:")
    assert "--max-width" in rest


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = shown(capsys, "drain")
    assert (status, out) == (2, "")
    assert err == (
        "nova-hpc drain: the following arguments are required: HOST; see nova-hpc drain --help\n"
    )
    status, out, err = shown(capsys, "--log-file")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.endswith("; see nova-hpc --help\n")


def test_first_words_list_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = shown(capsys, "device")
    lines = out.splitlines()
    assert (status, err, lines[0]) == (2, "", "nova-hpc device has these commands:")
    assert [line.split("  ")[1] for line in lines[1:]] == [
        name for name in OWN if name.startswith("device ")
    ]
    # A command that has others below it is run.
    assert shown(capsys, "inventory", "--root", "/no/such")[0] == 2
    assert "has these commands" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wheel"),
    [
        (("lab", "up"), "nova-hpc-lab"),
        (("simulate",), "nova-hpc-simulate"),
        (("requirements", "suite"), "nova-hpc-requirements"),
        (("accept", "--quick"), "nova-hpc-client"),
    ],
)
def test_a_wheel_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    wheel: str,
) -> None:
    """Beside tools alone: each has the code of this checkout, so the import is made to fail."""
    package = wheel.replace("-", "_")
    load = CommandIndex.load_commands

    def load_others(index: CommandIndex, namespace: str) -> None:
        load(index, namespace)
        for name, point in list(index.commands.items()):
            if point.value.startswith(package):
                del index.commands[name]

    monkeypatch.setattr(CommandIndex, "load_commands", load_others)
    for name in [name for name in sys.modules if name.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("nova_hpc_tools.accept")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(package), *sys.meta_path])
    monkeypatch.setattr("nova_hpc_tools.main.find_spec", lambda name: None)
    status, out, err = shown(capsys, *words)
    assert (status, out) == (2, "")
    assert f"needs the wheel {wheel}: install it beside nova-hpc-tools" in err


class Missing:
    """A finder of a package that is not there."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=self.package)


def test_the_help_has_all_commands_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = shown(capsys, "--help")
    assert status == 0
    lines = [line.strip() for line in out.partition("Commands:\n")[2].splitlines()]
    assert {line.partition("  ")[0] for line in lines} >= set(OWN)
    assert all("  " in line for line in lines)
    commands = {place.partition(":")[0] for words, place in entry_points().items()}
    assert not imported_by("--help") & commands


@pytest.mark.parametrize("name", ["inventory", "fabric show", "simulate", "prepare"])
def test_a_command_imports_no_other(name: str) -> None:
    places = entry_points()
    own = places["nova-hpc", *name.split()].partition(":")[0]
    imported = imported_by(*name.split(), "--help")
    assert own in imported
    assert not imported & {"numpy", "matplotlib", "nova", "openstack", "nova_hpc_lab.commands"}
    # What a command is made of may be another one's module; of the rooms of others it has none.
    rooms = {"cloud", "cluster", "device", "fabric", "pictures", "simulate"}
    room = own.split(".")[1]
    assert not {f"nova_hpc_tools.{other}" for other in rooms - {room}} & imported


def test_summaries_are_those_of_the_classes() -> None:
    index = CommandIndex(NAMESPACE)
    for name in OWN:
        entry_point = index.commands[name]
        doc = str(entry_point.load().__doc__).strip().partition("\n")[0]
        assert summarise_command(entry_point) == doc.rstrip(".")


def test_completion_offers_commands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = shown(capsys, "complete")
    assert status == 0
    words = set(out.partition("names='")[2].partition("'")[0].split())
    assert words == {name.split()[0] for name, _ in NovaHpc().command_manager}


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("foo",), None),
        (("devise", "list"), "device list"),
        (("device", "shwo"), "device show"),
        (("help", "docter"), "doctor"),
        (("--xx",), None),
    ],
)
def test_an_unknown_command_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], near: str | None
) -> None:
    status, out, err = shown(capsys, *words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    typed = " ".join(words).removeprefix("help ")
    assert err.startswith(f"nova-hpc: there is no command '{typed}'")
    assert (f"near it: {near}" in err) == (near is not None)
    assert err.endswith("see nova-hpc --help\n")


@pytest.mark.parametrize("words", [(), ("foo",), ("gpu", "foo"), ("check", "--foo")])
def test_a_mistake_in_the_guest_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as error:
        guest.main(list(words))
    out = capsys.readouterr()
    assert (error.value.code, out.out, len(out.err.splitlines())) == (2, "", 1)
    assert out.err.endswith(" --help\n")


def list_texts(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The description of a parser, and the helps of its options and of those below it."""
    yield parser.description or ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from list_texts(below)
        elif action.help != argparse.SUPPRESS:
            yield action.help or ""


@pytest.mark.parametrize("words", [*entry_points(), ("nova-hpc-guest",)], ids=" ".join)
def test_no_help_joins_sentences(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A paragraph ends with a mark, as a help fills lines; no sentence is a chain of three."""
    if words == ("nova-hpc-guest",):
        texts = [*list_texts(guest.build_parser()[0])]
    else:
        texts = [*list_texts(parser_of(words)[0])]
    description, *helps = texts
    paragraphs = [part.strip() for part in description.split("\n\n")]
    assert [part for part in paragraphs[:-1] if part[-1:] not in ".:"] == []
    assert [text for text in helps if re.search(r"[^.]*; [^.]*; ", text)] == []


OF_USERS = [words for words in entry_points() if words[:2] == ("openstack", "hpc")]


@pytest.mark.parametrize("name", OF_USERS, ids=" ".join)
def test_an_example_of_users_is_taken(name: tuple[str, ...]) -> None:
    parser, count = parser_of(name)
    assert count == len(name)
    _, _, example = " ".join(parser.description.split()).partition("Example: ")
    words = shlex.split(example)
    assert tuple(words[:count]) == name
    parser.parse_args(words[count:])
