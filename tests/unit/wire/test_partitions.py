# SPDX-License-Identifier: Apache-2.0
"""The desired partitions, as the agent reads them."""

import json

import pytest

from nova_hpc.fabric.partitions.keys import Membership, table_entry
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember
from nova_hpc.wire import partitions
from nova_hpc.wire.version import WireError


def _sent(membership):
    member = PartitionMember(row=1, port_id="p", guid=5, pkey=0x1F4, membership=membership)
    return json.loads(json.dumps(partitions.write_desired(DesiredPartitions(1, (member,)))))


@pytest.mark.parametrize(("membership", "entry"), [("full", 0x81F4), ("limited", 0x1F4)])
def test_a_membership_is_what_tables_are_made_from(membership, entry):
    (member,) = partitions.read_desired(_sent(Membership(membership))).members
    assert table_entry(member.pkey, member.membership) == entry


def test_a_membership_of_another_kind_is_refused():
    document = _sent(Membership.FULL)
    document["members"][0]["membership"] = "half"
    with pytest.raises(WireError, match="half"):
        partitions.read_desired(document)
