# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given

from nova_hpc.fabric.model import TREE, FabricLevel, FabricMap, FabricPlace, wrong_name
from nova_hpc_tools.fabric.map_outline import find_crossed_leaves
from tests.unit.fabric.strategies import fabrics

TWO_LEAVES = FabricMap(
    [
        FabricPlace("n3", leaf="l2", spine="s1", nvlink_domain="v1"),
        FabricPlace("n1", leaf="l1", spine="s1", nvlink_domain="v1"),
        FabricPlace("n2", leaf="l1", spine="s1"),
        FabricPlace("n4"),
    ]
)


def test_a_level_is_known_by_its_word_and_nothing_else():
    assert [level.word for level in FabricLevel] == [
        "sub_domain",
        "nvlink_domain",
        "leaf",
        "block",
        "spine",
        "core",
    ]
    assert [FabricLevel.from_word(level.word) for level in FabricLevel] == list(FabricLevel)
    with pytest.raises(ValueError, match="'rack' is not one of: sub_domain, nvlink_domain, leaf"):
        FabricLevel.from_word("rack")


def test_hosts_and_domains_are_in_the_order_of_their_names():
    assert TWO_LEAVES.hosts() == ("n1", "n2", "n3", "n4")
    assert dict(TWO_LEAVES.domains(FabricLevel.LEAF)) == {"l1": ("n1", "n2"), "l2": ("n3",)}
    assert TWO_LEAVES.path("n3") == ((FabricLevel.SPINE, "s1"), (FabricLevel.LEAF, "l2"))
    assert TWO_LEAVES.path("stranger") == ()


def test_an_nvlink_domain_may_cross_a_leaf_and_is_told():
    assert find_crossed_leaves(TWO_LEAVES) == ("NVLink domain 'v1' crosses leaves: l1, l2",)
    assert TWO_LEAVES.contradictions() == ()


def test_a_leaf_in_two_spines_is_a_contradiction():
    fabric = FabricMap(
        [FabricPlace("a", leaf="l", spine="s1"), FabricPlace("b", leaf="l", spine="s2")]
    )
    assert fabric.contradictions() == ("leaf 'l' lies in more than one spine: 's1', 's2'",)


def test_a_host_is_in_a_map_once():
    with pytest.raises(ValueError, match="host 'a' is in the map twice"):
        FabricMap([FabricPlace("a"), FabricPlace("b"), FabricPlace("a", leaf="l")])


@pytest.mark.parametrize("name", ["", " a", "a\n", "a" * 129, "\x1b[2J", None, 7])
def test_what_is_no_name_is_refused(name):
    assert wrong_name(name)
    with pytest.raises(ValueError, match="host: "):
        FabricPlace(name)


def test_equal_maps_are_equal_wherever_they_come_from():
    one = FabricMap([FabricPlace("a"), FabricPlace("b")], source="x")
    other = FabricMap([FabricPlace("b"), FabricPlace("a")], source="y")
    assert one == other
    assert hash(one) == hash(other)


@given(fabrics())
def test_hosts_are_in_the_domains_that_their_places_say(fabric):
    assert fabric.contradictions() == ()
    for level in FabricLevel:
        for name, hosts in fabric.domains(level).items():
            assert [place.host for place in fabric.places if place.domain(level) == name] == [
                *hosts
            ]
    for level in TREE:
        members = [host for hosts in fabric.domains(level).values() for host in hosts]
        assert len(members) == len(set(members))
