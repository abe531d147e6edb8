# SPDX-License-Identifier: Apache-2.0
"""The plan of a synchronisation, against a cloud that obeys Nova's rules."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.aggregates import PREFIX, SALT_KEY
from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc_tools.fabric import sync
from nova_hpc_tools.fabric.sync import (
    CloudAggregate,
    SyncPlan,
    SyncStep,
    map_as_in_nova,
    map_of_aggregates,
    plan_sync,
)
from tests.unit.fabric.strategies import fabrics

HOSTS = tuple(f"n{number:02d}" for number in range(12))
SALT = "00112233445566778899aabbccddeeff"


class RefusedError(Exception):
    """What Nova would refuse."""


@attrs.define
class Cloud:
    """Nova's rules for aggregates (nova/compute/api.py, class AggregateAPI)."""

    aggregates: dict[str, CloudAggregate] = attrs.Factory(dict)
    count: int = 0

    def has(self) -> list[CloudAggregate]:
        return list(self.aggregates.values())

    def make(self, name: str, metadata: dict[str, str] | None = None, *hosts: str) -> str:
        if name in {each.name for each in self.aggregates.values()}:
            raise RefusedError(f"{name} exists")
        self.count += 1
        found = CloudAggregate(str(self.count), name, metadata or {}, tuple(sorted(hosts)))
        self.aggregates[found.id] = found
        return found.id

    def apply(self, step: SyncStep) -> None:
        if step.kind == sync.CREATE:
            self.make(step.aggregate)
            return
        id_ = step.id or next(
            each.id for each in self.aggregates.values() if each.name == step.aggregate
        )
        each = self.aggregates[id_]
        if step.kind == sync.DELETE:
            if each.hosts:
                raise RefusedError("it has hosts")
            del self.aggregates[id_]
        elif step.kind == sync.RENAME:
            if step.value in {other.name for other in self.aggregates.values()}:
                raise RefusedError("the name is taken")
            self.aggregates[id_] = attrs.evolve(each, name=str(step.value))
        elif step.kind == sync.METADATA:
            merged = {**each.metadata, **step.metadata}
            kept = {key: value for key, value in merged.items() if value is not None}
            self.aggregates[id_] = attrs.evolve(each, metadata=kept)
        elif step.kind == sync.ADD:
            if step.value in each.hosts:
                raise RefusedError("the host is there")
            self.aggregates[id_] = attrs.evolve(each, hosts=(*each.hosts, str(step.value)))
        else:
            if step.value not in each.hosts:
                raise RefusedError("the host is not there")
            left = tuple(host for host in each.hosts if host != step.value)
            self.aggregates[id_] = attrs.evolve(each, hosts=left)

    def sync(self, fabric: FabricMap, most: int | None = None) -> SyncPlan:
        found = plan_sync(fabric, self.has(), HOSTS)
        for step in found.steps[:most]:
            self.apply(step)
        return found


def says(cloud: Cloud, name: str = "fabric") -> FabricMap:
    fabric, problems = map_of_aggregates(cloud.has(), name)
    assert problems == ()
    return fabric


def known(fabric: FabricMap) -> dict[str, FabricPlace]:
    """What aggregates can say of a map."""
    return {
        place.host: attrs.evolve(place, rails=())
        for place in fabric.places
        if place.path or place.nvlink_domain
    }


def named(fabric: FabricMap, name: str = "fabric") -> FabricMap:
    return attrs.evolve(fabric, name=name)


@given(fabrics(), fabrics(), st.data())
def test_from_any_map_to_any_other_however_often_it_is_cut_short(old, new, data):
    cloud = Cloud()
    theirs = cloud.make("gpu nodes", {"availability_zone": "az1", "leaf": "x"}, *HOSTS[:5])
    before = cloud.aggregates[theirs]
    cloud.sync(named(old))
    assert known(says(cloud)) == known(old)
    for _ in range(data.draw(st.integers(0, 3))):
        cloud.sync(named(new), most=data.draw(st.integers(0, 12)))
    cloud.sync(named(new))
    assert known(says(cloud)) == known(new)
    assert cloud.sync(named(new)).steps == ()
    assert cloud.aggregates[theirs] == before
    names = [each.name for each in cloud.has()]
    assert len(names) == len(set(names))
    # What is gone has left nothing.
    assert len(names) == 1 + len(
        {each.name for each in cloud.has() if each.hosts and each != before}
    )


