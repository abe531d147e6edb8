# SPDX-License-Identifier: Apache-2.0
"""The check of comments, docstrings and messages, on sources with and without each finding."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
CLEAN = '"""Devices of a node; None if the driver reports none."""\n\nvalue = 1\n'


@pytest.fixture(scope="module")
def english():
    spec = importlib.util.spec_from_file_location("english", TOP / "tools" / "english.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up.
    sys.modules["english"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["english"]


def write_room(top, source, room="nova_hpc/topology"):
    (top / room).mkdir(parents=True, exist_ok=True)
    (top / "tools").mkdir(exist_ok=True)
    (top / room / "module.py").write_text(source)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("Returns what the driver found.", ["what"]),
        ("Returns what\nthe driver found.", ["what"]),
        ("What is gone stays out.", ["clause", "what"]),
        ("A reset. Whoever has it\nwaits.", ["clause", "person"]),
        ("What is it?", ["what"]),
        ("The file says nothing and the option tells it.", ["speaking", "speaking"]),
        ("An unknown or well-known name, of what kind.", []),
        ("Nobody and somebody.", ["person", "person"]),
        ("The key ``what is`` and ``nobody``.", []),
        ("The driver reports the devices; None if it has none.", []),
    ],
)
def test_a_text(english, text, rules):
    assert sorted(rule for _, rule, _ in english.judge_text(text)) == sorted(rules)


def test_findings_have_the_lines_of_the_file(english, tmp_path):
    source = (
        '# SPDX-License-Identifier: nobody\n"""Title.\n\nA file\nsays it."""\n\n'
        '#: A comment of what\n#: is there.\ntext = "nobody"  # Nobody\n'
        '# reads it.\n\n\ndef run():\n    """A set.\n\n    Whoever\n    reads it.\n    """\n'
    )
    write_room(tmp_path, source)
    room = english.judge_rooms(tmp_path)["nova_hpc/topology"]
    assert sorted((each.line, each.rule, each.text) for each in room.findings) == [
        (5, "speaking", "says it."),
        (7, "what", "what is there."),
        (9, "person", "Nobody reads it."),
        (16, "clause", "Whoever reads it."),
        (16, "person", "Whoever reads it."),
    ]
    # A line with a comment beside its code counts as text, and the line of the licence as code.
    assert (room.text_lines, room.code_lines) == (10, 2)


def test_messages_are_a_part_of_their_own(english, tmp_path):
    source = (
        '"""Nobody reads it."""\n\n\ndef run(name):\n    """Nobody reads it."""\n'
        '    LOG.info(\n        "The file says "\n'
        '        "what is there: %s",\n        name,\n    )\n'
        '    raise ValueError(f"Who asks {name!r} is nobody")\n\n\n'
        'keys = ["says what", "nobody"]\nhelp = "One what in three words"\n'
    )
    write_room(tmp_path, source)
    rooms = english.judge_rooms(tmp_path)
    assert [finding.rule for finding in rooms["nova_hpc/topology"].findings] == ["person"] * 2
    messages = rooms["messages nova_hpc/topology"]
    assert sorted((each.line, each.rule, each.text) for each in messages.findings) == [
        (7, "speaking", "says what is there: %s"),
        (7, "what", "what is there: %s"),
        (11, "clause", "Who asks _ is nobody"),
        (11, "person", "nobody"),
        (11, "speaking", "asks _ is nobody"),
        (15, "what", "what in three words"),
    ]
    assert messages.words == 7 + 5 + 5
    (tmp_path / english.BOUNDS).write_text(
        "new = { what = 99.0, speaking = 999.0, person = 999.0, clause = 999.0 }\n"
    )
    assert english.main([], top=tmp_path) == 1


def test_rooms_are_folders(english, tmp_path):
    for room in ("nova_hpc/wire", "nova_hpc/wire/deep", "nova_hpc", "lab/nova_hpc_lab"):
        write_room(tmp_path, CLEAN, room)
    assert {name: room.words for name, room in english.judge_rooms(tmp_path).items()} == {
        "lab": 10,
        "nova_hpc": 10,
        "nova_hpc/wire": 20,
    }


def test_a_rise_fails_with_file_and_line(english, tmp_path, capsys):
    write_room(tmp_path, CLEAN)
    bounds = tmp_path / "tools" / "english.toml"
    bounds.write_text("new = { what = 0.0, speaking = 0.0, person = 0.0, clause = 0.0 }\n")
    assert english.main([], top=tmp_path) == 0
    write_room(tmp_path, f"{CLEAN}# Nobody reads it.\n")
    assert english.main([], top=tmp_path) == 1
    out = capsys.readouterr().out
    assert "nova_hpc/topology: person: 77.0 per 1,000 words, at most 0.0" in out
    assert "  nova_hpc/topology/module.py:4: person: Nobody reads it." in out
    assert english.main(["nova_hpc/topology/"], top=tmp_path) == 0
    assert "nova_hpc/topology/module.py:4: person" in capsys.readouterr().out
    assert english.main(["nova_hpc/none"], top=tmp_path) == 2


def test_bounds_only_fall(english, tmp_path):
    write_room(tmp_path, f"{CLEAN}# Nobody reads what is there.\n")
    bounds = tmp_path / "tools" / "english.toml"
    bounds.write_text(
        "new = { what = 1.0, speaking = 3.0, person = 0.3, clause = 0.1 }\n"
        '"nova_hpc/topology" = { what = 99.0, speaking = 9.0, person = 5.0, clause = 0.0 }\n'
    )
    assert english.main(["--lower"], top=tmp_path) == 1
    assert tomllib.loads(bounds.read_text()) == {
        "new": {"what": 1.0, "speaking": 3.0, "person": 0.3, "clause": 0.1},
        "nova_hpc/topology": {"what": 66.7, "speaking": 0.0, "person": 5.0, "clause": 0.0},
    }


def test_every_room_is_in_the_file(english, monkeypatch):
    def find_words(path, top, room, messages):
        # The job lint judges all of them, which takes much longer.
        source = path.read_text(encoding="utf-8")
        room.words = room.words or any(english.list_texts(source))
        messages.words = messages.words or any(english.list_messages(source))

    monkeypatch.setattr(english, "judge_file", find_words)
    bounds = tomllib.loads((TOP / english.BOUNDS).read_text())
    assert sorted(bounds) == sorted([*english.judge_rooms(TOP), "new"])
