# SPDX-License-Identifier: Apache-2.0
"""What judges the style of the pages, on pages with and without each finding."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
LONG = " ".join(["word"] * 31)


@pytest.fixture(scope="module")
def style():
    spec = importlib.util.spec_from_file_location("style", TOP / "docs" / "style.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up.
    sys.modules["style"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["style"]


def judge(style, folder, **pages):
    source = folder / "docs" / "source"
    source.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (source / f"{name}.rst").write_text(text)
    return style.judge_pages(source)


@pytest.mark.parametrize(
    ("sentence", "rules"),
    [
        (LONG, ["long"]),
        (" ".join(["word"] * 30), []),
        ("Where no host fits, the server fails.", ["where"]),
        ("The server fails where there is no host.", ["where"]),
        ("The server fails, where one is busy, and only where it asks.", ["where", "where"]),
        ("The folder where it lies is shown.", []),
        ("It says where the server runs.", []),
        ("Nobody says it, and it comes back by itself.", ["actor", "actor"]),
        ("A keeper puts the bundle down.", ["glossary", "glossary"]),
        ("The bookkeeper comes.", []),
    ],
)
def test_a_sentence(style, sentence, rules):
    assert sorted(style.judge_sentence(sentence)) == sorted(rules)


def test_sentences_have_the_lines_of_the_file(style, tmp_path):
    text = (
        "=====\nTitle\n=====\n\nOne. Two,\nnobody. Three\n\n* ``where it is`` somebody.\n\n"
        ".. list-table::\n\n   * - cell\n     - anybody\n\n.. note::\n\n   Nobody, too.\n"
    )
    findings, size = judge(style, tmp_path, page=text)
    assert [(each.line, each.text) for each in findings] == [
        (5, "Two, nobody."),
        (8, "where it is somebody."),
        (13, "anybody"),
        (17, "Nobody, too."),
    ]
    assert str(findings[0]) == "docs/source/page.rst:5: actor: Two, nobody."
    assert (size["pages"], size["sentences"]) == (1, 7)


def test_code_and_links_are_no_text(style, tmp_path):
    literal = f"``{LONG}``"
    text = (
        f"=====\nTitle\n=====\n\nRead {literal} and :doc:`{LONG} </x>` or :ref:`x`.\n\n"
        f"::\n\n   nobody\n\n.. code-block:: ini\n   :caption: nobody\n\n   nobody\n\n"
        ".. toctree::\n\n   nobody\n\n.. comment nobody\n\n"
        ".. grid:: 1 1 2 2\n\n   .. grid-item-card:: Door\n      :link: nobody\n\n      Nobody.\n"
    )
    findings, _ = judge(style, tmp_path, page=text)
    # A link's own words are read, and so is what stands in a card.
    assert [each.rule for each in findings] == ["long", "actor"]
    assert findings[1].text == "Nobody."


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two.", 2),
        ("E.g. a thing, i.e. Nova, cf. Placement.", 1),
        ("Version 0.1.0 is out. (It is small.) And new.", 3),
        ("See ``a. B`` there.", 1),
        ("Ask: what? It says so!", 2),
        ("It is killed. nova-compute starts again, e.g. nova-api.", 2),
    ],
)
def test_where_a_sentence_ends(style, text, sentences):
    assert len(list(style.list_sentences(style.read_page(text, "page")))) == sentences


def test_a_directive_that_is_not_known_is_no_silence(style):
    with pytest.raises(ValueError, match=r"docs/style\.py"):
        style.read_page(".. made-up::\n\n   Nobody.\n", "page")
    with pytest.raises(ValueError, match=r"docs/style\.py"):
        style.read_page("A :made-up:`role`.\n", "page")


def test_two_pages_have_one_title(style, tmp_path):
    text = "=====\nTitle\n=====\n"
    findings, _ = judge(style, tmp_path, one=text, two=text)
    assert [(each.page, each.rule, each.text) for each in findings] == [
        ("two", "title", "Title (one)")
    ]


def test_counts_only_fall(style):
    bounds = {
        "size": {"words": 100},
        "deny": {"patterns": [r"\banew\b", '"']},
        "site": {"long": 4},
        "new": {"long": 2},
        "pages": {"old": {"long": 3, "where": 1}},
    }
    assert style.list_excesses({"old": {"long": 2, "where": 1}, "new": {"long": 2}}, bounds) == []
    assert style.list_excesses({"old": {"long": 4}}, bounds) == [("old", "long", 4, 3)]
    assert style.list_excesses({"new": {"long": 3, "actor": 1}}, bounds) == [
        ("new", "actor", 1, 0),
        ("new", "long", 3, 2),
    ]
    assert style.list_excesses({"old": {"long": 3}, "new": {"long": 2}}, bounds) == [
        ("", "long", 5, 4)
    ]
    lower = style.lower_bounds({"old": {"long": 2}, "worse": {"long": 9}}, bounds)
    assert lower == {
        "size": {"words": 100},
        "deny": {"patterns": [r"\banew\b", '"']},
        "site": {"long": 4},
        "new": {"long": 2},
        "pages": {"old": {"long": 2}, "worse": {"long": 2}},
    }
    assert tomllib.loads(style.write_bounds(lower)) == lower


def test_the_command(style, tmp_path, monkeypatch, capsys):
    source = tmp_path / "docs" / "source"
    judge(style, tmp_path, page="=\nA\n=\n\nNobody. Nobody.\n")
    monkeypatch.setattr(style, "SOURCE", source)
    monkeypatch.setattr(style, "BOUNDS", tmp_path / "style.toml")
    size = "[size]\nwords = 3\n[deny]\npatterns = []\n"
    style.BOUNDS.write_text(f"{size}[site]\nactor = 3\n[new]\n[pages]\npage = {{actor = 1}}\n")
    assert style.main([]) == 1
    out = capsys.readouterr().out
    assert "page: actor: 2, and at most 1" in out
    assert "  docs/source/page.rst:5: actor: Nobody." in out
    assert style.main(["docs/source/page.rst"]) == 0
    assert capsys.readouterr().out.count("docs/source/page.rst:5: actor") == 2
    assert style.main(["none"]) == 2
    (source / "page.rst").write_text("=\nA\n=\n\nAll is well.\n")
    assert style.main(["--lower"]) == 0
    assert tomllib.loads(style.BOUNDS.read_text())["site"] == {"actor": 0}
    assert style.main(["page"]) == 0
    assert capsys.readouterr().out.endswith("page: nothing\n")
    (source / "page.rst").write_text("=\nA\n=\n\nAll is well here.\n")
    assert style.main([]) == 1
    assert "4 words, and at most 3: shorten or remove a page" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sentence", "denied"),
    [
        ("The devices of which the node knows nothing.", True),
        ("What is no longer there is in no list.", True),
        ("What helps", False),
        ("It starts anew.", True),
        ("Missing devices are not in the list.", False),
    ],
)
def test_a_dialect_is_denied(style, sentence, denied):
    assert ("deny" in style.judge_sentence(sentence)) is denied
