# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from lxml import etree

from nova_hpc.fabric.model import FabricLevel, FabricLink, FabricMap, FabricPlace, FabricSwitch
from nova_hpc_common.output.hostlist import expand_hostlist
from nova_hpc_tools.fabric.problems import FabricMapError
from nova_hpc_tools.fabric.readers import reader_choice as readers
from nova_hpc_tools.fabric.readers.reader_choice import ReaderOptions
from nova_hpc_tools.fabric.writers import slurm, svg, text, topograph
from tests.unit.fabric.strategies import fabrics
from tests.unit.pictures.faults import list_faults

LEAF, SPINE = FabricLevel.LEAF, FabricLevel.SPINE
BLOCKS = FabricMap(
    [FabricPlace(f"n{number}", nvlink_domain=f"v{number // 4}", leaf="l") for number in range(11)]
)


def read(content: str, **options: object) -> FabricMap:
    reading = readers.read_fabric_text(content, "test", ReaderOptions(**options))
    assert reading.problems == ()
    return reading.fabric


def groups(fabric: FabricMap, level: FabricLevel) -> set[tuple[str, ...]]:
    return set(fabric.domains(level).values())


def whole(fabric: FabricMap) -> FabricMap:
    """The hosts whose leaf and spine are known, which every form can say."""
    places = [
        FabricPlace(
            place.host, nvlink_domain=place.nvlink_domain, leaf=place.leaf, spine=place.spine
        )
        for place in fabric.places
        if place.leaf and place.spine
    ]
    return FabricMap(places, name=fabric.name)


@given(fabrics())
def test_slurm_and_topograph_say_the_same_map(fabric):
    fabric = whole(fabric)
    if not fabric.places:
        return
    for content in (
        slurm.format_slurm_tree(fabric),
        slurm.format_topology_yaml(fabric, (26, 5)),
        topograph.format_topograph_json(fabric),
    ):
        found = read(content)
        assert groups(found, LEAF) == groups(fabric, LEAF)
        assert groups(found, SPINE) == groups(fabric, SPINE)
    again = read(topograph.format_topograph_json(fabric), name=fabric.name)
    # Each spine stands for itself here, so it is a fabric of its own.
    places = [attrs.evolve(place, core=place.spine) for place in fabric.places]
    assert again == attrs.evolve(fabric, places=places, switches=again.switches, links=again.links)


@given(fabrics())
def test_every_switch_of_slurm_has_hosts_or_switches_and_one_name(fabric):
    entries = slurm.tree_switches_of(fabric)
    names = [entry.name for entry in entries]
    assert len(names) == len(set(names))
    seen: set[str] = set()
    for entry in entries:
        assert bool(entry.hosts) != bool(entry.below)
        assert set(entry.below) <= seen
        seen.add(entry.name)
    hosts = [host for entry in entries for host in entry.hosts]
    assert sorted(hosts) == [place.host for place in fabric.places if place.path]


def sizes(release: str) -> str:
    content = slurm.format_slurm_blocks(BLOCKS, slurm.parse_release(release))
    return content.splitlines()[-1]


def test_a_block_is_never_smaller_than_the_base_where_slurm_dies_of_it():
    assert [len(hosts) for hosts in BLOCKS.domains(FabricLevel.NVLINK_DOMAIN).values()] == [4, 4, 3]
    assert sizes("24.11.5") == "BlockSizes=3,6"
    assert sizes("25.11") == "BlockSizes=3,6"
    assert sizes("26.05.5") == "BlockSizes=4,8"


def test_what_a_release_cannot_load_is_refused():
    with pytest.raises(FabricMapError, match=r"22\.05 has no blocks"):
        slurm.format_slurm_blocks(BLOCKS, (22, 5))
    with pytest.raises(FabricMapError, match=r"24\.11 does not read topology\.yaml"):
        slurm.format_topology_yaml(BLOCKS, (24, 11))
    with pytest.raises(FabricMapError, match="no domain of level spine"):
        slurm.format_slurm_blocks(BLOCKS, (24, 11), SPINE)
    with pytest.raises(FabricMapError, match="no node of Slurm can have this name"):
        slurm.format_slurm_tree(FabricMap([FabricPlace("a b", leaf="l")]))
    with pytest.raises(ValueError, match="no release of Slurm"):
        slurm.parse_release("24")


def test_names_that_slurm_would_expand_are_written_otherwise():
    fabric = FabricMap(
        [FabricPlace("a", leaf="l[1]", spine="l_1_"), FabricPlace("b", leaf="l,1", spine="l_1_")]
    )
    names = [entry.name for entry in slurm.tree_switches_of(fabric)]
    assert all(expand_hostlist(name) == [name] for name in names)
    assert len(set(names)) == 3


