# SPDX-License-Identifier: Apache-2.0
"""topograph, Slurm and the plain form."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.model import FabricLevel, FabricLink
from nova_hpc_tools.fabric.problems import FabricMapError, FabricReading
from nova_hpc_tools.fabric.readers import reader_choice as readers
from nova_hpc_tools.fabric.readers.reader_choice import ReaderOptions

SUB_DOMAIN, NVLINK, LEAF, BLOCK, SPINE, CORE = FabricLevel


def read(text: str, **options: object) -> FabricReading:
    return readers.read_fabric_text(text, "test", ReaderOptions(**options))


def said(reading: FabricReading) -> list[str]:
    return [str(problem) for problem in reading.problems]


def sizes(reading: FabricReading, level: FabricLevel) -> Mapping[str, int]:
    return {name: len(hosts) for name, hosts in reading.fabric.domains(level).items()}


TREE = """\
# two leaves
SwitchName=leaf1 Nodes=n[1-4] LinkSpeed=100
switchname=leaf2 \\
    Nodes=n[5-8]   # the other one
SwitchName=spine1 Switches=leaf[1-2]
"""
TREE_YAML = """\
---
- topology: other
  block: {block_sizes: [4], blocks: [{block: b1, nodes: "n[1-8]"}]}
- topology: tree1
  cluster_default: true
  tree:
    switches:
      - {switch: leaf1, nodes: "n[1-4]"}
      - {switch: leaf2, nodes: "n[5-8]"}
      - {switch: spine1, children: "leaf[1-2]"}
"""
MODEL = """\
switches:
  core: {switches: [spine-1]}
  spine-1:
    labels: {zone: z1}
    switches: [leaf1, leaf2]
blocks:
- {switch: leaf1, nodes: ["n[1-4]"], annotations: {accelerator.topology.test/domain: nv1}}
- {switch: leaf2, nodes: ["n[5-8]"], annotations: {accelerator.topology.test/domain: nv2}}
"""
PLAIN = """\
nova_hpc_fabric: 1
name: hall-a
domains:
  - {leaf: leaf1, spine: spine1, hosts: "n[1-4]", rails: [mlx5_0]}
  - {leaf: leaf2, spine: spine1, hosts: [n5, "n[6-8]"]}
  - {nvlink_domain: nv1, hosts: "n[3-6]"}
links:
  - {lower: leaf1, upper: spine1, count: 16, dead: 1, rate: 4xNDR}
