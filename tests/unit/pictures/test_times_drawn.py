# SPDX-License-Identifier: Apache-2.0
"""Pictures of a request over time: hosts, servers until they end, and the moment of room."""

from __future__ import annotations

import datetime

import attrs
import pytest
from lxml import etree

from nova_hpc_common.output.canvas import estimate_text_width
from nova_hpc_tools.pictures import draw_times, page
from nova_hpc_tools.pictures.draw_times import HostTimes, ServerBar, TimePicture
from tests.unit.pictures.faults import list_faults

SVG = "{http://www.w3.org/2000/svg}"
START = datetime.datetime(2026, 12, 1, 6, 0, 35, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
LATEST = datetime.datetime.max.replace(tzinfo=datetime.UTC, microsecond=0)


def picture_of(
    fits: datetime.datetime, hosts: int = 2, servers: int = 2, name: str = "job"
) -> TimePicture:
    """Hosts whose servers end one after the other, and one without a known end."""
    wait = (fits - START) / max(1, servers)
    bars = tuple(
        ServerBar(f"{name}-{number}", f"id-{number}", START + wait * (number + 1), "hpc:until")
        for number in range(servers)
        if wait
    )
    found = tuple(
        HostTimes(f"gpu{number:02d}", 1, (*bars, ServerBar(name, "id-x")))
        for number in range(hosts)
    )
    return TimePicture("When 2 x hpc.gpu8 fits", ("A fact.",), "hpc.gpu8", START, fits, found)


def texts_of(root: etree._Element) -> list[tuple[float, float, str]]:
    """The first x and the last x of each text, and its words."""
    found = []
    for text in root.iter(f"{SVG}text"):
        # The title of a text that was cut is before its words.
        words = "".join(part for part in [text.text, *(each.tail for each in text)] if part)
        classes = text.get("class").split()
        wide = estimate_text_width(words, 14 if "h" in classes else 11, "b" in classes)
        x = float(text.get("x"))
        left = x - wide if "e" in classes else x
        found.append((left, left + wide, words))
    return found


@pytest.mark.parametrize(
    "fits",
    [
        START,
        START + datetime.timedelta(minutes=1),
        START + 3 * DAY,
        START + 400 * DAY,
        LATEST,
    ],
)
@pytest.mark.parametrize("name", ["job", "a-server-with-a-long-name-" * 9])
def test_the_picture_reads_well(fits: datetime.datetime, name: str) -> None:
    text = page.draw_times_svg(picture_of(fits, 3, 5, name))
    assert list_faults(text) == []
    root = etree.fromstring(text.encode())
    width = float(root.get("width"))
    for left, right, words in texts_of(root):
        assert left >= 0, words
        assert right <= width, words
    ticks = [words for _, _, words in texts_of(root) if words.startswith(("12-", "20"))]
    assert fits == START or 1 <= len(ticks) <= 9


def test_bars_end_with_their_servers() -> None:
    fits = START + 4 * DAY
    root = etree.fromstring(page.draw_times_svg(picture_of(fits)).encode())
    bars = {
        kind: [
            (float(bar.get("x")), float(bar.get("x")) + float(bar.get("width")))
            for bar in root.iter(f"{SVG}rect")
            if bar.get("class") == kind and bar.get("height") == "14"
        ]
        for kind in ("used", "free", "stay")
    }
    assert [len(found) for found in bars.values()] == [4, 2, 2]
    (left, half), (_, all_) = bars["used"][:2]
    assert half - left == pytest.approx((all_ - left) / 2, abs=0.2)
    # The request begins when the last server has ended, and lasts like one without an end.
    assert bars["free"][0][0] == pytest.approx(all_, abs=0.2)
    assert bars["free"][0][1] == pytest.approx(bars["stay"][0][1], abs=0.2)
    words = [each for _, _, each in texts_of(root)]
    assert words.count("fits from 2026-12-05T06:00Z on") == 1
    assert words.count("1 x hpc.gpu8") == 2
    assert "job-0 · until 2026-12-03T06:00Z" in words
    assert "job · no known end" in words


def test_many_hosts_and_servers_are_counted() -> None:
    root = etree.fromstring(page.draw_times_svg(picture_of(START + DAY, 30, 11)).encode())
    words = [each for _, _, each in texts_of(root)]
    assert sum(each.startswith("gpu") for each in words) == draw_times.MOST_HOSTS
    assert "and 6 more hosts" in words
    # One of them has no known end.
    assert words.count("and 4 more servers") == draw_times.MOST_HOSTS


def test_names_stay_texts() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    for draw in (page.draw_times_svg, page.draw_times_page):
        text = draw(picture_of(START + DAY, name=hostile))
        assert "<img" not in text
        assert "&lt;img src=x" in text


def test_without_hosts_there_are_facts() -> None:
    picture = attrs.evolve(picture_of(START), hosts=(), problems=("a bad time",))
    text = page.draw_times_svg(picture)
    assert list_faults(text) == []
    assert "A fact." in text
    assert "problem: a bad time" in text
