# SPDX-License-Identifier: Apache-2.0
"""Pictures of clouds: hosts in their leaves, states, servers, and what still fits."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from lxml import etree
from lxml import html as lxml_html

from nova_hpc_common.level import Level
from nova_hpc_tools.cloud.capacity_command import read_synced_map
from nova_hpc_tools.main import main
from nova_hpc_tools.pictures import page, snapshot_view
from nova_hpc_tools.pictures.fragmentation import tabulate_cloud_sets
from nova_hpc_tools.pictures.model import CloudPicture, GroupNote, TileState
from nova_hpc_tools.snapshot import Snapshot, SnapshotError
from nova_hpc_tools.snapshot.document import dump_cloud_snapshot
from tests.unit.pictures.fleet import fleet
from tests.unit.snapshot import clouds

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<img src=x onerror=alert(1)>"


def picture_of(cloud: Snapshot, *groups: GroupNote, leaf: str | None = None) -> CloudPicture:
    """The picture by what the aggregates say."""
    return snapshot_view.view_cloud(cloud, read_synced_map(cloud)[0], groups, leaf)


def test_hosts_are_in_their_leaves() -> None:
    picture = picture_of(fleet(40))
    assert [(leaf.title, len(leaf.hosts)) for leaf in picture.leaves] == [
        ("leaf leaf0", 16), ("leaf leaf1", 16), ("leaf leaf2", 8),
    ]  # fmt: skip
    assert picture.leaves[0].path[0] == ("spine", "spine0")
    text = page.draw_cloud_page(picture)
    assert text.count('class="leaf"') == 3
    assert text.count('class="host"') == 40
    root = etree.fromstring(page.draw_cloud_svg(picture).encode())
    assert len(root.findall(f".//{SVG}g[@class='host']")) == 40


def test_a_lone_leaf_takes_the_whole_width() -> None:
    picture = picture_of(fleet(12))
    text = page.draw_cloud_page(picture)
    assert "spine spine0 · leaf leaf0 · 12 hosts" in text
    assert (text.count('class="leaf"'), text.count('class="host"')) == (0, 12)
    root = etree.fromstring(page.draw_cloud_svg(picture).encode())
    places = {
        host.get("transform").partition(",")[0]
        for host in root.findall(f".//{SVG}g[@class='host']")
    }
    assert len(places) == 4


def test_each_letter_has_one_place() -> None:
    """Not every viewer knows a list of places in one text."""
    root = etree.fromstring(page.draw_cloud_svg(picture_of(fleet(40))).encode())
    letters = root.findall(f".//{SVG}text[@class='on m']")
    assert {letter.text for letter in letters} >= {"A", "B", "!"}
    assert {len(letter.text) for letter in letters} == {1}


def test_hosts_without_a_place_are_last() -> None:
    placed, lost = fleet(3), fleet(6, placed=False)
    cloud = attrs.evolve(lost, hosts=(*lost.hosts[3:], *placed.hosts))
    picture = picture_of(cloud)
    assert [leaf.title for leaf in picture.leaves] == [
        "leaf leaf0",
        "place on the fabric unknown",
    ]


def test_states_of_devices() -> None:
    gpus = [*(clouds.gpu("n", number) for number in range(2)), clouds.gpu("n", 2, server="s1"),
            clouds.gpu("n", 3, server="s2"), clouds.gpu("n", 4, server="s3")]  # fmt: skip
    gpus[1] = attrs.evolve(gpus[1], free=0)
    gpus[4] = attrs.evolve(gpus[4], free=0, used=())
    node = attrs.evolve(
        clouds.node("n", []),
        devices=tuple(gpus),
        withheld={gpus[1].address: "no driver"},
        ailing={gpus[3].address: "slow"},
    )
    cloud = clouds.cloud(node, servers=[clouds.server("s1", "n")])
    (row,) = snapshot_view.view_host_tile(node, {s.uuid: s for s in cloud.servers}).rows
    assert [tile.state for tile in row.tiles] == [
        TileState.FREE, TileState.WITHHELD, TileState.USED, TileState.FAULTY, TileState.UNKNOWN,
    ]  # fmt: skip
    assert row.tiles[2].servers == ("name-s1",)
    assert row.tiles[3].servers == ("s2",)
    text = page.draw_node_page(snapshot_view.view_snapshot_node(cloud, node))
    legend = lxml_html.fromstring(text).findall(".//ul[@class='legend']/li")
    assert [item.text_content() for item in legend] == [
        "free", "in use", "in use, faulty", "withheld", "unknown",
    ]  # fmt: skip
    assert "withheld: no driver" in text
    assert "s2 (faulty)" in text


def test_what_still_fits_is_what_a_server_gets() -> None:
    # One free GPU at each of four switches: eight would be four and four.
    host = clouds.node("n", [["a", None], [None, "b"], [None, None], ["c", "d"]])
    largest = snapshot_view.measure_free_sets(host)
    assert [largest["gpu"][level] for level in Level] == [2, 2, 2, 2, 4]
    tile = snapshot_view.view_host_tile(host, {})
    (table,) = tabulate_cloud_sets([tile, attrs.evolve(tile, out="down")])
    assert table.head == ("level", "largest", "hosts with 1", "hosts with 2", "hosts with 4")
    assert table.rows[0] == ("switch", "2", "1", "1", "0")
    assert table.rows[-1] == ("host", "4", "1", "1", "1")


def test_groups_are_at_their_leaf() -> None:
    note = GroupNote("5f0d", "leaf", "leaf1", 8, 16)
    picture = picture_of(fleet(40), note)
    assert [leaf.groups for leaf in picture.leaves] == [(), (note,), ()]
    text = page.draw_cloud_page(picture)
    assert "16 hosts · 1 group, 8 members" in text
    assert "group 5f0d: 8 of 16" in text
    assert picture_of(fleet(40), note, leaf="leaf0").groups == ()


def test_a_large_cloud_is_drawn_in_counts() -> None:
    cloud = fleet(page.MOST_HOSTS + 4)
    picture = picture_of(cloud)
    text = page.draw_cloud_page(picture)
    assert text.count('class="leaf"') == len(picture.leaves) == 94
    assert 'class="host"' not in text
    assert text.count('class="bar"') == 2 * 94
    assert "each leaf is drawn in counts" in text
    assert len(text) < 300_000


def test_a_cloud_of_nothing_is_a_picture() -> None:
    picture = picture_of(attrs.evolve(fleet(0), problems=("nothing there",)))
    assert "nothing there" in page.draw_cloud_page(picture)
    assert "nothing there" in page.draw_cloud_svg(picture)
    host = clouds.node("n", [])
    assert "no device" in page.draw_cloud_svg(picture_of(clouds.cloud(host)))


def test_names_with_markup_are_texts() -> None:
    host = attrs.evolve(
        clouds.node(HOSTILE, [["u"]]),
        out=HOSTILE,
        unusable=(HOSTILE,),
        aggregates={HOSTILE: {"hpc_fabric:version": "1", "hpc_fabric:kind": "leaf",
                              "hpc_fabric:leaf": HOSTILE}},
    )  # fmt: skip
    server = clouds.server("u", HOSTILE, name=HOSTILE, flavor=HOSTILE)
    cloud = attrs.evolve(clouds.cloud(host, servers=[server]), problems=(HOSTILE,))
    picture = picture_of(cloud, GroupNote(HOSTILE, "leaf", HOSTILE, 1, 1))
    node = snapshot_view.view_snapshot_node(cloud, host)
    for text in (
        page.draw_cloud_page(picture),
        page.draw_cloud_svg(picture),
        page.draw_node_page(node),
        page.draw_node_svg(node),
    ):
        assert "<img" not in text
        assert "&lt;img src=x" in text


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A snapshot in a file."""
    path = tmp_path / "cloud.json"
    path.write_text(dump_cloud_snapshot(fleet(40)), encoding="utf-8")
    return str(path)


