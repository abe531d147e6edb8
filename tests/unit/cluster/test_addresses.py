# SPDX-License-Identifier: Apache-2.0
"""Which members need a configuration drive to learn their addresses."""

import pytest

from nova_hpc_client.cluster.addresses import MemberAddressError, needs_config_drive
from nova_hpc_common.wire.cluster_wish import Nic

DHCP, NONE = {"enable_dhcp": True}, {"enable_dhcp": False}


@pytest.mark.parametrize(
    ("nics", "subnets", "needed"),
    [
        # The cloud chooses the network.
        ((), {}, False),
        ((Nic("login"),), {"login": [DHCP]}, False),
        ((Nic("login", "normal"),), {"login": [NONE, DHCP]}, False),
        ((Nic("login"),), {"login": [NONE]}, True),
        # Members with partitions only, whatever their subnets say: nothing serves DHCP there.
        ((Nic("ib", "direct-physical"),), {"ib": [NONE]}, True),
        ((Nic("ib", "direct"),), {"ib": [DHCP]}, True),
        ((Nic("ib0", "direct"), Nic("ib1", "direct")), {"ib0": [NONE], "ib1": []}, True),
        # A network for login beside them.
        ((Nic("login"), Nic("ib", "direct")), {"login": [DHCP], "ib": [NONE]}, False),
        # A record without the key says nothing.
        ((Nic("login"),), {"login": [{}]}, True),
        ((Nic("login"),), {"login": [{"enable_dhcp": "true"}]}, True),
    ],
)
def test_a_member_without_dhcp_needs_a_drive(nics, subnets, needed):
    assert needs_config_drive(nics, subnets) is needed


def test_networks_without_a_subnet_are_refused_by_name():
    nics = (Nic("one"), Nic("two", "direct"))
    with pytest.raises(MemberAddressError, match="none of its networks has a subnet: one, two"):
        needs_config_drive(nics, {"one": []})
