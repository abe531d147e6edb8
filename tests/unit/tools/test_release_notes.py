# SPDX-License-Identifier: Apache-2.0
"""The page of release notes, and what the notes are like."""

import importlib.util
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).resolve().parents[3]
NOTES = TOP / "releasenotes" / "notes"


@pytest.fixture(scope="module")
def release_notes():
    spec = importlib.util.spec_from_file_location("notes_page", TOP / "docs/release_notes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_item_of_each_note_is_on_the_page(release_notes):
    notes = {path.name: path.read_text(encoding="utf-8") for path in NOTES.glob("*.yaml")}
    page = release_notes.format_notes(notes).split()
    assert len(notes) >= 1
    text = " ".join(page)
    for note in notes.values():
        for key, items in yaml.safe_load(note).items():
            for item in [items] if key == "prelude" else items:
                assert " ".join(item.split()) in text


def test_releases_stand_in_their_order_below_what_comes_next(release_notes):
    page = release_notes.format_notes(
        {
            "release-0.9.0-0123456789abcdef.yaml": "prelude: old",
            "release-0.10.0-0123456789abcdef.yaml": "prelude: new",
            "one-thing-0123456789abcdef.yaml": "fixes: ['a\n\n  b']",
        }
    )
    lines = [line for line in page.split("\n") if line]
    assert lines == [
        *("Not released yet", "=" * 16, "What was mended", "-" * 15, "* a", "  b"),
        *("0.10.0", "======", "new", "0.9.0", "=====", "old"),
    ]


def test_a_section_that_is_none_is_refused(release_notes):
    with pytest.raises(ValueError, match="no section of release notes: feature"):
        release_notes.format_notes({"a-0123456789abcdef.yaml": "feature: [a]"})


def test_a_release_has_one_note():
    names = sorted(path.name.split("-")[1] for path in NOTES.glob("release-*.yaml"))
    assert len(names) == len(set(names)) >= 1
