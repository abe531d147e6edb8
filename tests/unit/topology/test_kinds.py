# SPDX-License-Identifier: Apache-2.0
"""Nodes side by side: kinds, and the odd ones out."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.inventory import kinds
from tests.nodes.catalogue import NODES
from tests.nodes.write import write

GPU = "3D controller 10de:2330"


@functools.cache
def node(name: str) -> Node:
    with tempfile.TemporaryDirectory() as folder:
        return sysfs.read_sysfs_node(write(NODES[name], Path(folder)))


def gpus(of: Node) -> list[PciFunction]:
    return [one for one in of.functions if one.product_id == "2330"]


def with_function(of: Node, new: PciFunction) -> Node:
    functions = tuple(new if one.address == new.address else one for one in of.functions)
    return attrs.evolve(of, functions=functions)


def narrow(of: Node, number: int) -> Node:
    one = gpus(of)[number - 1]
    assert one.link is not None
    return with_function(of, attrs.evolve(one, link=attrs.evolve(one.link, width=8)))


def without(of: Node, address: str) -> Node:
    return attrs.evolve(of, functions=tuple(one for one in of.functions if one.address != address))


def said(fleet: kinds.NodeFleet) -> list[tuple[str, str, str, str | None]]:
    """Node, place and fact, value, and what is usual."""
    return [
        (name, f"{one.place}: {one.fact}", each.value, one.usual and one.usual.value)
        for one in fleet.differences
        for each in one.odd
        for name in each.nodes
    ]


def test_one_narrow_link_among_equals():
    hgx = node("hgx-h100")
    fleet = kinds.compare_nodes(
        {f"node{n:02}": narrow(hgx, 3) if n == 17 else hgx for n in range(20)}
    )
    (kind,) = fleet.kinds
    assert kind.nodes == tuple(f"node{n:02}" for n in range(20))
    assert kind.processors == "2 NUMA nodes, 192 CPUs, 2048 GiB"
    assert kind.devices[GPU] == 8
    assert said(fleet) == [("node17", f"{GPU} no. 3: link width", "x8", "x16")]
    assert [len(value.nodes) for value in fleet.differences[0].values] == [19, 1]


def test_a_speed_that_an_idle_device_lowers_is_not_odd():
    hgx = node("hgx-h100")
    one = gpus(hgx)[0]
    assert one.link is not None
    idle = with_function(hgx, attrs.evolve(one, link=attrs.evolve(one.link, speed=2.5)))
    assert said(kinds.compare_nodes({"a": hgx, "b": hgx, "c": idle})) == []


def test_a_device_that_is_missing_is_named_and_the_others_keep_their_numbers():
    hgx = node("hgx-h100")
    gone = gpus(hgx)[1].address
    fleet = kinds.compare_nodes({"a": hgx, "b": hgx, "c": without(hgx, gone)})
    assert len(fleet.kinds) == 1
    assert fleet.kinds[0].devices[GPU] == 8
    found = said(fleet)
    assert ("c", f"node: number of {GPU}", f"7 without {gone}", "8") in found
    # What was beside it has one neighbour less, and nothing else differs.
    assert {place.rpartition(": ")[2] for _, place, _, _ in found} <= {
        f"number of {GPU}",
        "beside it at its switch",
    }


def test_where_no_value_is_usual_all_are_told():
    hgx = node("hgx-h100")
    fleet = kinds.compare_nodes({"a": hgx, "b": narrow(hgx, 1)})
    (one,) = fleet.differences
    assert one.usual is None
    assert {(value.value, value.nodes) for value in one.odd} == {("x16", ("a",)), ("x8", ("b",))}


def test_nodes_of_other_kinds_are_not_compared():
    # One of these is another before it was prepared: the same hardware, with other drivers.
    names = [name for name in NODES if name != "gh200-host"]
    fleet = kinds.compare_nodes({name: node(name) for name in names})
    assert [len(kind.nodes) for kind in fleet.kinds] == [1] * len(names)
    assert fleet.differences == ()


def test_less_memory_is_odd_and_what_firmware_keeps_is_not():
    hgx = node("hgx-h100")

    def memory(share: float) -> Node:
        first, *rest = hgx.numa_nodes
        assert first.memory_kib is not None
        less = attrs.evolve(first, memory_kib=int(first.memory_kib * share))
        return attrs.evolve(hgx, numa_nodes=(less, *rest))

    fleet = kinds.compare_nodes({"a": hgx, "b": hgx, "c": memory(0.99), "d": memory(0.5), "e": hgx})
    assert said(fleet) == [("d", "NUMA node 0: memory", "512.0 GiB", "1024.0 GiB")]


@pytest.mark.parametrize(
    ("change", "fact", "value"),
    [
        ({"numa_node": 1}, "NUMA node", "1"),
        ({"driver": "nouveau"}, "driver", "nouveau"),
        ({"reset_methods": ()}, "ways to reset it", "none"),
        ({"bars": ()}, "largest memory region", "0 bytes"),
        ({"subsystem_id": "ffff"}, "board", "10de:ffff"),
        ({"revision": "ff"}, "revision", "ff"),
        ({"unknown": "no class"}, "place", "no class"),
    ],
)
def test_each_fact_of_a_device(change, fact, value):
    hgx = node("hgx-h100")
    odd = with_function(hgx, attrs.evolve(gpus(hgx)[0], **change))
    found = said(kinds.compare_nodes({"a": hgx, "b": hgx, "c": odd}))
    assert ("c", f"{GPU} no. 1: {fact}", value) in {each[:3] for each in found}
    assert {name for name, *_ in found} == {"c"}


def test_no_nodes():
    assert kinds.compare_nodes({}) == kinds.NodeFleet((), ())


_NAMES = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["hgx-h100", "mi300x", "bare"]), st.booleans()),
    max_size=12,
)


@given(_NAMES, st.randoms())
def test_every_node_is_of_one_kind_and_order_does_not_matter(names, random):
    def made(name: str, odd: bool) -> Node:
        return narrow(node(name), 1) if odd and name == "hgx-h100" else node(name)

    nodes = {name: made(*of) for name, of in names.items()}
    fleet = kinds.compare_nodes(nodes)
    assert sorted(name for kind in fleet.kinds for name in kind.nodes) == sorted(names)
    assert [kind.number for kind in fleet.kinds] == list(range(1, len(fleet.kinds) + 1))
    # By brute force: which nodes have the narrow link, and whether most have it.
    hgx = {name: odd for name, (of, odd) in names.items() if of == "hgx-h100"}
    bad = {name for name, odd in hgx.items() if odd}
    good = hgx.keys() - bad
    expected = set()
    if bad and good:
        expected = min(bad, good, key=len) if len(bad) != len(good) else bad | good
    assert {name for name, *_ in said(fleet)} == set(expected)
    shuffled = list(nodes)
    random.shuffle(shuffled)
    assert kinds.compare_nodes({name: nodes[name] for name in shuffled}) == fleet
