# SPDX-License-Identifier: Apache-2.0
"""The picture of a terminal is drawn from the recording of a real run; the readme shows it."""

import importlib.util
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def terminal():
    spec = importlib.util.spec_from_file_location("terminal", TOP / "docs/terminal_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _words_of(drawn):
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", drawn)
    return " ".join(texts).replace("&#160;", " ").replace("&#x27;", "'").split()


def test_pictures_show_what_was_recorded(terminal):
    for path, drawn in terminal.draw_all().items():
        kept = path.read_text(encoding="utf-8")
        assert _words_of(kept) == _words_of(drawn)
        assert "finds what the cloud promised" in " ".join(_words_of(kept))
        # Neither fonts nor anything else comes from a network.
        assert "url(http" not in kept
        assert "@font-face" not in kept


def test_a_line_that_was_written_over_is_the_last(terminal):
    recording = "Script started on x\n\x1b[2Kone\rtwo\r\n\x1b[1mb\x1b[0m\r\nScript done on x\n"
    assert terminal.read_lines(recording) == "two\n\x1b[1mb\x1b[0m"
    drawn = terminal.draw_terminal("zero\nfirst\nEnd of it\nlast", "t", "fir", "End")
    assert _words_of(drawn) == ["t", "first"]


def test_the_picture_of_the_lab_begins_with_the_accounts(terminal):
    """They are lines of the recording that follow each other, and no other line comes first."""
    recording = (terminal.HERE / "recordings/lab-demo.ansi").read_text(encoding="utf-8")
    recorded = re.sub(r"\x1b\[[0-9;]*m", "", terminal.read_lines(recording)).split()
    (drawn,) = terminal.draw_all().values()
    words = _words_of(drawn)
    title = terminal.RECORDINGS["lab-demo.ansi"][1].split()
    assert words[: len(title) + 4] == [*title, "Server", "hpc-demo", "on", "node"]
    shown = words[len(title) :]
    start = recorded.index("Server")
    assert recorded[start : start + len(shown)] == shown
    assert "The guest reports" in " ".join(shown)


def test_pictures_of_the_readme_are_there():
    names = re.findall(r"^\.\. image:: (\S+)$", (TOP / "README.rst").read_text(), re.M)
    assert len(names) == 2
    assert [name for name in names if not (TOP / name).is_file()] == []
