# SPDX-License-Identifier: Apache-2.0
"""``rails`` of a node's declaration: which adapter is on which rail."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from nova_hpc.topology.model import ADDRESS, normalise_address
from nova_hpc_common.wire.version import show_json_value

#: Part of the name of a rail's physical network that stands for its number.
RAIL_NUMBER: Final = "{n}"
#: An address, a kernel's name, or a GUID.
_ADAPTER: Final = re.compile(r"[A-Za-z0-9._:@-]{1,40}", re.ASCII)


@attrs.frozen
class RailWish:
    """The adapters of a node that are for Neutron's ports, one physical network for each rail."""

    #: Name of the networks; ``{n}`` is the number of the rail, from 0.
    physical_network: str
    #: Adapters of each rail, in the order of the rails: PCI addresses, names of interfaces or RDMA
    #: devices, or GUIDs of ports.
    adapters: tuple[tuple[str, ...], ...]

    @property
    def networks(self) -> tuple[str, ...]:
        """The physical network of each rail."""
        return tuple(
            self.physical_network.replace(RAIL_NUMBER, str(number))
            for number in range(len(self.adapters))
        )


def rails_as_lists(data: dict[str, Any]) -> dict[str, Any]:
    """Return ``rails`` with a list for each rail: one adapter may stand without brackets."""
    rails = data.get("adapters")
    if not isinstance(rails, list):
        return data
    return {**data, "adapters": [[rail] if isinstance(rail, str) else rail for rail in rails]}


def check_rails(rails: RailWish) -> RailWish:
    """Check the rails, and normalise their addresses.

    :raises ValueError: they are invalid; the text names the fault.
    """
    names = [name for rail in rails.adapters for name in rail]
    if not names or not all(rails.adapters):
        raise ValueError("rails: adapters: a rail without an adapter; name one for each rail")
    for name in names:
        if not _ADAPTER.fullmatch(name):
            raise ValueError(
                f"rails: adapters: {show_json_value(name)} is no PCI address, interface, RDMA "
                "device or GUID of a port"
            )
        if names.count(name) > 1:
            raise ValueError(f"rails: adapters: {name} is named twice")
    if len(rails.adapters) > 1 and len(set(rails.networks)) == 1:
        raise ValueError(
            f"rails: physical_network is {show_json_value(rails.physical_network)}: write "
            f"{RAIL_NUMBER} for the number of the rail, as in ibrail{RAIL_NUMBER}"
        )
    normal = tuple(
        tuple(normalise_address(name) if ADDRESS.fullmatch(name) else name for name in rail)
        for rail in rails.adapters
    )
    return attrs.evolve(rails, adapters=normal)
