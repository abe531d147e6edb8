# SPDX-License-Identifier: Apache-2.0
"""Each link inside the built pages, and each page that the code names, leads somewhere."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from lxml import html

from nova_hpc_tools.site import findings
from tools.wheels import list_production_folders

TOP = Path(__file__).resolve().parents[2]
PACKAGES = (*list_production_folders(), "lab/nova_hpc_lab")
#: A page of the site in a text of the code.
_PAGE = re.compile(r"\b(?:about|admin|cli|configuration|contributor|install|user)/[\w/.-]+\.html")
_SOURCE = re.compile(r"\bdocs/source/[\w/.-]+\.rst\b")


@functools.cache
def read_page(path: Path) -> html.HtmlElement:
    return html.fromstring(path.read_bytes())


@functools.cache
def list_anchors(path: Path) -> frozenset[str]:
    return frozenset(read_page(path).xpath("//@id | //a/@name"))


def broken_links(site: Path, page: Path) -> Iterator[str]:
    """The links of a page inside the site that lead to no file, or to no place in it."""
    for link in read_page(page).xpath("//@href | //@src"):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_relative_to(site) or not target.is_file():
            yield f"{link}: no such file"
        elif (
            parts.fragment
            and target.suffix == ".html"
            and unquote(parts.fragment) not in list_anchors(target)
        ):
            yield f"{link}: no such place"


def texts_of_the_code() -> Iterator[tuple[Path, str]]:
    for package in PACKAGES:
        for path in sorted((TOP / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield path, node.value


def test_links_inside_the_site(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    wrong = {str(page.relative_to(site)): [*broken_links(site, page)] for page in pages}
    assert {page: links for page, links in wrong.items() if links} == {}


@pytest.mark.parametrize(
    ("link", "count"),
    [
        ("one.html", 0),
        ("one.html#here", 0),
        ("#here", 0),
        ("https://example.org/none", 0),
        ("mailto:a@example.org", 0),
        ("two.html", 1),
        ("one.html#there", 1),
        ("../one.html", 1),
    ],
)
def test_broken_links_are_noticed(tmp_path, link, count):
    site = tmp_path / "site"
    site.mkdir()
    page = site / "one.html"
    page.write_text(f'<html><body id="here"><a href="{link}">x</a></body></html>')
    (tmp_path / "one.html").touch()
    assert len([*broken_links(site, page)]) == count


def test_side_bars(site):
    """Tenants' pages name no page of operators there; operators' pages name those of tenants."""
    linked = {
        page.relative_to(site).with_suffix("").as_posix(): {
            target.relative_to(site).with_suffix("").as_posix()
            for link in read_page(page).xpath("//*[contains(@class, 'sidebar-tree')]//a/@href")
            if (target := (page.parent / urlsplit(link).path).resolve()).suffix == ".html"
        }
        for page in sorted(site.rglob("*.html"))
    }
    tenants = {name for name in linked if name.startswith("user/") and "lab" not in name}
    tenants |= {"cli/cluster", "cli/gpu"}
    assert len(tenants) > 15
    for name in tenants:
        others = {each.partition("/")[0] for each in linked[name] - {name, *tenants}}
        assert (name, others) == (name, {"about", "user"})
        assert linked[name] >= tenants - {name}
    assert {"user/clusters", "admin/adopt", "contributor/index"} <= linked["admin/doctor"]
    assert "admin/adopt" in linked["user/lab"]


def test_places_that_findings_name(site):
    """What doctor prints behind each finding, for all of its checks."""
    known = list_anchors(site / findings.PAGE)
    anchors = [findings.DoctorFinding(name, "", "").anchor for name in findings.CHECKS]
    assert len(anchors) > 20
    assert [each for each in anchors if each.removeprefix(f"{findings.PAGE}#") not in known] == []


def test_pages_that_the_code_names(site):
    wrong = []
    for path, text in texts_of_the_code():
        wrong += [f"{path}: {page}" for page in _PAGE.findall(text) if not (site / page).is_file()]
        wrong += [f"{path}: {page}" for page in _SOURCE.findall(text) if not (TOP / page).is_file()]
    assert wrong == []


@pytest.mark.parametrize(
    "name", ["README.rst", "CONTRIBUTING.rst", "HACKING.rst", "lab/README.rst"]
)
def test_pages_that_a_readme_names(name):
    text = (TOP / name).read_text(encoding="utf-8")
    assert [page for page in _SOURCE.findall(text) if not (TOP / page).is_file()] == []


def test_no_page_has_a_table_of_its_own_contents(site):
    """The theme has one beside each page, and prints an error in place of another."""
    own = [path for path in site.rglob("*.html") if read_page(path).find_class("contents")]
    assert [str(path.relative_to(site)) for path in own] == []
