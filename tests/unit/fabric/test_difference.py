# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools

from hypothesis import given

from nova_hpc.fabric.model import FabricLevel, FabricLink, FabricMap, FabricPlace
from nova_hpc_tools.fabric.difference import (
    FabricDifference,
    compare_fabric_maps,
    spread_changes_of,
)
from tests.unit.fabric.strategies import fabrics

LEAF = FabricLevel.LEAF
OLD = FabricMap(
    [FabricPlace("a", leaf="l1"), FabricPlace("b", leaf="l1"), FabricPlace("c", leaf="l2")]
)
NEW = FabricMap(
    [FabricPlace("a", leaf="l1"), FabricPlace("b", leaf="l2"), FabricPlace("d", leaf="l3")]
)


def test_what_differs_is_said_once():
    assert compare_fabric_maps(OLD, NEW) == (
        FabricDifference("new host", "d", None, None, "leaf l3"),
        FabricDifference("gone host", "c", None, "leaf l2", None),
        FabricDifference("moved", "b", LEAF, "l1", "l2"),
        FabricDifference("new domain", "l3", LEAF, None, "1 hosts"),
    )


def test_a_lost_cable_is_a_difference():
    old = FabricMap(links=[FabricLink("l1", "s1", 2, 0, "4xNDR")])
    new = FabricMap(links=[FabricLink("l1", "s1", 1, 1, "4xNDR")])
    (found,) = compare_fabric_maps(old, new)
    assert (found.name, found.old, found.new) == ("l1 - s1", "2 up, 4xNDR", "1 up, 4xNDR")
    assert compare_fabric_maps(old, new, cables=False) == ()


@given(fabrics(), fabrics())
def test_equal_places_are_no_difference_and_others_are(old, new):
    assert compare_fabric_maps(old, old) == ()
    moved = {
        each.name
        for each in compare_fabric_maps(old, new)
        if each.kind in ("moved", "new host", "gone host")
    }
    truth = {
        host
        for host in {*old.hosts(), *new.hosts()}
        if (one := old.place(host)) is None
        or (other := new.place(host)) is None
        or any(one.domain(level) != other.domain(level) for level in FabricLevel)
    }
    assert moved == truth


def test_a_cluster_that_is_torn_apart_is_named():
    (found,) = spread_changes_of({"train": ["a", "b", "a"], "other": ["a"]}, OLD, NEW)
    assert str(found) == "cluster train now spans 2 leaves (before: 1)"
    # A host that the map has lost is nowhere: nobody knows that it is near.
    (lost,) = spread_changes_of(
        {"train": ["a", "b"]}, OLD, FabricMap([FabricPlace("a", leaf="l1")])
    )
    assert (lost.before, lost.now) == (1, 2)


@given(fabrics(), fabrics())
def test_a_cluster_is_named_when_it_spans_another_number_of_domains(old, new):
    hosts = old.hosts()[:4]
    for members in itertools.chain.from_iterable(itertools.combinations(hosts, n) for n in (2, 3)):
        for found in spread_changes_of({"x": members}, old, new):
            for fabric, count in ((old, found.before), (new, found.now)):
                names = [
                    place.domain(found.level) if (place := fabric.place(host)) else None
                    for host in members
                ]
                assert count == len({name for name in names if name}) + names.count(None)