@given(fabrics(), fabrics(), st.data())
def test_what_a_hand_has_changed_is_set_right(old, new, data):
    cloud = Cloud()
    cloud.sync(named(old))
    for each in cloud.has():
        change = data.draw(st.sampled_from(["", "key", "drop", "rename", "hosts", "extra"]))
        metadata, name, hosts = dict(each.metadata), each.name, each.hosts
        if change == "key":
            metadata[data.draw(st.sampled_from(sorted(metadata)))] = "edited"
        elif change == "drop":
            metadata.pop(data.draw(st.sampled_from(sorted(metadata))))
        elif change == "rename":
            name = f"mine {each.id}"
        elif change == "hosts":
            hosts = tuple(data.draw(st.lists(st.sampled_from(HOSTS), unique=True)))
        elif change == "extra":
            metadata["colour"] = "red"
        cloud.aggregates[each.id] = CloudAggregate(each.id, name, metadata, hosts)
    found = cloud.sync(named(new))
    if not found.refusals:
        assert cloud.sync(named(new)).steps == ()
        marks = {f"{PREFIX}map", f"{PREFIX}version"}
        left = [each for each in cloud.has() if marks <= each.metadata.keys()]
        assert known(says(Cloud({each.id: each for each in left}))) == known(new)


LEAVES = FabricMap([FabricPlace("n01", leaf="l1"), FabricPlace("n02", leaf="l2")])


def test_a_host_leaves_one_leaf_before_it_enters_the_other():
    cloud = Cloud()
    cloud.sync(LEAVES)
    found = cloud.sync(FabricMap([FabricPlace("n01", leaf="l2"), FabricPlace("n02", leaf="l2")]))
    assert [(step.kind, step.aggregate, step.value) for step in found.steps] == [
        ("remove host", "hpc-fabric:leaf:l1", "n01"),
        ("add host", "hpc-fabric:leaf:l2", "n01"),
        ("delete", "hpc-fabric:leaf:l1", None),
    ]


def test_two_maps_of_different_names_live_side_by_side():
    cloud = Cloud()
    cloud.sync(LEAVES)
    other = FabricMap([FabricPlace("n03", leaf="m1")], name="hall b")
    assert cloud.sync(other).refusals == ()
    assert known(says(cloud)) == known(LEAVES)
    assert known(says(cloud, "hall b")) == known(other)
    assert cloud.sync(LEAVES).steps == ()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            FabricPlace("n01", leaf="m1"),
            "two maps at once: n01 are in aggregate 'hpc-fabric:leaf:l1'",
        ),
        (
            FabricPlace("n03", leaf="l1"),
            "two maps at once: 'hpc-fabric:leaf:l1' is an aggregate of",
        ),
    ],
)
def test_two_maps_that_want_the_same_are_refused(place, said):
    cloud = Cloud()
    cloud.sync(LEAVES)
    found = plan_sync(FabricMap([place], name="hall b"), cloud.has(), HOSTS)
    assert found.steps == ()
    assert any(said in refusal for refusal in found.refusals)


def test_what_is_not_ours_is_never_taken():
    cloud = Cloud()
    cloud.make("hpc-fabric:leaf:l1", {"colour": "red"}, "n05")
    found = plan_sync(LEAVES, cloud.has(), HOSTS)
    assert found.steps == ()
    assert "has not the mark hpc_fabric:version" in found.refusals[0]


def test_what_a_later_release_wrote_is_left_alone():
    cloud = Cloud()
    cloud.make("x", {"hpc_fabric:version": "2"}, "n05")
    found = plan_sync(LEAVES, cloud.has(), HOSTS)
    assert (found.steps, len(found.refusals)) == ((), 1)
    assert "update nova-hpc" in found.refusals[0]


