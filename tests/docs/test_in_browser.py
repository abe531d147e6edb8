# SPDX-License-Identifier: Apache-2.0
"""The built pages as a browser shows them: wide and narrow, light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from lxml import html

from tests.browser import needs_chromium, run_browser

pytestmark = needs_chromium

WIDE, NARROW = 1280, 500
#: Captions of the start page's sections, which the sidebar of each page has; tenants' pages have
#: those of tenants.
SECTIONS = [
    *("What it is", "Try it", "Adopt it", "Use it", "Operate it", "Reference", "Contribute"),
]
TENANTS = ["What it is", "Try it", "Use it"]
#: Pages -> texts that they have, and how many elements of a class at least.
PAGES: dict[str, tuple[list[str], dict[str, int]]] = {
    "index": (
        ["openstack server create --flavor hpc.gpu4", "What it is", "Replace a GPU"],
        {"sd-card": 6, "picture": 1},
    ),
    "admin/adopt": (["nova-hpc configure", "nova-hpc doctor"], {"copybtn": 5}),
    "user/flavors": (["hpc:affinity", "hpc:group"], {"copybtn": 3}),
    "user/flavor-keys": (["hpc:affinity", "hpc:group", "hpc:fabric"], {"table-wrapper": 2}),
    "user/life-cycle": (
        ["Hard reboot", "Cold migration", "Shelve", "Live migration"],
        {"table-wrapper": 1},
    ),
}
#: Opens one page after the other in a frame of some width, and writes down what it sees.
_WALK = """<!doctype html><meta charset="utf-8"><body><pre id="seen"></pre><script>
const views = %s, seen = [];
const frame = document.createElement("iframe");
frame.style.cssText = "height:900px;border:0";
frame.onload = () => {
  const view = views.shift(), root = frame.contentDocument.documentElement;
  view.seen_width = root.clientWidth;
  view.beyond = root.scrollWidth - root.clientWidth;
  view.ground = frame.contentWindow.getComputedStyle(frame.contentDocument.body).backgroundColor;
  view.text = view.keep ? root.outerHTML : "";
  seen.push(view);
  if (views.length) next(); else document.getElementById("seen").textContent = JSON.stringify(seen);
};
const next = () => { frame.style.width = views[0].width + "px"; frame.src = views[0].page; };
next();
document.body.append(frame);
</script></body>"""
_TOO_WIDE = "<!doctype html><body><div style='width:900px'>wide</div></body>"


def walk(folder: Path, views: Sequence[Mapping[str, Any]], *, dark: bool) -> list[dict[str, Any]]:
    """What a browser sees of pages, one after the other; its scripts have run."""
    page = folder / "walk.html"
    page.write_text(_WALK % json.dumps(views))
    said = run_browser(
        folder,
        # The frame's pages are files, and a file may look into another one here alone.
        *("--allow-file-access-from-files", "--disable-web-security", "--window-size=1400,1000"),
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *("--dump-dom", page.as_uri()),
    )
    seen: list[dict[str, Any]] = json.loads(html.fromstring(said).get_element_by_id("seen").text)
    assert len(seen) == len(views)
    return seen


@pytest.fixture(scope="module")
def views(site, tmp_path_factory):
    """The pages that are looked at, by name, width and whether they are dark."""
    looked = [
        {"name": name, "page": (site / f"{name}.html").as_uri(), "width": width, "keep": True}
        for name in PAGES
        for width in (WIDE, NARROW)
    ]
    return {
        (view["name"], view["width"], dark): view
        for dark in (False, True)
        for view in walk(tmp_path_factory.mktemp("walk"), looked, dark=dark)
    }


def count(page: html.HtmlElement, name: str) -> int:
    """How many elements of a page's text have this class."""
    return len(page.xpath(f"//article//*[contains(concat(' ', @class, ' '), ' {name} ')]"))


def text_of(page: html.HtmlElement) -> str:
    return " ".join(page.xpath("string(//article)").split())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", PAGES)
def test_a_page(views, name, width, dark):
    view = views[name, width, dark]
    texts, least = PAGES[name]
    assert (view["seen_width"], view["beyond"]) == (width, 0)
    red, green, blue = map(int, re.findall(r"\d+", view["ground"])[:3])
    assert max(red, green, blue) < 64 if dark else min(red, green, blue) > 224
    page = html.fromstring(view["text"])
    said = text_of(page)
    assert [text for text in texts if text not in said] == []
    assert {kind: count(page, kind) >= n for kind, n in least.items()} == dict.fromkeys(least, True)
    # Whatever is typed can be copied, and each table scrolls in a frame of its own.
    assert count(page, "copybtn") == len(page.xpath("//article//div[@class='highlight']/pre"))
    assert page.xpath("//article//table[not(ancestor::*[contains(@class, 'wrapper')])]") == []
    captions = page.xpath("//*[contains(@class, 'sidebar-tree')]//*[@class='caption-text']/text()")
    assert captions == (TENANTS if name.startswith("user/") else SECTIONS)


def test_no_page_is_wider_than_a_telephone(site, tmp_path):
    wide = tmp_path / "wide.html"
    wide.write_text(_TOO_WIDE)
    pages = [path.as_uri() for path in (*sorted(site.rglob("*.html")), wide)]
    seen = walk(tmp_path, [{"page": page, "width": NARROW} for page in pages], dark=False)
    assert {view["seen_width"] for view in seen} == {NARROW}
    assert [view["page"] for view in seen if view["beyond"] > 0] == [wide.as_uri()]
