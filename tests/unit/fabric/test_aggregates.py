# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given

from nova_hpc.fabric.aggregates import (
    PREFIX,
    read_aggregate_place,
)
from nova_hpc.fabric.model import FabricMap, FabricPlace, Rail
from nova_hpc_tools.fabric.map_aggregates import NAME_PREFIX, aggregates_of
from tests.unit.fabric.strategies import fabrics

LEAF = {
    "hpc_fabric:version": "1",
    "hpc_fabric:map": "fabric",
    "hpc_fabric:kind": "leaf",
    "hpc_fabric:leaf": "l1",
    "hpc_fabric:spine": "s1",
}
NVLINK = {
    "hpc_fabric:version": "1",
    "hpc_fabric:map": "fabric",
    "hpc_fabric:kind": "nvlink_domain",
    "hpc_fabric:nvlink_domain": "v1",
}
#: Keys that other filters, weighers and periodic tasks of Nova read in aggregates.
NOVAS = ("availability_zone", "filter_tenant_id", "trait:", "cpu_allocation_ratio", "max_")


def metadata_of(fabric: FabricMap, host: str) -> list[dict[str, str]]:
    return [dict(each.metadata) for each in aggregates_of(fabric) if host in each.hosts]


def test_a_leaf_is_one_aggregate_and_an_nvlink_domain_another():
    fabric = FabricMap(
        [
            FabricPlace("n1", leaf="l1", spine="s1", nvlink_domain="v1", rails=(Rail("mlx5_0"),)),
            FabricPlace("n2", leaf="l1", spine="s1"),
            FabricPlace("n3", spine="s1"),
            FabricPlace("n4"),
        ]
    )
    leaf, nvlink, spine = aggregates_of(fabric)
    assert (leaf.name, leaf.hosts) == ("hpc-fabric:leaf:l1", ("n1", "n2"))
    assert dict(leaf.metadata) == LEAF
    assert (nvlink.name, nvlink.hosts) == ("hpc-fabric:nvlink_domain:v1", ("n1",))
    assert dict(nvlink.metadata) == NVLINK
    # A host without a known leaf still has what is known of it.
    assert (spine.name, spine.hosts) == ("hpc-fabric:spine:s1", ("n3",))


@given(fabrics())
def test_what_aggregates_say_is_what_the_map_says(fabric):
    for place in fabric.places:
        reading = read_aggregate_place(place.host, metadata_of(fabric, place.host))
        assert reading.problems == ()
        assert reading.place.path == place.path
        assert reading.place.nvlink_domain == place.nvlink_domain
        leaf = [other for other in fabric.places if place.leaf and other.leaf == place.leaf]
        rails = sorted({rail.name for other in leaf for rail in other.rails})
        assert [rail.name for rail in reading.place.rails] == [
            name
            for name in rails
            if 2 * sum(Rail(name) in other.rails for other in leaf) > len(leaf)
        ]


@given(fabrics())
def test_no_key_is_one_that_nova_reads(fabric):
    found = aggregates_of(fabric)
    assert len({each.name for each in found}) == len(found)
    for each in found:
        assert each.name.startswith(NAME_PREFIX)
        assert len(each.name) <= 255
        assert list(each.hosts) == sorted(set(each.hosts))
        for key, value in each.metadata:
            assert key.startswith(PREFIX)
            assert not key.startswith(NOVAS)
            assert 0 < len(value) <= 255


def test_aggregates_of_others_say_nothing():
    others = [{"availability_zone": "az1"}, {"leaf": "l9"}, {}]
    assert read_aggregate_place("n1", [*others, LEAF]).place == FabricPlace(
        "n1", leaf="l1", spine="s1"
    )
    assert read_aggregate_place("n1", others).problems == ()
    # Somebody may add keys of his own to an aggregate of ours.
    assert read_aggregate_place("n1", [{**LEAF, "colour": "red"}]).place.leaf == "l1"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hpc_fabric:leaf": ""}, "hpc_fabric:leaf=''"),
        ({"hpc_fabric:leaf": None}, "no hpc_fabric:leaf"),
        ({"hpc_fabric:leaf": " l1"}, "hpc_fabric:leaf=' l1'"),
        ({"hpc_fabric:spine": "\x07"}, r"hpc_fabric:spine='\\x07'"),
        ({"hpc_fabric:kind": "rack"}, "hpc_fabric:kind='rack'"),
        ({"hpc_fabric:kind": None}, "hpc_fabric:kind=None"),
        ({"hpc_fabric:kind": "spine"}, "hpc_fabric:leaf, which does not belong there"),
        ({"hpc_fabric:nvlink_domain": "v"}, "hpc_fabric:nvlink_domain, which does not belong"),
        ({"hpc_fabric:map": None}, "no hpc_fabric:map"),
        ({"hpc_fabric:version": None}, "no hpc_fabric:version"),
        ({"hpc_fabric:version": "2"}, "hpc_fabric:version='2'"),
    ],
)
def test_what_a_hand_has_edited_is_unknown_and_named(change, said):
    edited = {key: value for key, value in {**LEAF, **change}.items() if value is not None}
    reading = read_aggregate_place("n1", [edited, NVLINK])
    assert reading.place == FabricPlace("n1", nvlink_domain="v1")
    assert len(reading.problems) == 1
    assert said.replace("\\\\", "\\") in reading.problems[0]


def test_a_host_in_two_leaves_is_in_none_of_them():
    other = {**LEAF, "hpc_fabric:leaf": "l2"}
    reading = read_aggregate_place("n1", [LEAF, other])
    assert reading.place == FabricPlace("n1", spine="s1")
    assert reading.problems == ("host 'n1' is in two domains of level leaf at once: 'l1' and 'l2'",)


def test_a_host_in_two_maps_is_nowhere():
    other = {**NVLINK, "hpc_fabric:map": "hall b"}
    reading = read_aggregate_place("n1", [LEAF, other])
    assert reading.place == FabricPlace("n1")
    assert reading.problems == ("host 'n1' is in the maps 'fabric' and 'hall b' at once",)
