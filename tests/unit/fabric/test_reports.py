# SPDX-License-Identifier: Apache-2.0
"""What people who run fabrics reported: their inputs in our words, and what is right."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping

import pytest

from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc.fabric.pseudonym import Names
from nova_hpc_tools.fabric.exclusions import Exclusions
from nova_hpc_tools.fabric.merge import merge_readings
from nova_hpc_tools.fabric.problems import NO_HOST, FabricMapError, FabricReading
from nova_hpc_tools.fabric.readers import reader_choice as readers
from nova_hpc_tools.fabric.readers.reader_choice import ReaderOptions
from nova_hpc_tools.fabric.sync import check_removals
from nova_hpc_tools.fabric.writers import topograph
from nova_hpc_tools.fabric.writers.text import draw_fabric_tree
from tests.unit.fabric.cabling import Cabling

LEAF, BLOCK, SPINE, CORE = (
    FabricLevel.LEAF,
    FabricLevel.BLOCK,
    FabricLevel.SPINE,
    FabricLevel.CORE,
)


def read(text: str, **options: object) -> FabricReading:
    return readers.read_fabric_text(text, "test", ReaderOptions(**options))


def said(reading: FabricReading) -> list[str]:
    return [problem.text for problem in reading.problems]


def sizes(reading: FabricReading, level: FabricLevel) -> Mapping[str, int]:
    return {name: len(hosts) for name, hosts in reading.fabric.domains(level).items()}


# --- Slurm --------------------------------------------------------------------------------------


def test_a_node_in_two_leaves_of_slurm_is_a_problem_and_unknown():
    reading = read(
        "SwitchName=leaf1 Nodes=n[1-16]\nSwitchName=leaf2 Nodes=n[8-24]\n"
        "SwitchName=top Switches=leaf[1-2]\n"
    )
    assert sizes(reading, LEAF) == {"leaf1": 7, "leaf2": 8}
    assert len(reading.problems) == 9
    assert "'n8' is as much in one leaf as in another: leaf1, leaf2" in said(reading)[0]


def test_what_scontrol_shows_of_a_tree():
    reading = read(
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\n"
        "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\n"
        "SwitchName=spine1 Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]\n"
    )
    assert (reading.problems, sizes(reading, LEAF)) == ((), {"leaf1": 4, "leaf2": 4})
    assert sizes(reading, SPINE) == {"spine1": 8}


def test_what_scontrol_shows_of_blocks():
    reading = read(
        "BlockName=b1 BlockIndex=0 Nodes=n[1-4] BlockSize=4\n"
        "BlockName=b2 BlockIndex=1 Nodes=n[5-8] BlockSize=4\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-8] BlockSize=8\n"
    )
    assert (reading.problems, sizes(reading, BLOCK)) == ((), {"b1": 4, "b2": 4})


@pytest.mark.parametrize(
    ("kind", "said"),
    [("flat: true", "flat"), ("torus3d: {x: 2}", "torus3d"), ("ring: {nodes: n1}", "ring")],
)
def test_a_topology_of_another_kind_is_named(kind, said):
    text = f"""\
- topology: all
  cluster_default: true
  {kind}
- topology: t1
  cluster_default: false
  tree: {{switches: [{{switch: l1, nodes: "n[1-2]"}}]}}