def test_an_aggregate_that_somebody_uses_otherwise_stays_without_our_keys():
    cloud = Cloud()
    cloud.sync(LEAVES)
    (id_,) = [each.id for each in cloud.has() if each.name.endswith("l2")]
    has = cloud.aggregates[id_]
    cloud.aggregates[id_] = attrs.evolve(has, metadata={**has.metadata, "colour": "red"})
    found = cloud.sync(FabricMap([FabricPlace("n01", leaf="l1")]))
    assert "because it also has colour" in found.notes[0]
    assert cloud.aggregates[id_].metadata == {"colour": "red"}
    assert cloud.aggregates[id_].hosts == ()


def test_hosts_that_only_one_of_both_has_are_named():
    fabric = FabricMap([FabricPlace("n01", leaf="l1"), FabricPlace("stranger", leaf="l1")])
    found = plan_sync(fabric, [], ["n01", "n02"])
    assert (found.not_in_nova, found.not_in_map) == (("stranger",), ("n02",))


def test_a_map_of_another_cloud_is_refused():
    found = plan_sync(FabricMap([FabricPlace("a", leaf="l1")]), [], HOSTS)
    assert found.refusals == ("Nova has none of the 1 hosts of the map: is it of another cloud?",)
    assert plan_sync(FabricMap(), [], HOSTS).refusals == ()


def test_nova_may_call_a_host_by_its_full_name():
    fabric = FabricMap(
        [FabricPlace("n1", leaf="l1"), FabricPlace("N2", leaf="l1"), FabricPlace("n3", leaf="l1")]
    )
    there = map_as_in_nova(fabric, ["n1.example.org", "n2", "n3.a.org", "n3.b.org"])
    assert there.hosts() == ("n1.example.org", "n2")


def test_one_host_of_nova_is_not_two_of_the_map():
    fabric = FabricMap(
        [FabricPlace("n1", leaf="l1"), FabricPlace("N1", leaf="l2"), FabricPlace("n1.a", leaf="l3")]
    )
    assert map_as_in_nova(fabric, ["n1.a"]).path("n1.a") == fabric.path("n1.a")
    assert map_as_in_nova(fabric, ["n1.b"]).hosts() == ()


def test_an_availability_zone_on_an_aggregate_of_ours_is_told():
    cloud = Cloud()
    cloud.sync(LEAVES)
    has = cloud.aggregates["1"]
    cloud.aggregates["1"] = attrs.evolve(has, metadata={**has.metadata, "availability_zone": "a"})
    found = plan_sync(LEAVES, cloud.has(), HOSTS)
    assert found.steps == ()
    assert "take it off" in found.notes[0]


def test_a_map_keeps_its_secret() -> None:
    """Another one would give all domains other names in the eyes of users."""
    fabric = FabricMap(
        [FabricPlace("n01", leaf="l1"), FabricPlace("n02", leaf="l2")], name="fabric"
    )
    cloud = Cloud()

    def salts() -> set[str | None]:
        return {each.metadata.get(SALT_KEY) for each in cloud.has()}

    cloud.sync(fabric)
    assert salts() == {None}
    for salt in (SALT, "ff" * 16):
        for step in plan_sync(fabric, cloud.has(), HOSTS, salt=salt).steps:
            cloud.apply(step)
        assert salts() == {SALT}
    # Two first runs at once: the next one makes one of two.
    second = cloud.has()[1]
    cloud.aggregates[second.id] = attrs.evolve(
        second, metadata={**second.metadata, SALT_KEY: "ff" * 16}
    )
    cloud.sync(fabric)
    assert salts() == {SALT}
    # A map whose leaves are all others has the same, and without one it gets none.
    cloud.sync(FabricMap([FabricPlace("n01", leaf="l3")], name="fabric"))
    assert salts() == {SALT}
    assert cloud.sync(FabricMap([FabricPlace("n01", leaf="l3")], name="fabric")).steps == ()
