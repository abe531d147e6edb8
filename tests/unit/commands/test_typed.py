# SPDX-License-Identifier: Apache-2.0
"""What the pages tell people to type is what the commands and oslo.config take."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import re

import pytest
from oslo_config import cfg

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology import roles
from nova_hpc_guest import command as guest
from nova_hpc_tools.main import NovaHpc, main
from nova_hpc_tools.site import service_settings
from tests.unit.commands import pages
from tools.wheels import read_entry_points

#: Of Nova and Placement, for what is asked here; tests/functional/test_typed.py has all.
KNOWN = {
    "pci": service_settings.PCI,
    "filter_scheduler": [cfg.MultiStrOpt("available_filters")],
}


@functools.cache
def entry_points() -> dict[tuple[str, ...], str]:
    """Words of a command -> where its class is."""
    points = read_entry_points()
    return {
        (first, *name.split("_")): place
        for group, first in (("nova_hpc.command", "nova-hpc"), ("openstack.hpc.v1", "openstack"))
        for name, place in points[group].items()
        # It takes all words below hpc, and refuses them.
        if name != "hpc"
    }


def parser_of(words: tuple[str, ...]) -> tuple[argparse.ArgumentParser, int]:
    """The parser of the longest command that these words begin with, and how many they are."""
    for count in range(len(words), 0, -1):
        if place := entry_points().get(words[:count]):
            module, _, name = place.partition(":")
            try:
                kind = getattr(importlib.import_module(module), name)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith("nova_hpc"):
                    raise
                pytest.skip(f"{error.name} is not installed here")
            parser = kind(None, None).get_parser(" ".join(words[:count]))
            parser.allow_abbrev = False
            return parser, count
    raise ValueError(f"there is no command {' '.join(words)}")


def is_named_only(parser: argparse.ArgumentParser, words: list[str]) -> bool:
    """Whether words name a command and options, and nothing that the command is done with."""
    values = {*words, *(word.partition("=")[2] for word in words)}
    loosen(parser)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        found, _ = parser.parse_known_args(words)
        given = [getattr(found, each.dest) for each in parser._get_positional_actions()]
        return not any(str(each) in values for each in given)
    return True


def loosen(parser: argparse.ArgumentParser) -> None:
    """Let what a sentence leaves out be left out."""
    for action in parser._actions:
        action.required = False
        if not action.option_strings and action.nargs is None:
            action.nargs = "?"
    for group in parser._mutually_exclusive_groups:
        group.required = False


def complete(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """A value for the option that ends a sentence's command, where it takes one."""
    action = parser._option_string_actions.get(words[-1]) if words else None
    if action is None or action.nargs in (0, "?", "*"):
        return words
    if action.choices:
        return [*words, str(next(iter(action.choices)))]
    for value in ("value", "1", *pages.PLACEHOLDERS.values()):
        try:
            if action.type is not None:
                action.type(value)
        except (argparse.ArgumentTypeError, ValueError, TypeError):
            continue
        return [*words, value]
    raise ValueError(f"no value for {words[-1]} is known here")


def refusal(typed: pages.Typed) -> str | None:
    """What the command itself says against a line of a page."""
    words = typed.words
    if words[0] == "nova-hpc":
        at = 1
        while at < len(words) and words[at].startswith("-"):
            at += 1
        if at > 1:
            NovaHpc().parser.parse_args(list(words[1:at]))
            words = (words[0], *words[at:])
    names = entry_points()
    if typed.inline and any(name[: len(words)] == words for name in names):
        return None  # It only names a command, or several that begin alike.
    if words[0] == "nova-hpc-guest":
        parse, rest = guest._parse_arguments, list(words[1:])
        if typed.inline and not rest:
            return None
    else:
        try:
            parser, count = parser_of(words)
        except ValueError as error:
            return str(error)
        parse, rest = parser.parse_args, list(words[count:])
        if typed.inline and is_named_only(parser, rest):
            rest = complete(parser, rest)
        else:
            parser, _ = parser_of(words)
            parse = parser.parse_args
    err = io.StringIO()
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            parse(rest)
    except SystemExit as end:
        if end.code:
            return err.getvalue().strip().splitlines()[-1]
    return None


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda path: str(path.relative_to(pages.TOP)))
def test_commands(page):
    wrong = {str(each): text for each in pages.commands(page) if (text := refusal(each))}
    assert wrong == {}


