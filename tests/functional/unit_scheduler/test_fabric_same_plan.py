# SPDX-License-Identifier: Apache-2.0
"""The filter chooses the domain that the planner names, on any fabric.

The filter gets Nova's objects: hosts with the aggregates that ``nova-hpc fabric sync`` makes of
the map, and what Placement said of them. The planner gets the map and the free places.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nova import objects
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.cluster.group_domain.membership import GroupDomains
from nova_hpc.cluster.group_domain.model import EVERYWHERE, GroupDomain
from nova_hpc.cluster.plan import Gang, GangPolicy
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc.from_nova import (
    contract,
    fabric,
    fabric_nearness,
    fabric_records,
    new_servers,
    placement_answer,
)
from nova_hpc.from_nova.patches import answers
from nova_hpc_tools.fabric import map_aggregates
from scheduler_filters.hpc_fabric_filter import HpcFabricFilter
from tests.unit.cluster.placement_model import Client, World, records
from tests.unit.cluster.plan.fabrics import Case, cases, planned

CONF = cfg.CONF


@pytest.fixture(autouse=True)
def _alone() -> Any:
    """Nova's database and start-up checks are not asked."""
    hpc_conf.register_all_options(CONF)
    fabric._ATLAS.clear()
    with (
        mock.patch.object(new_servers, "is_new_server", return_value=True),
        mock.patch.object(contract, "list_release_differences", return_value=[]),
        mock.patch.object(answers, "are_answers_installed", return_value=True),
    ):
        yield


def _hosts(fabric_map: FabricMap, capacity: dict[str, int]) -> list[Any]:
    """Nova's view of the hosts that have room."""
    found = []
    for name, fit in capacity.items():
        ident = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        where = [
            SimpleNamespace(metadata=dict(each.metadata))
            for each in map_aggregates.aggregates_of(fabric_map)
            if name in each.hosts
        ]
        allocations = {ident: {"resources": {"VCPU": 2}}}
        if fit:
            found.append(
                SimpleNamespace(
                    host=name,
                    nodename=name,
                    uuid=ident,
                    aggregates=where,
                    instances={},
                    allocation_candidates=[{"allocations": allocations}],
                    summary={
                        "root_provider_uuid": ident,
                        "resources": {"VCPU": {"capacity": 2 * fit + 3, "used": 2}},
                    },
                )
            )
    return found


def _request(group: str, members: int, specs: dict[str, str], hosts: list[Any]) -> Any:
    spec = objects.RequestSpec(
        flavor=objects.Flavor(flavorid="f", extra_specs=specs),
        instance_uuid=str(uuid.uuid4()),
        project_id="p",
        num_instances=1,
        scheduler_hints={"hpc_members": [str(members)]},
        instance_group=objects.InstanceGroup(
            uuid=group, project_id="p", policy="soft-affinity", hosts=[], members=[]
        ),
    )
    placement_answer.keep_answer(spec, {each.uuid: each.summary for each in hosts})
    return spec


def _cut_by_leaves(fabric_map: FabricMap) -> bool:
    """Whether an NVLink domain lies in several leaves.

    The planner ranks parts that cut each other by all of their hosts, the weigher by those that
    are in the group's domain, so they may prefer two parts that are equally good for the group.
    """
    pairs = {(each.nvlink_domain, each.leaf) for each in fabric_map.places if each.nvlink_domain}
    return len(pairs) > len({name for name, _ in pairs})


@settings(max_examples=60, deadline=None)
@given(cases(), st.uuids(), st.booleans())
def test_filter_and_planner_choose_the_same_domain(
    case: Case, group: uuid.UUID, flexible: bool
) -> None:
    fabric_map, capacity, gang = case
    policy = "preferred" if flexible else "required"
    specs = {"hpc:fabric": gang.level.word, "hpc:fabric_policy": policy}
    hosts = _hosts(fabric_map, capacity)
    if not hosts or gang.level.word == "core":
        return
    wanted = Gang(
        members=gang.members, level=gang.level, policy=GangPolicy(policy), group=str(group)
    )
    said = planned(fabric_map, capacity, wanted)
    world = World()
    spec = _request(str(group), gang.members, specs, hosts)
    world.states_[spec.instance_uuid] = "there"
    with mock.patch.object(
        fabric_records,
        "open_group_domains",
        return_value=GroupDomains(records(Client(world)), world),
    ):
        found = HpcFabricFilter().filter_all(hosts, spec)
    decided = world.domains_of(str(group))
    if not said["fits"] and not flexible:
        assert list(found) == []
        assert decided == set()
        return
    around = said.get("around", {})
    domains = {word: GroupDomain(word, f"fabric/{name}").uuid for word, name in around.items()}
    wide = [uuid for word, uuid in domains.items() if FabricLevel.from_word(word) >= gang.level]
    # Where a level is unknown, the next narrower domain that is known stands for it.
    inside = FabricPlace("?", **around).enclosing(gang.level)
    first = domains[inside[0].word] if inside is not None else next(iter(wide), None)
    if first is not None:
        assert decided == {first}
        # The hosts of the plan are all left, and the weigher wants none outside of its leaves.
        names = {each.host for each in found}
        assert set(said["hosts"]) <= names
        scores = dict(
            zip(
                (each.host for each in found),
                fabric_nearness.scores_of(spec, list(found)),
                strict=True,
            )
        )
        best = {name for name in scores if scores[name] == max(scores.values())}
        if not _cut_by_leaves(fabric_map):
            assert best & set(said["hosts"])
    else:
        assert decided == {EVERYWHERE.uuid}
