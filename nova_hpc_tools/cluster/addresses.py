# SPDX-License-Identifier: Apache-2.0
"""How members get their addresses: by DHCP, or from a configuration drive. Pure.

A partition of InfiniBand has neither DHCP nor Neutron's metadata. Its user cannot see that a
network is one, so a direct port counts as a port without both; a configuration drive harms none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nova_hpc.wire.cluster_wish import Nic

#: Types of ports that Neutron's DHCP and metadata reach on every network that has them.
ORDINARY: Final = ("", "normal")

#: What the client prints.
DRIVE_ADDED: Final = (
    "No network of the members is sure to have DHCP: they get a configuration drive "
    "(--no-config-drive leaves it out)."
)


class MemberAddressError(ValueError):
    """A member would have no address; the text names the networks and the cure."""


def needs_config_drive(
    nics: Sequence[Nic], subnets: Mapping[str, Sequence[Any]], server: str = "a member"
) -> bool:
    """Whether only a configuration drive is sure to tell members their addresses.

    :param nics: the networks of a member; none: the cloud chooses.
    :param subnets: id of a network -> Neutron's records of its subnets.
    :param server: the server in the error.
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
