# SPDX-License-Identifier: Apache-2.0
"""Memberships of ports that are bound, and managers' ports, without Neutron."""

from __future__ import annotations

import logging

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutron_drivers import fabric_heartbeats, fabrics, port_rules
from neutron_drivers.errors import PartitionInUseError
from neutron_drivers.held_ports import HeldPort, settle_guid
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.port_rules import WantedMember
from neutron_drivers.said_once import SaidOnce
from nova_hpc.fabric.partitions.backends.base import Capabilities
from nova_hpc.fabric.partitions.keys import Membership

WHOLE = Capabilities(separates_functions=False)
SETTINGS = fabrics.FabricSettings({"ib0": "main"}, WHOLE)
GUID = 0x2C90000200001
FULL, LIMITED = Membership.FULL, Membership.LIMITED


def held(port_id="p", applied=FULL, member=FULL, **more):
    place = WantedMember(FabricKey("main", 0x101), GUID, GUID, applied, "cn0", "0000:81:00.2", "n")
    words = {"is_on": True, "tagged": False, "network_tagged": False, **more}
    return HeldPort(port_id, words.pop("project", "red"), "red", place, member, **words)


# -- memberships ---------------------------------------------------------------------------


def test_a_tag_holds_when_the_neighbours_agree():
    first, second = held("a", tagged=True), held("b", tagged=True)
    found = settle_guid([first, second], SETTINGS)
    assert (dict(found.memberships), found.complaint) == ({"a": LIMITED, "b": LIMITED}, "")
    assert not first.is_settled(LIMITED)
    assert held("a", LIMITED, LIMITED, tagged=True).is_settled(LIMITED)


@pytest.mark.parametrize("is_on", [True, False])
def test_one_tag_of_two_leaves_both_as_they_are(is_on):
    found = settle_guid([held("a", tagged=True, is_on=is_on), held("b")], SETTINGS)
    assert dict(found.memberships) == {"a": FULL, "b": FULL}
    for part in ("a (limited)", "b (full)", "0x0002c90000200001", "fabric main"):
        assert part in found.complaint


def test_a_port_that_is_off_is_settled_without_a_member():
    off = held(member=None, is_on=False)
    assert off.is_settled(FULL)
    assert off.target(FULL) is None
    assert not held(member=FULL, is_on=False).is_settled(FULL)
    assert not held(member=None).is_settled(FULL)
    # A tag of a port that is off is kept for the time when it is on.
    assert not off.is_settled(LIMITED)
    # A report of the agent may come just after the port was switched off.
    assert not held(member=None, is_on=False, is_active=True).is_settled(FULL)
    assert held(member=FULL, is_active=True).is_settled(FULL)


def test_a_manager_without_limited_members_leaves_what_is_there():
    settings = attrs.evolve(SETTINGS, capabilities=attrs.evolve(WHOLE, limited_members=False))
    found = settle_guid([held("a", tagged=True)], settings)
    assert dict(found.memberships) == {"a": FULL}
    assert "Ports a: the subnet manager of this fabric has no limited" in found.complaint


_PORTS = st.lists(
    st.builds(
        held,
        port_id=st.sampled_from("abcdef"),
        applied=st.just(LIMITED),
        member=st.sampled_from([None, LIMITED]),
        is_on=st.booleans(),
        tagged=st.booleans(),
        network_tagged=st.booleans(),
        project=st.sampled_from(["red", "blue"]),
    ),
    min_size=1,
    unique_by=lambda port: port.port_id,
)


@given(_PORTS, st.booleans())
def test_one_guid_never_gets_two_memberships(ports, operator):
    settings = attrs.evolve(SETTINGS, limited_pkeys=frozenset({0x101} if operator else ()))
    found = settle_guid(ports, settings)
    assert found.memberships.keys() == {port.port_id for port in ports}
    assert len(set(found.memberships.values())) == 1


# -- places that no network may have -------------------------------------------------------


@pytest.mark.parametrize("guids", [(GUID, GUID), (5, GUID), (GUID, 5)])
def test_a_managers_port_and_its_functions_are_refused(guids):
    with pytest.raises(PartitionInUseError, match="managers are not compute nodes") as caught:
        port_rules.check_place(guids, {GUID}, (), 31)
    assert "0x0002c90000200001" in caught.value.detail
    assert "0x0002c90000200001" not in str(caught.value)
    with pytest.raises(PartitionInUseError, match="31 partitions"):
        port_rules.check_place(guids, (), {GUID}, 31)
    port_rules.check_place(guids, {7}, {8}, 31)


def heartbeat(host="sm0", *, alive=True, **configurations):
    found = {"fabric": "main", "foreign_pkeys": [], **configurations}
    return fabric_heartbeats.parse_heartbeat(
        {"host": host, "alive": alive, "admin_state_up": True, "configurations": found}
    )


def test_the_managers_of_all_agents_count():
    beats = [
        heartbeat(manager_guids=["0x0002c90000200001"]),
        heartbeat("sm1", alive=False, manager_guids=["0002:c900:0020:0002"], full_guids=["0x5"]),
        heartbeat("sm2", fabric="other", manager_guids=["0x7"]),
    ]
    assert fabric_heartbeats.manager_guids_of(beats, "main") == {GUID, GUID + 1}
    assert fabric_heartbeats.full_guids_of(beats, "main") == frozenset()


@pytest.mark.parametrize("name", ["manager_guids", "full_guids"])
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (None, set()),
        ("0x5", set()),
        ({}, set()),
        ([5], set()),
        (["0x0", "0x5"], {5}),
        ([[]], set()),
    ],
)
def test_guids_that_cannot_be_read_are_named_once(caplog, name, value, read):
    host = f"{name}-{value}"
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = heartbeat(host, **{name: value})
            assert getattr(found, name) == read
    assert [name in record.getMessage() for record in caplog.records] == [True]


def test_an_agent_of_an_earlier_release_names_no_guids(caplog):
    found = heartbeat()
    assert (found.manager_guids, found.full_guids) == (frozenset(), frozenset())
    assert not caplog.records


def test_a_complaint_is_said_when_it_is_new():
    said = SaidOnce()
    told = [said.is_new("a", text) for text in ("x", "x", "y", "", "", "y")]
    assert told == [True, False, True, False, False, True]
    assert said.take_new({1: "x", 2: "y"}) == ["x", "y"]
    assert said.take_new({2: "y", 3: "z"}) == ["z"]
    assert said.take_new({1: "x"}) == ["x"]
