# SPDX-License-Identifier: Apache-2.0
"""What the fabric filter reads from Nova's objects, without services."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc.cluster.group_domain.model import Size
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.from_nova import (
    fabric,
    fabric_nearness,
    fabric_records,
    placement_answer,
    rebuilds,
)
from nova_hpc.from_nova.patches import answers
from nova_hpc.placement.flavor import Fabric
from nova_hpc_common.level import AffinityPolicy
from scheduler_filters.hpc_fabric_filter import HpcFabricFilter

LEAF = {
    "hpc_fabric:version": "1",
    "hpc_fabric:map": "ib",
    "hpc_fabric:kind": "leaf",
    "hpc_fabric:leaf": "leaf1",
    "hpc_fabric:block": "b",
}


def spec(hint: object = None, **group: object) -> objects.RequestSpec:
    return objects.RequestSpec(
        scheduler_hints={} if hint is None else {"hpc_members": hint},
        instance_group=objects.InstanceGroup(**group) if group else None,
    )


def host(name: str, *metadata: object, free: int = 2, used: int = 0) -> SimpleNamespace:
    """Takes *free* servers, and *used* more were there before."""
    return SimpleNamespace(
        host=name,
        nodename=name,
        uuid=f"uuid-{name}",
        aggregates=[SimpleNamespace(metadata=each) for each in metadata],
        instances={},
        allocation_candidates=[{"allocations": {f"uuid-{name}": {"resources": {"VCPU": 4}}}}],
        summary={
            f"uuid-{name}": {
                "root_provider_uuid": f"uuid-{name}",
                "resources": {"VCPU": {"capacity": 4 * (free + used), "used": 4 * used}},
            }
        },
    )


def seen(request: objects.RequestSpec, *hosts: SimpleNamespace) -> fabric.FabricView:
    placement_answer.keep_answer(
        request, {key: value for each in hosts for key, value in each.summary.items()}
    )
    return fabric.locate_hosts(hosts, request)


def test_this_nova_is_known() -> None:
    assert fabric_records.list_client_differences() == []


@pytest.mark.parametrize(("hint", "expected"), [(None, None), (["4"], 4), ([7], 7)])
def test_a_number_of_members(hint: object, expected: int | None) -> None:
    """Nova's object holds nothing but lists of strings."""
    assert fabric.announced_members_of(spec(hint)) == expected


_WRONG = ["-3", "0", "4097", str(10**9), "9" * 5000, "four", "", " 4", "1.5", "1_0", "\u0663", True]


@pytest.mark.parametrize("hint", [*([each] for each in _WRONG), [], ["2", "3"]])
def test_what_is_no_number_of_members(hint: object) -> None:
    with pytest.raises(fabric.HintError, match="hpc_members must be one number from 1 to 4096"):
        fabric.announced_members_of(spec(hint))


def test_where_hosts_are_and_what_fits() -> None:
    request = spec()
    view = seen(request, host("a", LEAF, used=1), host("b", LEAF, free=3), host("c"))
    assert view.size.per_host == 3
    (domain,) = view.ground.free(FabricLevel.LEAF)
    assert str(domain) == "leaf ib/leaf1"
    assert view.ground.free(FabricLevel.LEAF) == {domain: 5}
    assert [spot.host.host for spot in view.within(domain.uuid)] == ["a", "b"]
    offer = view.offer(Fabric("leaf", AffinityPolicy.PREFERRED))
    assert (offer.level, offer.size) == (FabricLevel.LEAF, view.size)
    assert offer.ground.hosts[domain.uuid] == 2
    assert offer.ground.choose(offer.level, 5, "g") == (0, domain)
    assert offer.ground.choose(offer.level, 6, "g") is None


def test_servers_of_one_size_have_one_key() -> None:
    one = seen(spec(), host("a", LEAF)).size
    assert seen(spec(), host("b", LEAF, free=5, used=1)).size == Size(one.key, 6)
    strict = spec(policy="anti-affinity", rules={}, members=[])
    assert seen(strict, host("a", LEAF)).size.per_host == 1
    assert seen(strict, host("a", LEAF)).spots[0].fit == 1


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"hpc_fabric:version": "9"},
        LEAF | {"hpc_fabric:leaf": " "},
        {"hpc_fabric:leaf": "x"},
        5,
    ],
)
def test_aggregates_that_make_no_sense(metadata: object) -> None:
    """The host is nowhere, and nothing is raised."""
    view = seen(spec(), host("a", metadata), host("b", LEAF))
    # The block stands for the wider levels that nobody knows.
    assert [len(set(spot.domains.values())) for spot in view.spots] == [0, 2]


def test_without_what_placement_said_one_fits() -> None:
    view = fabric.locate_hosts([host("a", LEAF, free=7)], spec())
    assert view.spots[0].fit == 1


def test_members_beside_each_other_come_first() -> None:
    other = LEAF | {"hpc_fabric:leaf": "leaf2"}
    hosts = [host("a", LEAF, free=1), host("b", other, free=3)]
    request = spec(uuid="g", policy="soft-affinity", hosts=["a"])
    view = seen(request, *hosts)
    fabric.remember_seats(view)
    block = view.spots[0].domains[FabricLevel.BLOCK].uuid
    fabric_nearness.rank_hosts_by_nearness(request, view.spots, block, 2)
    near, far = fabric_nearness.scores_of(request, hosts)
    assert near > far
    request.instance_group.hosts = []
    fabric_nearness.rank_hosts_by_nearness(request, view.spots, block, 2)
    near, far = fabric_nearness.scores_of(request, hosts)
    assert near < far
    fabric_nearness.forget_nearness(request)
    assert fabric_nearness.scores_of(request, hosts) == [0.0, 0.0]


@pytest.mark.parametrize("count", [1, 2])
def test_the_reason_names_other_servers_only_of_several(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that moves has the providers of its present host, and no earlier server."""
    monkeypatch.setattr(answers, "are_answers_installed", lambda: True)
    request = spec()
    request.flavor = objects.Flavor(flavorid="f", extra_specs={"hpc:fabric": "leaf"})
    request.instance_uuid, request.num_instances = uuids.server, count
    request.requested_resources = [objects.RequestGroup(provider_uuids=[uuids.gpu])]
    # A request that the filter refuses at once.
    request.scheduler_hints = {"_nova_check_type": ["rebuild"]}
    assert list(HpcFabricFilter().filter_all([host("a", LEAF)], request)) == []
    several = "Not for every server of the request: "
    assert answers.reason_put_down_for(request) == several * (count > 1) + rebuilds.FORGED
