# SPDX-License-Identifier: Apache-2.0
"""The one rule for versions."""

from __future__ import annotations

import json

import pytest

from nova_hpc_common.wire.version import LaterError, WireDocument, WireError, show_json_value
from nova_hpc_guest import document as guest

#: As in the release that introduces version 3: it reads it and writes the one before.
FIRST = WireDocument("thing", "here", "", version=2, reads=(1, 2, 3), cure="make it again")
NO_VERSIONS = {
    "true": "true",
    "1.0": "1.0",
    '"1"': '"1"',
    "null": "null",
    "[1]": "[1]",
    "{}": "{}",
    "0": "0",
    "-1": "-1",
}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_version_before_and_the_one_after(version: int) -> None:
    text = json.dumps({"version": version, "more": 1})
    assert FIRST.load(text) == {"version": version, "more": 1}


def test_what_is_later_is_left_alone() -> None:
    with pytest.raises(LaterError) as error:
        FIRST.load('{"version": 4}')
    assert error.value.version == 4
    assert "version 4, which is newer than" in str(error.value)
    assert str(error.value).endswith("can read, 1, 2, 3: update nova-hpc")


@pytest.mark.parametrize("version", NO_VERSIONS)
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(WireError, match="make it again") as error:
        FIRST.load(f'{{"version": {version}}}')
    assert not isinstance(error.value, LaterError)
    assert f"version {NO_VERSIONS[version]}, and" in str(error.value)


@pytest.mark.parametrize("version", [*NO_VERSIONS, "2"])
def test_the_command_in_the_guest_has_the_same_rule(version: str) -> None:
    text = f'{{"schema": "nova-hpc/guest", "version": {version}, "topology": "flat"}}'
    with pytest.raises(guest.DocumentError, match="has version"):
        guest.parse_guest_document(text.encode())


def test_a_version_that_is_not_said() -> None:
    silent = WireDocument("thing", "here", "", absent=1)
    assert silent.load("{}") == {}
    with pytest.raises(WireError):
        silent.load('{"version": null}')
    with pytest.raises(WireError, match="version null"):
        FIRST.load("{}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is no text"),
        (b"{}", "is no text"),
        ("x" * 41, "is no text of at most 40 characters"),
        ("", "is not JSON"),
        ("[" * 40, "is not JSON"),
        ("[]", "is no JSON object"),
    ],
)
def test_what_is_broken(text: object, words: str) -> None:
    short = WireDocument("thing", "here", "", limit=20, longest=40)
    with pytest.raises(WireError, match=f"the thing {words}"):
        short.load(text)


def test_a_text_that_is_nested_as_deep_as_it_can_be_read() -> None:
    """What the reader of JSON just takes, its writer may not: neither is an error of ours."""
    for depth in range(900, 1100):
        with pytest.raises(WireError):
            FIRST.load(f'{{"version": {"[" * depth}{"]" * depth}}}')


def test_values_in_messages_are_short_and_plain() -> None:
    assert show_json_value("\x1b[2J\u00fc") == '"\\u001b[2J\\u00fc"'
    assert len(show_json_value("x" * 1000)) == 60
