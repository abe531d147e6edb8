# SPDX-License-Identifier: Apache-2.0
"""Pictures of nodes: every device is there, in its place, and nothing of a name is obeyed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from lxml import etree
from lxml import html as lxml_html

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_common.level import Level, Location
from nova_hpc_common.output.canvas import shorten_to_room
from nova_hpc_tools.inventory import picture_view, standing
from nova_hpc_tools.main import main
from nova_hpc_tools.pictures import page
from nova_hpc_tools.pictures.model import DeviceTile, NodePicture, TileState
from nova_hpc_tools.pictures.place_tree import build_place_boxes, fold_equal_tiles
from tests.nodes.catalogue import NODES

HOSTILE = "</svg><script>alert(1)</script>\x1b[2J\u202e&<b onload='x'>"
SVG = "{http://www.w3.org/2000/svg}"


def view(node: Node) -> NodePicture:
    """The picture of a node of which no setting is known."""
    settings = standing.make_default_settings(node)
    return picture_view.view_inventory_node(
        node, standing.judge_functions(node, settings), settings.spec
    )


def tiles_of(picture: NodePicture) -> list[DeviceTile]:
    """All devices of a picture."""
    boxes, found = list(picture.boxes), []
    while boxes:
        box = boxes.pop()
        found += box.tiles
        boxes += box.boxes
    return found


@pytest.mark.parametrize("name", sorted(NODES))
def test_every_device_with_a_role_is_drawn(synthetic: Callable[[str], Path], name: str) -> None:
    node = sysfs.read_sysfs_node(synthetic(name))
    settings = standing.make_default_settings(node)
    judged = standing.judge_functions(node, settings)
    picture = view(node)
    shown = " ".join(f"{tile.address} {' '.join(tile.details)}" for tile in tiles_of(picture))
    for address in judged:
        function = node.function(address)
        assert function is not None
        assert (function.physical_function or address) in shown, address
    offered = sum(len(offer.functions) for offer in settings.spec.offers)
    assert sum(tile.free for tile in tiles_of(picture)) == offered
    root = etree.fromstring(page.draw_node_svg(picture).encode())
    assert len(root.findall(f".//{SVG}g[@class='device']")) == len(tiles_of(picture))
    document = lxml_html.fromstring(page.draw_node_page(picture))
    assert document.findtext(".//h1") == picture.name


def test_an_hgx_node_says_what_it_gives(
    synthetic: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(synthetic("hgx-h100"))
    assert main(["inventory", "--root", root, "--format", "html"]) == 0
    text = capsys.readouterr().out
    document = lxml_html.fromstring(text)
    assert [item.text_content() for item in document.findall(".//ul[@class='legend']/li")] == [
        "can be offered",
        "not offered",
        "stays with the host",
    ]
    rows = [[cell.text for cell in row] for row in document.findall(".//tbody/tr")]
    assert rows == [
        ["gpu", "2", "2", "4", "4", "8"],
        ["vf", "16", "16", "32", "32", "64"],
    ]
    assert text.count('class="numa"') == 2
    assert text.count('class="switch"') == 5
    assert text.count('class="device"') == 21
    assert "NUMA node 1 · CPUs 48-95,144-191 · 1 TiB" in text


def test_a_page_needs_nothing_from_elsewhere(synthetic: Callable[[str], Path]) -> None:
    picture = view(sysfs.read_sysfs_node(synthetic("mi300x")))
    for text in (page.draw_node_page(picture), page.draw_node_svg(picture)):
        links = re.findall(r"https?://[^\s\"']+", text)
        assert set(links) == {"http://www.w3.org/2000/svg"}
        assert not re.search(r"<(script|link|img|iframe|image|use)\b|@import|url\(|@font", text)
        assert "prefers-color-scheme:dark" in text


def test_a_node_with_nothing() -> None:
    picture = view(Node("empty"))
    document = lxml_html.fromstring(page.draw_node_page(picture))
    assert "nothing here has a role" in document.text_content()
    assert etree.fromstring(page.draw_node_svg(picture).encode()).tag == f"{SVG}svg"


def test_names_with_markup_are_texts() -> None:
    evil = PciFunction(
        "0000:20:00.0", "10de", "2330", class_code="030200", numa_node=0, root=HOSTILE,
        switches=(HOSTILE,), path=(HOSTILE,), model=HOSTILE, driver=HOSTILE, unknown=HOSTILE,
    )  # fmt: skip
    node = Node(HOSTILE, hostname=HOSTILE, functions=(evil,), problems=(HOSTILE,))
    picture = view(node)
    for text in (page.draw_node_page(picture), page.draw_node_svg(picture)):
        assert "<script" not in text
        assert "<b " not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "&lt;script&gt;alert(1)" in text


def test_336_functions_fit_on_a_page() -> None:
    functions = tuple(
        PciFunction(
            f"0000:{0x20 + number // 8:02x}:00.{number % 8}",
            "10de",
            "2330",
            class_code="030200",
            numa_node=0,
            root="pci0000:20",
        )
        for number in range(336)
    )
    picture = view(Node("many", functions=functions))
    (tile,) = tiles_of(picture)
    assert (tile.count, tile.free, tile.total) == (336, 336, 336)
    assert "336 x" in page.draw_node_page(picture)
    assert "and 328 more" in tile.details
    apart = [attrs.evolve(function, product_id=f"{number:04x}")
             for number, function in enumerate(functions)]  # fmt: skip
    picture = view(Node("many", functions=tuple(apart)))
    root = etree.fromstring(page.draw_node_svg(picture).encode())
    assert len(root.findall(f".//{SVG}g[@class='device']")) == 336


def test_devices_of_one_kind_are_one_tile_when_they_are_many() -> None:
    few = [DeviceTile(f"0000:20:00.{n}", TileState.FREE, role="gpu", free=1) for n in range(8)]
    assert fold_equal_tiles(few) == tuple(few)
    disks = [DeviceTile(f"0000:30:00.{n}", TileState.HOST, product="NVMe") for n in range(2)]
    assert [tile.count for tile in fold_equal_tiles(disks)] == [2]
    owned = [attrs.evolve(tile, servers=("job",)) for tile in few] * 2
    assert len(fold_equal_tiles(owned)) == 16


def test_a_device_of_an_unknown_place_has_a_box() -> None:
    tile = DeviceTile("0000:20:00.0", TileState.UNKNOWN)
    (box,) = build_place_boxes([(Location(), tile)], {}, {})
    assert (box.title, box.tiles) == ("NUMA node not known", (tile,))


@pytest.mark.parametrize("room", [10, 50, 100, 1000])
def test_what_does_not_fit_is_cut(room: int) -> None:
    text = "0123456789" * 5
    shown = shorten_to_room(text, room)
    assert len(shown) <= max(2, room / 6.2)
    assert shown == text or "…" in shown


def test_lists_are_not_drawn(
    synthetic: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(synthetic("bare"))
    assert main(["inventory", "--root", root, "--matrix", "-f", "svg"]) == 2
    assert main(["inventory", "--root", root, "-f", "svg", "-c", "Address"]) == 2
    assert (
        capsys.readouterr().err.splitlines()
        == ["nova-hpc inventory: --format svg draws no lists and no columns"] * 2
    )


def test_levels_of_the_table_are_those_of_flavors() -> None:
    assert [level.word for level in Level] == ["switch", "root", "numa", "socket", "host"]