"""


def graph(*instances: object) -> str:
    return json.dumps({"instances": instances}, indent=1)


def instance(name: str, *layers: str, domain: str | None = None) -> dict[str, object]:
    labels = {} if domain is None else {"accelerator.topograph.run/domain": domain}
    return {"id": name, "network_layers": list(layers), "labels": labels}


def test_a_tree_says_the_same_in_every_form():
    asked = graph(
        *(instance(f"n{number}", f"leaf{1 + number // 5}", "spine1") for number in range(1, 9))
    )
    maps = [read(text).fabric for text in (TREE, TREE_YAML, asked)]
    for found in maps:
        assert dict(found.domains(LEAF)) == {
            "leaf1": ("n1", "n2", "n3", "n4"),
            "leaf2": ("n5", "n6", "n7", "n8"),
        }
        assert found.places == maps[0].places
    assert dict(read(PLAIN).fabric.domains(LEAF)) == dict(maps[0].domains(LEAF))


@pytest.mark.parametrize(
    ("name", "leaf", "spine", "core", "nvlink"),
    [("large", 8, 16, 96, 8), ("medium", 2, 4, 8, 2), ("nvl72", 18, 36, 72, 18)],
)
def test_models_of_topograph(captures, name, leaf, spine, core, nvlink):
    text = (captures / f"fabric/topograph-{name}.yaml").read_text(encoding="utf-8")
    reading = read(text)
    assert (reading.problems, reading.notes) == ((), ())
    for level, each in ((LEAF, leaf), (SPINE, spine), (CORE, core), (NVLINK, nvlink)):
        found = sizes(reading, level)
        assert set(found.values()) == {each}
        assert sum(found.values()) == core


def test_a_graph_of_topograph_with_the_labels_of_all_its_releases():
    old = {"id": "a", "network_layers": ["l1", "s1"], "attributes": {"nvlink": "v1"}}
    new = instance("b", "l1", "s1", domain="v1")
    fabric = read(graph(old, new)).fabric
    assert dict(fabric.domains(NVLINK)) == {"v1": ("a", "b")}
    assert fabric.path("a") == fabric.path("b") == ((CORE, "s1"), (SPINE, "s1"), (LEAF, "l1"))


def test_four_tiers_have_blocks():
    fabric = read(graph(instance("a", "l1", "b1", "s1", "c1"))).fabric
    assert fabric.path("a") == ((CORE, "c1"), (SPINE, "s1"), (BLOCK, "b1"), (LEAF, "l1"))


def test_a_tree_of_unequal_depth():
    text = "SwitchName=l1 Nodes=a\nSwitchName=l2 Nodes=b\nSwitchName=s1 Switches=l1\n"
    fabric = read(text + "SwitchName=c Switches=s1,l2\n").fabric
    assert fabric.path("a") == ((CORE, "c"), (SPINE, "s1"), (LEAF, "l1"))
    assert fabric.path("b") == ((CORE, "c"), (LEAF, "l2"))


def test_two_spines_over_the_same_leaves_are_one():
    text = TREE + "SwitchName=spine2 Switches=leaf[1-2]\n"
    reading = read(text)
    assert reading.problems == ()
    assert sizes(reading, SPINE) == {"spine1": 8}
    assert [switch.domain for switch in reading.fabric.switches if switch.level is SPINE] == [
        "spine1",
        "spine1",
    ]


def test_blocks_of_slurm_are_what_the_operator_says():
    text = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8\n"
    assert sizes(read(text), BLOCK) == {"b1": 4, "b2": 4}
    assert sizes(read(text, block_level=NVLINK), NVLINK) == {"b1": 4, "b2": 4}
    assert sizes(read(TREE_YAML, topology="other"), BLOCK) == {"b1": 8}
    with pytest.raises(FabricMapError, match=r"no topology 'x'; it has: other, tree1"):
        read(TREE_YAML, topology="x")


def test_the_plain_form_says_all_there_is():
    reading = read(PLAIN)
    assert reading.problems == ()
    assert reading.fabric.name == "hall-a"
    assert read(PLAIN, name="hall-b").fabric.name == "hall-b"
    place = reading.fabric.place("n3")
    assert place is not None
    assert (place.leaf, place.nvlink_domain) == ("leaf1", "nv1")
    assert [rail.name for rail in place.rails] == ["mlx5_0"]
    assert reading.fabric.links == (FabricLink("leaf1", "spine1", 16, 1, "4xNDR"),)
    assert [str(note) for note in reading.notes] == [
        "NVLink domain 'nv1' crosses leaves: leaf1, leaf2"
    ]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            TREE + "SwitchName=leaf1 Nodes=n9\n",
            ["line 6: switch 'leaf1' is there twice, first in line 2, which counts"],
        ),
        (
            TREE.replace("n[5-8]", "n[4-8]"),
            ["line 2: host 'n4' is as much in one leaf as in another: leaf1, leaf2"],
        ),
        (TREE.replace("leaf[1-2]", "leaf[1-3]"), ["line 5: switch 'leaf3' is defined nowhere"]),
        (TREE.replace("n[1-4]", "n[4-1]"), ["line 2: the range 4-1 in 'n[4-1]' runs backwards"]),
        (TREE + "Spam\n", ["line 6: this makes no sense: 'Spam'"]),
        (TREE + "SwitchName=x Colour=red\n", ["line 6: this makes no sense: 'colour'"]),
        (
            TREE + "SwitchName=top Switches=spine1,top\n",
            ["line 6: switches are above each other in a circle: top"],
        ),
        (
            "BlockName=b1 Nodes=a\nBlockName=b2 Nodes=a\n",
            ["line 2: host 'a' is in block 'b2' here and in 'b1' in line 1: which one is unknown"],
        ),
        (
            MODEL.replace("leaf2, nodes", "leaf3, nodes"),
            ["line 8: no switch 'leaf3' is defined"],
        ),
        (
            MODEL.replace("n[5-8]", "n[4-8]"),
            [
                "line 7: host 'n4' is as much in one leaf as in another: leaf1, leaf2",
                "line 8: host 'n4' is in more than one NVLink domain: nv1, nv2",
            ],
        ),
        (
            graph(instance("a", "l1", "s1"), instance("a", "l2", "s1")),
            [
                "line 11: instance 'a' is there twice, first in line 3: where it is, is unknown",
            ],
        ),
        (
            graph({"network_layers": ["l1"]}, instance("b", "l1", "", "c")),
            ["line 3: an instance has no id", "line 12: instance 'b' has a layer without a name"],
        ),
        (
            PLAIN.replace("n[6-8]", "n[4-8]"),
            [
                "line 5: host 'n4' is in leaf 'leaf2' here and in 'leaf1' in line 4: which one is "
                "unknown"
            ],
        ),
        (
            PLAIN.replace("count: 16", "count: -1"),
            ["line 8: count is '-1', not a number of cables"],
        ),
        (
            PLAIN.replace("leaf: leaf2", "rack: leaf2"),
            ["line 5: 'rack' is no known key of a domain"],
        ),
        (PLAIN + "name: again\n", ["line 9: 'name' is there twice; the first one counts"]),
        (
            PLAIN.replace("leaf2, spine: spine1", "leaf1, spine: spine2"),
            ["leaf 'leaf1' lies in more than one spine: 'spine1', 'spine2'"],
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text, problems):
    assert said(read(text)) == problems


def test_what_contradicts_itself_is_unknown_and_the_rest_is_known():
    fabric = read(TREE.replace("n[5-8]", "n[4-8]")).fabric
    assert fabric.path("n4") == ((CORE, "spine1"), (SPINE, "spine1"))
    assert fabric.path("n3") == ((CORE, "spine1"), (SPINE, "spine1"), (LEAF, "leaf1"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("a: [", "line 2: it is neither YAML nor JSON"),
        ("\t: x: y", "line 1: it is neither YAML nor JSON"),
        ("{}", "it is of no known form; these are read: topograph, slurm, ibnetdiscover, plain"),
        ("- 1\n- 2\n", "it is of no known form"),
        ("nova_hpc_fabric: 2\ndomains: []\n", "reads 1"),
        ("nova_hpc_fabric: 1\n", "no list 'domains'"),
        ('{"instances": {}}', "no list 'instances'"),
        ("a: &x [1]\nswitches: {a: *x, b: *x}", "aliases of mappings and lists are not read"),
        ("[" * 100 + "]" * 100, "nested too deep"),
        ("a\0b", "it is no text"),
    ],
)
def test_what_is_no_map_is_refused(text, said):
    with pytest.raises(FabricMapError, match=said):
        read(text)


def test_json_with_tabs_has_its_lines_too():
    text = json.dumps(
        {"instances": [instance("a\u00e9", "l1"), {"id": 5}, {"id": ""}]}, indent="\t"
    )
    assert said(read(text)) == ["line 13: the id of an instance: '' is no name"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SwitchName=l1 Nodes=n1,n\u200b2", "a node"),
        ("BlockName=b1 Nodes=n1,n\u200b2", "a node"),
        ('blocks: [{nvlink: v1, nodes: ["n1,n\u200b2"]}]', "a node"),
        ('nova_hpc_fabric: 1\ndomains: [{leaf: l1, hosts: "n1,n\u200b2"}]', "a host"),
        ('nova_hpc_fabric: 1\ndomains: [{leaf: l1, hosts: n1, rails: "n\u200b2"}]', "a rail"),
    ],
)
def test_a_wrong_name_in_a_list_costs_no_other(text, what):
    reading = read(text)
    assert reading.fabric.hosts() == ("n1",)
    line = text.count("\n") + 1
    assert said(reading) == [
        f"line {line}: {what}: {'n' + chr(0x200B) + '2'!r} has characters that a name cannot have"
    ]
    assert reading.notes == ()


def test_an_entry_whose_hosts_are_all_wrong_names_no_host():
    for hosts in ("n\u200b2", "n[1-"):
        reading = read(f'nova_hpc_fabric: 1\ndomains:\n- {{leaf: l1, hosts: "{hosts}"}}')
        assert "line 3: the entry names no host" in map(str, reading.notes)


def test_another_form_than_the_one_that_was_named_is_refused():
    with pytest.raises(FabricMapError, match="not of the form plain"):
        read(MODEL, form="plain")
    with pytest.raises(FabricMapError, match="neither a switch nor a block"):
        read("colour=red", form="slurm")


@given(st.sampled_from([TREE, TREE_YAML, MODEL, PLAIN, graph(instance("a", "l", "s"))]), st.data())
def test_damage_never_raises_anything_else(text, data):
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        other = data.draw(st.integers(at, len(text)))
        new = data.draw(st.one_of(st.just(""), st.just(text[at:other] * 2), st.text(max_size=8)))
        text = text[:at] + new + text[other:]
    try:
        reading = read(text)
    except FabricMapError:
        return
    for problem in (*reading.problems, *reading.notes):
        assert problem.text.isprintable()
