# SPDX-License-Identifier: Apache-2.0
"""Each picture of the documentation reads well on light and dark pages, and alone in a browser."""

from __future__ import annotations

import subprocess

import pytest
from lxml import etree

from tests.unit.pictures.faults import list_faults
from tools.wheels import TOP

PICTURES = subprocess.run(
    ["git", "ls-files", "docs/source/*.svg"], cwd=TOP, capture_output=True, text=True, check=True
).stdout.split()

GOOD = """<svg xmlns="http://www.w3.org/2000/svg" width="90" height="90" viewBox="0 0 90 90">
<style>.page{fill:#ffffff}.ink{fill:#1a1a1a;font-size:12px}
@media (prefers-color-scheme:dark){.page{fill:#131416}.ink{fill:#e6e6e6}}</style>
<rect class="page" width="90" height="90"/><text class="ink" x="5" y="20">gpu</text></svg>"""


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_reads_well(name: str) -> None:
    assert list_faults((TOP / name).read_text(encoding="utf-8")) == []


def test_all_pictures_are_there() -> None:
    assert len(PICTURES) >= 15
    assert list_faults(GOOD) == []


@pytest.mark.parametrize(
    ("good", "broken", "fault"),
    [
        ("scheme:dark", "scheme:light", "no style for dark pages"),
        ("font-size:12px", "font-size:10px", "text 'gpu': 10 px"),
        ('width="90" height="90" v', 'width="60pt" height="60pt" v', "text 'gpu': 10.7 px"),
        ('<text class="ink"', "<text", "text 'gpu': black, as it has no colour"),
        ('<rect class="page"', "<rect", "rect '': black, as it has no colour"),
        (".ink{fill:#e6e6e6}", "", "text 'gpu': fill #1a1a1a has no form for dark pages"),
        (".ink{fill:#e6e6e6}", ".ink{fill:#333333}", "text 'gpu': #333333 on #131416"),
        ('<text class="ink"', '<text style="fill:#000000"', "text 'gpu': fill #000000 has no"),
        ("</svg>", '<path stroke="#000000" d="M0 0H9"/></svg>', "path '': stroke #000000 has no"),
        ('x="5"', 'x="5 14 23"', "text 'gpu': places of letters"),
        ("#e6e6e6", "silver", "text 'gpu': silver is no #rrggbb"),
        ("</svg>", '<g><path d="M0 0H9"/></g></svg>', "path '': black, as it has no colour"),
    ],
)
def test_a_broken_picture_has_faults(good: str, broken: str, fault: str) -> None:
    assert good in GOOD
    faults = list_faults(GOOD.replace(good, broken, 1))
    assert [line for line in faults if line.startswith(fault)], faults


def test_text_that_is_no_xml_fails() -> None:
    with pytest.raises(etree.XMLSyntaxError):
        list_faults(GOOD.replace("</text>", ""))
