# SPDX-License-Identifier: Apache-2.0
"""What the pages for contributors and the rules name is there."""

import importlib
import re
from pathlib import Path

import pytest

from tools.wheels import list_production_folders, read_entry_points, read_package_roots

TOP = Path(__file__).resolve().parents[3]
PAGES = [
    *sorted((TOP / "docs" / "source" / "contributor").glob("*.rst")),
    *(TOP / name for name in ("README.rst", "CONTRIBUTING.rst", "HACKING.rst")),
]
PACKAGES = read_package_roots()
_NAMES = "|".join(PACKAGES)
_PATH = re.compile(
    rf"``((?:{_NAMES}|extras|lab|tests|tools|docs|benchmarks|devstack|etc)/[\w./-]*)``"
)
_MODULE = re.compile(rf"``((?:{_NAMES})(?:\.\w+)+)``")


def _exists(dotted):
    """Whether the name is a module, stands in one, or is a group of entry points."""
    if dotted in read_entry_points():
        return True
    parts = dotted.split(".")
    top = PACKAGES[parts[0]]
    for length in range(len(parts), 0, -1):
        path = top.joinpath(*parts[:length])
        file = (
            path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        )
        if file.is_file():
            rest = parts[length:]
            text = file.read_text()
            return not rest or re.search(rf"^\s*(class |def )?{rest[0]}\b", text, re.M) is not None
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_are_there(page):
    text = page.read_text()
    missing = {each for each in _PATH.findall(text) if not (TOP / each).exists()}
    missing |= {each for each in _MODULE.findall(text) if not _exists(each)}
    # What the build makes is no file of the tree.
    assert sorted(each for each in missing if "generated" not in each) == []


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("admin/troubleshooting.rst", 25),
        ("admin/infiniband-partitions.rst", 18),
        ("user/infiniband-networks.rst", 8),
    ],
)
def test_texts_that_a_page_on_trouble_quotes_are_said(page, least):
    """Each quoted message is in the code, word by word between what differs."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for package in list_production_folders()
        for path in sorted((TOP / package).rglob("*.py"))
    )
    library = sorted((TOP / "shm/src").glob("*.c"))
    code += "\n".join(path.read_text(encoding="utf-8") for path in library)
    # Texts that are written in several pieces.
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    text = (TOP / "docs/source" / page).read_text(encoding="utf-8")
    quoted = re.findall(r"^(?:   \* - |\* )?``([^`]+)``$", text, re.M)
    assert len(quoted) > least
    pieces = [piece.strip() for said in quoted for piece in said.split("...")]
    missing = [each for each in pieces if len(each) > 3 and each not in code]
    assert missing == []


@pytest.fixture
def measured(monkeypatch):
    """docs/measured.py, which writes figures of benchmarks into a page."""
    monkeypatch.syspath_prepend(TOP / "docs")
    return importlib.import_module("measured")


def test_figures_of_the_readme_are_those_of_the_record(measured):
    day = measured.read_replay()
    servers, hosts = (int(day[name]["ours"]) for name in ("servers asked for", "hosts"))
    pairs, apart = day["pairs at the end"], day["of these over two switches"]
    assert (pairs["ours"], apart["ours"]) == (pairs["stock"], "0")
    text = " ".join((TOP / "README.rst").read_text(encoding="utf-8").split())
    assert f"(one seed) of {servers:,} servers on {hosts} hosts, {apart['stock']} of" in text
    assert f"{apart['stock']} of {pairs['stock']} pairs of GPUs lay over two switches" in text


def test_the_table_of_figures_follows_the_records(measured, tmp_path, monkeypatch):
    table = measured.write_table()
    answer = measured.read_answers()["10000"]
    assert (
        f"- 10,000 hosts, {answer['samples']} samples\n     - {float(answer['ours, s']):.1f} s"
        in table
    )
    text = measured.REPLAY.read_text(encoding="utf-8")
    claims = measured.read_replay()["claims that Placement turned down"]["stock"]
    assert f"- {int(claims):,}\n" in table
    changed = tmp_path / "RESULTS.rst"
    monkeypatch.setattr(measured, "REPLAY", changed)
    changed.write_text(text.replace(f'turned down",{claims}', 'turned down",1234'))
    assert f"- {int(claims):,}\n" not in measured.write_table()
    assert "- 1,234\n" in measured.write_table()
    changed.write_text(text.replace("turned down", "refused"))
    with pytest.raises(KeyError):
        measured.write_table()
