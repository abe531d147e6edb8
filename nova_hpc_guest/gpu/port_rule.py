# SPDX-License-Identifier: Apache-2.0
"""The ports of a client's slot and the addresses of its tunnel, derived from its own address.

Neutron gives each address of a subnet once, so its low 12 bits are a number that no other client
of the subnet has. So no list of ports is needed. An engine takes up to three ports; the fourth
is the port of a slot's lifeline.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from .records import FIRST_PORT

#: Ports of a slot: the engine's, and the last one for the lifeline.
PORTS: Final = 4
LIFELINE: Final = 3
#: UDP port of the tunnel.
TUNNEL_PORT: Final = 51820
_BITS: Final = 12
#: Addresses inside tunnels; shared address space, which no network of a project has (RFC 6598).
_CLIENTS: Final = ipaddress.IPv4Address("100.127.240.0")
SHARE_INSIDE: Final = "100.127.224.1"


class PortRuleError(ValueError):
    """The rule gives no port; the text names the reason and a remedy."""


def number_in_subnet(address: str, subnet: str) -> int:
    """Return the number of a client in its subnet: the low 12 bits of its address.

    :param subnet: as Neutron writes it (``10.0.0.0/24``).
    :raises PortRuleError: the subnet is larger than the rule, or of IPv6.
    """
    try:
        network, own = ipaddress.ip_network(subnet), ipaddress.ip_address(address)
    except ValueError:
        raise PortRuleError(f"{address} in {subnet} is no address of a subnet") from None
    if network.version != 4 or own.version != 4:
        raise PortRuleError(f"subnet {subnet} is not of IPv4: take a network that has one of IPv4")
    if network.num_addresses > 1 << _BITS:
        raise PortRuleError(
            f"subnet {subnet} has {network.num_addresses} addresses, and the ports of slots are "
            f"unique in {1 << _BITS} alone: take a subnet of /{32 - _BITS} or smaller"
        )
    if own not in network:
        raise PortRuleError(f"address {address} is not in subnet {subnet}")
    return int(own) & ((1 << _BITS) - 1)


def port_of_address(address: str) -> int:
    """Return the first TCP port of the slot of the client with this address."""
    return FIRST_PORT + PORTS * (int(ipaddress.IPv4Address(address)) & ((1 << _BITS) - 1))


def inside_address_of(port: int) -> str:
    """Return the client's address inside its tunnel, by the first port of its slot."""
    return str(_CLIENTS + (port - FIRST_PORT) // PORTS)