"""
    with pytest.raises(FabricMapError, match=rf"'all' is {said}, .* --topology: t1"):
        read(text)
    assert sizes(read(text, topology="t1"), LEAF) == {"l1": 2}
    with pytest.raises(FabricMapError, match=rf"'all' is {said}, .* no other has any"):
        read(text[: text.index("- topology: t1")])


def test_a_skeleton_without_hosts_is_a_problem():
    reading = read(
        "- topology: t0\n  tree: {switches: [{switch: s3, children: s1}, {switch: s1}]}\n"
    )
    assert said(reading) == [NO_HOST]


# --- topograph ----------------------------------------------------------------------------------


def graph(**layers: list[str]) -> str:
    return json.dumps(
        {"instances": [{"id": host, "network_layers": each} for host, each in layers.items()]}
    )


@pytest.mark.parametrize("name", ["no-topology", "unknown", "None", "N/A"])
def test_a_placeholder_is_no_leaf(name):
    reading = read(graph(a=["l1", "s1"], b=["l1", "s1"], c=[name], d=[name]))
    assert sizes(reading, LEAF) == {"l1": 2}
    assert reading.problems == ()
    assert [note.text for note in reading.notes] == [
        f'{name!r} is no domain but stands for "not known": c, d are in none there'
    ]


def test_a_site_has_placeholders_of_its_own():
    unknown = Exclusions(unknown=re.compile("tbd.*"))
    reading = read(graph(a=["tbd-1"], b=["tbd-1"], c=["l1"]), exclusions=unknown)
    assert sizes(reading, LEAF) == {"l1": 1}
    plain = "nova_hpc_fabric: 1\ndomains:\n- {leaf: tbd, spine: s, hosts: [a, b]}\n"
    reading = read(plain, exclusions=unknown)
    assert (sizes(reading, LEAF), sizes(reading, SPINE)) == ({}, {"s": 2})


# --- ibnetdiscover ------------------------------------------------------------------------------


def small(*adapters: str, switches: tuple[str, str] = ("MF0;leaf1:M/U1", "MF0;leaf2:M/U1")) -> str:
    """Two leaf switches on a spine; the adapters hang on them in turn."""
    fabric = Cabling()
    leaves = []
    for name in switches:
        leaves.append(fabric.switch("x"))
        fabric.nodes[leaves[-1]] = ("Switch", name)
    spine = fabric.switch("spine")
    for leaf in leaves:
        fabric.connect(leaf, spine)
    for number, adapter in enumerate(adapters):
        fabric.connect(fabric.adapter(adapter), leaves[number % 2])
    return fabric.text()


def test_a_description_of_one_word_is_a_host():
    reading = read(small("gpu-node00", "gpu-node01", "gpu-node02", "gpu-node03"))
    assert (reading.problems, reading.notes) == ((), ())
    assert dict(reading.fabric.domains(LEAF)) == {
        "leaf1": ("gpu-node00", "gpu-node02"),
        "leaf2": ("gpu-node01", "gpu-node03"),
    }


@pytest.mark.parametrize(
    "nobody",
    [
        "MT4129 ConnectX7   Mellanox Technologies",
        "MT4129",
        "(none) mlx5_0",
        "(none)",
        "localhost mlx5_0",
        "localhost",
        "0xe09d730300000040",
        "unknown mlx5_0",
    ],
)
def test_what_nobody_has_named_is_no_host(nobody):
    few = read(small("a mlx5_0", "b mlx5_0", nobody))
    assert few.problems == ()
    assert few.fabric.hosts() == ("a", "b")
    half = read(small("a mlx5_0", "b mlx5_0", nobody, nobody))
    assert ["2 of 4 adapters name no host" in text for text in said(half)] == [True]
    none = read(small(nobody, nobody))
    assert NO_HOST in said(none)
    assert any("2 of 2 adapters name no host" in text for text in said(none))


def test_spaces_around_and_inside_of_the_names_of_switches():
    reading = read(small("a mlx5_0", "b mlx5_0", switches=(" 5FB01-leaf-IB01 ", "hall 2 leaf 7")))
    assert set(reading.fabric.domains(LEAF)) == {"5FB01-leaf-IB01", "hall 2 leaf 7"}


def test_a_switch_that_nobody_has_named_has_its_guid():
    reading = read(
        small(
            "a mlx5_0", "b mlx5_0", switches=("SW-6IB4 Voltaire", "Quantum Mellanox Technologies")
        )
    )
    assert all(name.startswith("S-0") for name in reading.fabric.domains(LEAF))


def test_headings_of_a_grouped_output_are_read_over():
    text = small("a mlx5_0", "b mlx5_0")
    grouped = f"#\nChassis 1 (guid 0x8f104003f1e29)\n\nNon-Chassis Nodes\n{text}"
    assert read(grouped).problems == ()
    assert read(grouped).fabric == read(text).fabric


# --- several maps, and too small ones -----------------------------------------------------------


def test_cables_and_nvlink_domains_from_two_sources_are_one_map():
    cables = read(small("a mlx5_0", "b mlx5_0"))
    nvlink = read("BlockName=nv1 Nodes=a,b\n", block_level=FabricLevel.NVLINK_DOMAIN)
    merged = merge_readings([cables, nvlink])
    place = merged.fabric.place("a")
    assert place is not None
    assert (place.leaf, place.nvlink_domain, [rail.name for rail in place.rails]) == (
        "leaf1",
        "nv1",
        ["mlx5_0"],
    )
    assert merged.problems == ()
    assert [note.text for note in merged.notes] == [
        "NVLink domain 'nv1' crosses leaves: leaf1, leaf2"
    ]
    assert merged.fabric.links == cables.fabric.links


def test_what_two_maps_say_differently_is_unknown():
    one, other = read(graph(a=["l1", "s1"])), read(graph(a=["l2", "s1"], b=["l2", "s1"]))
    merged = merge_readings([one, other])
    assert said(merged) == [
        "host 'a' is in the leaf 'l1' and 'l2', by 2 maps: which one is unknown"
    ]
    # A third map does not settle what two dispute, in whatever order they come.
    for maps in itertools.permutations([one, other, one]):
        place = merge_readings(list(maps)).fabric.place("a")
        assert place is not None
        assert place.leaf is None
    place = merged.fabric.place("a")
    assert place is not None
    assert (place.leaf, place.spine) == (None, "s1")


def fabric_of(hosts: int, leaf: str | None = "l1") -> FabricMap:
    return FabricMap([FabricPlace(f"n{number:02d}", leaf=leaf) for number in range(hosts)])


@pytest.mark.parametrize(
    ("left", "share", "accepted", "refused"),
    [
        (8, 0.2, None, False),
        (7, 0.2, None, True),
        (7, 0.3, None, False),
        (7, 0.2, 3, False),
        (7, 0.2, 4, True),
        (0, 0.2, None, True),
        (0, 0.2, 10, False),
    ],
)
def test_a_map_that_loses_many_hosts_is_refused_unless_the_number_is_named(
    left, share, accepted, refused
):
    text = check_removals(fabric_of(10), fabric_of(left), share, accepted)
    assert (text is not None) == refused
    if text is not None:
        assert f"{10 - left} of 10 hosts would lose" in text
        assert f"--accept-removals {10 - left}" in text


def test_hosts_that_move_are_not_lost_and_unknown_ones_are():
    assert check_removals(fabric_of(10), fabric_of(10, "l2"), 0.0) is None
    unknown = check_removals(fabric_of(10), fabric_of(10, None), 0.2)
    assert unknown is not None
    assert "10 of 10 hosts" in unknown


def test_a_host_that_is_called_like_a_leaf_is_counted_once():
    reading = read("SwitchName=n1 Nodes=n[1-4]\nSwitchName=n2 Nodes=n[5-8]\n")
    assert sizes(reading, LEAF) == {"n1": 4, "n2": 4}


# --- parts of NVLink domains ----------------------------------------------------------------------


def test_racks_of_one_nvlink_domain_are_a_level_of_their_own():
    def instance(host: str, rack: int) -> dict[str, object]:
        key = "accelerator.topograph.run"
        labels = {f"{key}/domain": "nvl-1", f"{key}/sub-domain": f"nvl-1.rack-{rack}"}
        return {"id": host, "network_layers": ["leaf-a", "spine-a"], "labels": labels}

    text = json.dumps({"instances": [instance("n1", 1), instance("n2", 2), instance("n3", 2)]})
    reading = read(text)
    assert reading.problems == ()
    assert sizes(reading, FabricLevel.SUB_DOMAIN) == {"nvl-1.rack-1": 1, "nvl-1.rack-2": 2}
    assert sizes(reading, FabricLevel.NVLINK_DOMAIN) == {"nvl-1": 3}
    assert "sub-domain nvl-1.rack-2: 2 hosts: n[2-3]" in [*draw_fabric_tree(reading.fabric)]
    assert read(topograph.format_topograph_json(reading.fabric)).fabric == reading.fabric
    alone = text.replace('"accelerator.topograph.run/domain": "nvl-1", ', "")
    assert said(read(alone))[0] == "instance 'n1' has a sub-domain and no domain"


def test_a_part_of_two_nvlink_domains_contradicts_itself():
    fabric = FabricMap(
        [
            FabricPlace("a", nvlink_domain="v1", sub_domain="r"),
            FabricPlace("b", nvlink_domain="v2", sub_domain="r"),
        ]
    )
    assert fabric.contradictions() == (
        "sub-domain 'r' lies in more than one NVLink domain: 'v1', 'v2'",
    )


# --- what NVIDIA's requirements ask of what owners are told ---------------------------------------


@pytest.mark.parametrize("model", ["large", "medium", "nvl72"])
def test_owners_are_told_three_tiers_of_every_model_of_topograph(captures, model):
    """NET01-01 asks for the path of each node over three tiers, NET02-02 for its NVLink domain."""
    text = (captures / f"fabric/topograph-{model}.yaml").read_text(encoding="utf-8")
    fabric = read(text).fabric
    names = Names("00112233445566778899aabbccddeeff", fabric.name, "project")
    for place in fabric.places:
        assert {level for level, _ in place.path} == {LEAF, SPINE, CORE}
        told = names.domains(place)
        assert {"core", "spine", "leaf", "nvlink_domain"} <= told.keys()
        # What two nodes share by name they share by position, and nothing else.
        for other in fabric.places:
            theirs = names.domains(other)
            for word, name in told.items():
                same = place.domain(FabricLevel.from_word(word)) == other.domain(
                    FabricLevel.from_word(word)
                )
                assert (theirs[word] == name) == same