@given(fabrics())
def test_a_picture_has_every_host_and_domain(fabric):
    picture = etree.fromstring(svg.draw_fabric_svg(fabric, {"n00": 2}).encode())
    titles = [each.text or "" for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    for host in fabric.hosts():
        assert sum(title.split(",")[0] == host for title in titles) == 1
    for name in fabric.domains(LEAF):
        assert f"leaf {name}" in titles


def test_a_picture_shows_dead_cables():
    fabric = FabricMap(
        [FabricPlace("a", leaf="l1", spine="s1"), FabricPlace("b<&>", leaf="l2", spine="s1")],
        switches=[
            FabricSwitch("l1", LEAF, "l1"),
            FabricSwitch("l2", LEAF, "l2"),
            FabricSwitch("s1", SPINE, "s1"),
        ],
        links=[FabricLink("l1", "s1", 2), FabricLink("l2", "s1", 0, 2)],
    )
    assert list_faults(svg.draw_fabric_svg(fabric, {"a": 2})) == []
    picture = etree.fromstring(svg.draw_fabric_svg(fabric).encode())
    cables = picture.findall("{http://www.w3.org/2000/svg}line")
    assert len(cables) == 2
    assert sum(each.get("stroke-dasharray") is not None for each in cables) == 1


def test_cables_of_a_picture_cross_no_name_of_a_leaf():
    fabric = FabricMap(
        [FabricPlace("a", leaf="l1", spine="s1"), FabricPlace("b", leaf="l2" * 40, spine="s1")],
        switches=[FabricSwitch("l1", LEAF, "l1"), FabricSwitch("s1", SPINE, "s1")],
        links=[FabricLink("l1", "s1", 2)],
    )
    root = etree.fromstring(svg.draw_fabric_svg(fabric).encode())
    (cable,) = root.findall("{http://www.w3.org/2000/svg}line")
    names = {
        (each.text or each[0].tail): each for each in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert float(names["l1"].get("y")) - 11 > float(cable.get("y1")) > float(cable.get("y2"))
    # A long name is cut in its middle, and the picture is as wide as the heading.
    assert any("…" in name and len(name) < 45 for name in names)
    heading = max(names, key=len)
    assert float(root.get("width")) > len(heading) * 13 * 0.5


def test_a_map_is_a_tree_for_people():
    fabric = FabricMap(
        [
            FabricPlace("n1", leaf="l1", spine="s1", nvlink_domain="v1"),
            FabricPlace("n2", leaf="l2", spine="s1"),
            FabricPlace("n3"),
        ],
        links=[FabricLink("l1", "s1", 1, 1, "1xNDR"), FabricLink("l2", "s1", 2, 0, "4xNDR")],
    )
    assert list(text.draw_fabric_tree(fabric)) == [
        "fabric fabric: 3 hosts, 1 NVLink domain, 2 leaves, 1 spine, 3 cables between them, "
        "1 missing",
        "spine s1: 2 hosts",
        "├─ leaf l1: 1 host: n1",
        "└─ leaf l2: 1 host: n2",
        "NVLink domain v1: 1 host: n1",
        "in no known domain: 1 host: n3",
        "cables missing: l1 - s1: 1 of 2",
        "slow cable: l1 - s1: 1xNDR",
    ]


def test_the_picture_in_the_operator_guide_is_what_is_drawn(captures):
    name = "ibnetdiscover-ndr.out"
    content = (captures / "fabric" / name).read_text(encoding="utf-8")
    drawn = svg.draw_fabric_svg(readers.read_fabric_text(content, name, ReaderOptions()).fabric)
    guide = Path(__file__).parents[3] / "docs/source/admin/pictures/fabric-ndr.svg"
    assert guide.read_text(encoding="utf-8") == drawn


def test_no_name_is_longer_than_slurm_takes():
    long = "x" * 100
    fabric = FabricMap(
        [
            FabricPlace("a", leaf=f"{long}1", spine=long),
            FabricPlace("b", leaf=f"{long}2", spine=long),
            FabricPlace("c", spine=long),
        ]
    )
    entries = slurm.tree_switches_of(fabric)
    names = [entry.name for entry in entries]
    assert max(map(len, names)) == 64
    assert len(set(names)) == 4
    assert groups(read(slurm.format_slurm_tree(fabric)), SPINE) == {("a", "b", "c")}
    with pytest.raises(FabricMapError, match="it has 71 characters"):
        slurm.format_slurm_tree(FabricMap([FabricPlace(".".join(["a" * 23] * 3), leaf="l")]))