def test_the_command_shows_hosts_that_are_alike_once(
    saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", "show", "--snapshot", saved]) == 0
    text = capsys.readouterr().out
    assert "40 hosts, 69 servers with devices, 1 spine, 3 leaves" in text
    assert "gpu[004,008-009,012] (4 hosts alike)" in text
    assert "gpu: 8 of 8 free; fits: switch 2, numa 4, host 8" in text


def test_the_command_lists_and_draws(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "show", "--snapshot", saved, "-f", "csv", "--host", "gpu004"]) == 0
    lines = capsys.readouterr().out.replace('"', "").splitlines()
    assert lines == [
        "Host,Place,Role,Free,Total,"
        "Set at switch,Set at root,Set at numa,Set at socket,Set at host",
        "gpu004,leaf leaf0,gpu,8,8,2,2,4,4,8",
        "gpu004,leaf leaf0,vf,16,16,4,4,8,8,16",
    ]
    assert main(["snapshot", "show", "--snapshot", saved, "-f", "html", "--leaf", "leaf2"]) == 0
    text = capsys.readouterr().out
    assert text.count('class="host"') == 8
    assert main(["snapshot", "show", "--snapshot", saved, "-f", "svg", "--host", "gpu022"]) == 0
    root = etree.fromstring(capsys.readouterr().out.encode())
    assert root.findtext(f"{SVG}title") == "gpu022"
    assert len(root.findall(f".//{SVG}g[@class='device']")) == 16


def test_bad_questions_are_one_line(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "show", "--snapshot", saved, "--leaf", "leaf9"]) == 2
    assert main(["snapshot", "show", "--snapshot", saved, "--host", "gpu9"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("nova-hpc snapshot show: no host is in leaf9: give the name")
    assert "there is no host 'gpu9'" in errors[1]
    assert issubclass(SnapshotError, Exception)
