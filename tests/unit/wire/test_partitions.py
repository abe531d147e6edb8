# SPDX-License-Identifier: Apache-2.0
"""The desired partitions between Neutron's server and the agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.partitions.keys import LARGEST_PKEY, LEAST_PKEY, Membership
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember, PartitionPolicy
from nova_hpc.wire import partitions
from nova_hpc_common.wire.version import LaterError, WireError

_PKEYS = st.integers(LEAST_PKEY, LARGEST_PKEY)
_MEMBERS = st.builds(
    PartitionMember,
    row=st.integers(1, (1 << 63) - 1),
    port_id=st.uuids().map(str),
    guid=st.integers(1, (1 << 64) - 1),
    pkey=_PKEYS,
    membership=st.sampled_from(Membership),
    wanted=st.booleans(),
    port_status=st.none() | st.sampled_from(["ACTIVE", "DOWN", "ERROR"]),
)
_POLICIES = st.builds(
    PartitionPolicy,
    service_level=st.none() | st.integers(0, 15),
    rate=st.none() | st.integers(0, 63),
    mtu=st.none() | st.integers(1, 5),
)
_DESIRED = st.builds(
    DesiredPartitions,
    ticket=st.integers(0, (1 << 63) - 1),
    members=st.lists(_MEMBERS, unique_by=lambda member: member.row).map(tuple),
    policies=st.dictionaries(_PKEYS, _POLICIES, max_size=4),
)


def through_json(document: dict[str, Any]) -> Any:
    return json.loads(json.dumps(document))


@given(_DESIRED)
def test_what_is_written_is_read(desired: DesiredPartitions) -> None:
    assert partitions.read_desired(through_json(partitions.write_desired(desired))) == desired


def document(**more: object) -> dict[str, Any]:
    member = PartitionMember(1, "p", 0x2C90000200001, 0x101)
    return {**partitions.write_desired(DesiredPartitions(3, (member,))), **more}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("guid", 5, "member number 0: guid is 5, not a port GUID"),
        ("guid", "0x0", "not a port GUID"),
        ("pkey", 4095, "pkey is 4095; it must be 1 to 4094"),
        ("pkey", 0, "1 to 4094"),
        ("wanted", 1, "wanted is 1, not true or false"),
        ("membership", "both", "membership"),
        ("row", 0, "row is 0"),
        ("port_status", 7, "port_status is 7"),
    ],
)
def test_a_wrong_member_is_named(key: str, value: object, said: str) -> None:
    broken = document()
    broken["members"][0][key] = value
    with pytest.raises(WireError, match=said):
        partitions.read_desired(broken)


def test_rows_and_keys_are_there_once() -> None:
    twice = document()
    twice["members"] *= 2
    with pytest.raises(WireError, match="a row or a P_Key twice"):
        partitions.read_desired(twice)
    policy = {"pkey": 5, "service_level": 1, "rate": None}
    with pytest.raises(WireError, match="a row or a P_Key twice"):
        partitions.read_desired(document(policies=[policy, policy]))


def test_a_server_before_mtus_is_read() -> None:
    policy = {"pkey": 5, "service_level": 1, "rate": None}
    found = partitions.read_desired(document(policies=[policy]))
    assert found.policies == {5: PartitionPolicy(1)}


def test_only_what_was_added_later_may_be_missing() -> None:
    with pytest.raises(WireError, match="policy number 0: rate is missing"):
        partitions.read_desired(document(policies=[{"pkey": 5, "service_level": 1}]))
    cut = document()
    del cut["members"][0]["wanted"]
    with pytest.raises(WireError, match="wanted is missing"):
        partitions.read_desired(cut)


@pytest.mark.parametrize("mtu", [0, 6, 4096, "5"])
def test_an_mtu_that_is_none_is_named(mtu: object) -> None:
    policy = {"pkey": 5, "service_level": None, "rate": None, "mtu": mtu}
    with pytest.raises(WireError, match="mtu is"):
        partitions.read_desired(document(policies=[policy]))


@pytest.mark.parametrize("data", [None, [], "{}", {}, {"schema": "nova-hpc/fabric-map"}])
def test_nothing_is_unknown_and_never_empty(data: object) -> None:
    with pytest.raises(WireError, match="desired partitions"):
        partitions.read_desired(data)


def test_members_that_are_missing_are_unknown() -> None:
    cut = document()
    del cut["members"]
    with pytest.raises(WireError, match="members is missing"):
        partitions.read_desired(cut)


def test_a_later_version_says_so() -> None:
    with pytest.raises(LaterError):
        partitions.read_desired(document(version=2))
