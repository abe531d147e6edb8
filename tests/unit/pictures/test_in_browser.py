# SPDX-License-Identifier: Apache-2.0
"""Pages as a real browser has them: what it makes of the text, element by element."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import html as lxml_html

from nova_hpc_tools.cloud.capacity_command import read_synced_map
from nova_hpc_tools.pictures import page, snapshot_view
from tests.browser import needs_chromium, run_browser
from tests.unit.pictures.fleet import fleet


@needs_chromium
def test_the_page_of_1000_hosts(tmp_path: Path) -> None:
    cloud = fleet(1000)
    picture = snapshot_view.view_cloud(cloud, read_synced_map(cloud)[0])
    path = tmp_path / "cloud.html"
    path.write_text(page.draw_cloud_page(picture), encoding="utf-8")
    seen = lxml_html.fromstring(run_browser(tmp_path, "--dump-dom", path.as_uri()))
    assert seen.findtext(".//h1") == "Cloud"
    assert "1000 hosts" in seen.findall(".//p")[1].text
    assert len(seen.findall(".//*[@class='host']")) == 1000
    assert len(seen.findall(".//*[@class='leaf']")) == 63
    names = {element.text for element in seen.iter("text")}
    assert {"gpu000", "gpu999", "leaf leaf62"} <= names
    assert not seen.findall(".//script")


@needs_chromium
@pytest.mark.parametrize("width", [500, 1000])
def test_a_page_is_drawn(tmp_path: Path, width: int) -> None:
    cloud = fleet(40)
    path = tmp_path / "node.html"
    node = snapshot_view.view_snapshot_node(cloud, cloud.hosts[22])
    path.write_text(page.draw_node_page(node), encoding="utf-8")
    shot = tmp_path / "node.png"
    run_browser(tmp_path, f"--window-size={width},900", f"--screenshot={shot}", path.as_uri())
    data = shot.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20]) == width
    # A page of one colour is a tenth of this.
    assert len(data) > 10_000
