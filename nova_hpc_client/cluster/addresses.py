# SPDX-License-Identifier: Apache-2.0
"""The source of members' addresses: DHCP or a configuration drive. Pure.

An InfiniBand partition has neither DHCP nor Neutron's metadata service. A user cannot see that a
network is one. So a direct port counts as a port without both; a configuration drive does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nova_hpc_common.wire.cluster_wish import Nic

#: Types of ports that Neutron's DHCP and metadata services reach if their network has them.
ORDINARY: Final = ("", "normal")

#: The message that the client prints.
DRIVE_ADDED: Final = (
    "No network of the members is sure to have DHCP: they get a configuration drive "
    "(--no-config-drive leaves it out)."
)


class MemberAddressError(ValueError):
    """A server would have no address; the text names the networks and the cure."""


def needs_config_drive(
    nics: Sequence[Nic], subnets: Mapping[str, Sequence[Any]], server: str = "a member"
) -> bool:
    """Whether members need a configuration drive to be sure to get their addresses.

    :param nics: the networks of a member; False if there are none, because the cloud chooses.
    :param subnets: id of a network -> Neutron's records of its subnets.
    :param server: the name of the server in the error's text.
    :raises MemberAddressError: none of the networks has a subnet.
    """
    if not nics:
        return False
    if not any(subnets.get(nic.network) for nic in nics):
        names = ", ".join(dict.fromkeys(nic.network for nic in nics))
        raise MemberAddressError(
            f"{server} would have no address, because none of its networks has a subnet: {names}; "
            "make one with openstack subnet create --network NETWORK --subnet-range CIDR NAME"
        )
    return not any(
        nic.vnic in ORDINARY and subnet.get("enable_dhcp") is True
        for nic in nics
        for subnet in subnets.get(nic.network, ())
    )
