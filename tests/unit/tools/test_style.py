# SPDX-License-Identifier: Apache-2.0
"""What judges the style of the pages, on pages with and without each finding, and the site."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
LONG = " ".join(["word"] * 31)


@pytest.fixture(scope="module")
def style():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOP / "docs")
        spec = importlib.util.spec_from_file_location("style", TOP / "docs" / "style.py")
        module = importlib.util.module_from_spec(spec)
        # dataclasses look their module up.
        patch.setitem(sys.modules, "style", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def site(style):
    """The doctrees of all pages."""
    return style.read_pages(style.SOURCE)


@pytest.fixture(scope="module")
def bounds(style):
    return tomllib.loads(style.BOUNDS.read_text(encoding="utf-8"))


def read(style, folder, **pages):
    source = folder / "docs" / "source"
    source.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        file = source.joinpath(*name.split("__")).with_suffix(".rst")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return style.read_pages(source)


def judge(style, folder, **pages):
    return style.judge_pages(read(style, folder, **pages))


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
        "links": {"clicks": 2, "readers": ["user"], "directly": {"index": ["user/one"]}},
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
        "links": bounds["links"],
        "site": {"long": 4},
        "new": {"long": 2},
        "pages": {"old": {"long": 2}, "worse": {"long": 2}},
    }
    assert tomllib.loads(style.write_bounds(lower)) == lower


def test_the_command(style, tmp_path, monkeypatch, capsys):
    source = tmp_path / "docs" / "source"
    judge(style, tmp_path, index="=\nA\n=\n\nNobody. Nobody.\n")
    monkeypatch.setattr(style, "SOURCE", source)
    monkeypatch.setattr(style, "BOUNDS", tmp_path / "style.toml")
    size = "[size]\nwords = 3\n[deny]\npatterns = []\n"
    size += "[links]\nclicks = 2\nreaders = []\n[links.directly]\n"
    style.BOUNDS.write_text(f"{size}[site]\nactor = 3\n[new]\n[pages]\nindex = {{actor = 1}}\n")
    assert style.main([]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^words +2$", out, re.M)
    assert re.search(r"^pages in reach +1$", out, re.M)
    assert "index: actor: 2, and at most 1" in out
    assert "  docs/source/index.rst:5: actor: Nobody." in out
    assert style.main(["docs/source/index.rst"]) == 0
    assert capsys.readouterr().out.count("docs/source/index.rst:5: actor") == 2
    assert style.main(["none"]) == 2
    (source / "index.rst").write_text("=\nA\n=\n\nAll is well.\n")
    assert style.main(["--lower"]) == 0
    assert tomllib.loads(style.BOUNDS.read_text())["site"] == {"actor": 0}
    assert style.main(["index"]) == 0
    assert capsys.readouterr().out.endswith("index: nothing\n")
    (source / "index.rst").write_text("=\nA\n=\n\nAll is well here.\n")
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


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It takes 0.5 s.", 1),
        ("Some 3 % and 12 percent are lost.", 2),
        ("Copies reach 6.9 GB/s, five times as much.", 2),
        ("Of 25 pairs, 23 of 25 are whole.", 1),
        ("Seven of the ten lost.", 1),
        ("Measured with 320 members, at most.", 1),
        ("Measured on hardware.", 0),
        ("It looks every 15 seconds, and waits up to 5 s.", 0),
        ("The time ``[hpc]clean_timeout`` (300 s) is a limit; 90 seconds by default.", 0),
        ("Nova 34 has ``5 s`` in 2 files.", 0),
        ("A flavor of 4 GPUs and 16 GiB.", 0),
    ],
)
def test_measured_figures(style, tmp_path, text, count):
    findings, size = judge(style, tmp_path, user__page=f"{text}\n")
    assert (size["figures"], len(findings)) == (count, count)
    assert {each.rule for each in findings} <= {"figure"}


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (":doc:`/contributor/benchmarks`", True),
        (":doc:`the record </contributor/benchmarks>`", True),
        (":doc:`/user/other`", False),
        (":ref:`of-a-record`", True),
        (":ref:`of-a-user`", False),
        ("``benchmarks/replay``", True),
        ("``benchmarks/none``", False),
        ("``python -m benchmarks.replay``", True),
        ("``python -m benchmarks.none``", False),
        (":file:`tests/unit/tools/test_style.py`", True),
        ("`A paper <https://doi.org/10.1145/2731186.2731194>`__", True),
    ],
)
def test_records(style, tmp_path, record, named):
    """The record is in the paragraph, or for a cell in the paragraph before its table."""
    others = {
        "contributor__benchmarks": ".. _of-a-record:\n\n=\nA\n=\n",
        "user__other": ".. _of-a-user:\n\n=\nB\n=\n",
    }
    table = ".. list-table::\n   :header-rows: 1\n\n   * - At 50 %\n   * - 0.5 s\n"
    for text in (f"It takes 0.5 s ({record}).\n", f"Measured ({record}):\n\n{table}"):
        findings, _ = judge(style, tmp_path, user__page=text, **others)
        assert [each.rule for each in findings] == ([] if named else ["figure"])
    findings, _ = judge(style, tmp_path, user__page=f"It takes 0.5 s.\n\nSee {record}.\n")
    assert [each.rule for each in findings if each.page == "user/page"] == ["figure"]


def test_links_from_the_start_page(style, tmp_path):
    rules = {"clicks": 1, "readers": ["user"], "directly": {"index": ["user/one", "user/two"]}}
    documents = read(
        style,
        tmp_path,
        index=":doc:`user/one`\n\n.. toctree::\n   :hidden:\n\n   user/alone\n",
        user__one=":ref:`there`; :doc:`its words </contributor/plan>`\n",
        user__two=".. _there:\n\n=\nB\n=\n",
        user__alone=":doc:`two`\n",
        contributor__plan=".. toctree::\n\n   next\n",
        contributor__next="Next.\n",
    )
    findings, reached = style.judge_links(documents, rules)
    assert reached == 5
    assert [(each.page, each.text) for each in findings] == [
        ("user/alone", "the start page does not lead here"),
        ("user/two", "2 clicks from the start page, and at most 1"),
        ("index", "no link to user/two"),
    ]


def test_the_start_page_leads_to_all_pages(style, site, bounds):
    findings, reached = style.judge_links(site, bounds["links"])
    assert (findings, reached) == ([], len(site))


def test_a_link_that_is_gone_from_the_start_page_is_missed(style, site, bounds):
    text = (style.SOURCE / "index.rst").read_text(encoding="utf-8")
    for target in bounds["links"]["directly"]["index"]:
        without, count = re.subn(rf"<{target}>`", "<glossary>`", text)
        assert count == 1, target
        start = style.read_page(without, "docs/source/index.rst")
        findings, _ = style.judge_links({**site, "index": start}, bounds["links"])
        assert f"no link to {target}" in [each.text for each in findings]


def test_figures_of_the_readme(style):
    readme = (TOP / "README.rst").read_text(encoding="utf-8")
    findings, size = style.judge_pages({"README": style.read_page(readme, "README.rst")})
    assert size["figures"] > 0
    assert [each for each in findings if each.rule == "figure"] == []