def test_that_commands_are_found():
    found = [each for page in pages.PAGES for each in pages.commands(page)]
    said = {each.text for each in found}
    assert len(found) > 250
    assert sum(not each.inline for each in found) > 80
    # Of a console, of a script with variables, in a sentence over two lines, of the client.
    for text in (
        "nova-hpc explain --flavor hpc.gpu4",
        "nova-hpc status upgrade check",
        "nova-hpc doctor --merge .",
        "openstack hpc cluster delete train",
    ):
        assert text in said, text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("``nova-hpc explain SERVER``", "unrecognized arguments"),
        ("``nova-hpc explain server``", "unrecognized arguments"),
        ("``nova-hpc explian``", "there is no command"),
        ("``nova-hpc explain --flav FLAVOR``", "unrecognized arguments"),
        ("``nova-hpc device quarantine ADDRESS``", "arguments are required: --reason"),
        ("::\n\n   nova-hpc simulate snapshot > cloud.json\n", "arguments are required: FILE"),
        ("::\n\n   nova-hpc explain\n", "is required"),
        ("::\n\n   nova-hpc device release --sinse 2h\n", "unrecognized arguments"),
        (
            ".. code-block:: console\n\n   $ nova-hpc capacity --flavor x --members many\n",
            "--members",
        ),
    ],
)
def test_mistakes_are_found(tmp_path, monkeypatch, text, why):
    monkeypatch.setattr(pages, "TOP", tmp_path)
    page = tmp_path / "page.rst"
    page.write_text(text)
    (typed,) = pages.commands(page)
    monkeypatch.undo()
    assert why in refusal(typed)


def test_words_in_capitals_are_placeholders(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "TOP", tmp_path)
    page = tmp_path / "page.rst"
    page.write_text("``nova-hpc explain --server MACHINE``")
    with pytest.raises(ValueError, match="MACHINE is no placeholder"):
        list(pages.commands(page))


def test_sample_files_of_the_simulation(tmp_path, capsys):
    """The two files of the page, with the command that stands below them."""
    page = pages.DOCS / "admin/simulate.rst"
    files = [each.text for each in pages.blocks(page) if each.text.startswith("name,")]
    for name, text in zip(("nodes.csv", "requests.csv"), files, strict=True):
        (tmp_path / name).write_text(text + "\n")
    (typed,) = (each for each in pages.commands(page) if "--nodes" in each.words)
    words = [str(tmp_path / each) if each.endswith(".csv") else each for each in typed.words[1:]]
    status = main([*words, "--seeds", "1", "--jobs", "1", "--policy", "nova-pack"])
    assert (status, capsys.readouterr().err) == (0, "")


def test_resource_classes_are_those_that_configure_writes():
    classes = {f"CUSTOM_HPC_{name.upper()}" for name in roles.parse_roles(DEFAULT_ROLES).names}
    for page in pages.PAGES:
        for block in pages.blocks(page):
            said = set(re.findall(r"(?:--resource |class:)(CUSTOM_\w+)", block.text))
            assert said <= classes, block


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    for path in (*pages.PAGES, *pages.MODULES):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install[^`\n]*['\" ]nova-hpc", text), path


def test_commands_that_the_code_names():
    """What programs print and what options say: each command's options are its own."""
    wrong = {
        str(each): unknown
        for path in pages.MODULES
        for each in pages.named(path)
        if (unknown := unknown_options(each.words))
    }
    assert wrong == {}
    assert sum(1 for path in pages.MODULES for _ in pages.named(path)) > 140


def unknown_options(words: tuple[str, ...]) -> list[str]:
    if not any(words[:count] in entry_points() for count in range(len(words), 1, -1)):
        return []  # "nova-hpc is ...", or several commands that begin alike
    parser, count = parser_of(words)
    known = parser._option_string_actions
    return [each for each in words[count:] if each.startswith("--") and each not in known]


def test_wrong_options_that_the_code_names_are_found():
    assert unknown_options(("nova-hpc", "device", "release", "--sinse")) == ["--sinse"]
    assert unknown_options(("nova-hpc", "device", "release", "--since")) == []


def test_the_lab_needs_as_much_memory_on_all_pages():
    said = {
        found
        for page in (pages.TOP / "README.rst", pages.DOCS / "user/lab.rst")
        for found in re.findall(r"Debian 12[^.]*?(\d+) GiB\s+of\s+memory", page.read_text())
    }
    assert said == {"12"}


def test_services_restart_in_one_order():
    """One page has the order, and every other one that restarts all of them refers to it."""
    order = "services-in-turn"
    (home,) = (page for page in pages.PAGES if f".. _{order}:" in page.read_text())
    assert home.name == "configure-node.rst"
    for name in ("adopt", "upgrade", "deployment-tools"):
        assert f":ref:`{order}`" in (pages.DOCS / f"admin/{name}.rst").read_text(), name
    assert "doc:`upgrade`" in (pages.DOCS / "admin/troubleshooting.rst").read_text()
    for page in pages.PAGES:
        assert "controllers first, then node by node" not in page.read_text(), page


@pytest.mark.parametrize(("where", "text"), pages.of_services())
def test_settings(tmp_path, where, text):
    assert pages.wrong_settings(text, tmp_path, KNOWN, {"hpc"}) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[filter_scheduler]\nweight_classes = a\nweight_classes = b", "is given 2 times"),
        ("[hpc]\nclean_stages = gpu:off", "[hpc]clean_stages is no option"),
        ("[hpc]\nlearn_flavor_weights = perhaps", "learn_flavor_weights"),
        ("[hpc]\nlog_interval = 1\nlog_interval = 2", "the last alone counts"),
    ],
)
def test_wrong_settings_are_found(tmp_path, text, why):
    (found,) = pages.wrong_settings(text, tmp_path, KNOWN, {"hpc"})
    assert why in found
