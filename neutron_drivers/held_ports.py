# SPDX-License-Identifier: Apache-2.0
"""How bound ports have to be members now. Pure: what Neutron has of them in, memberships out.

Port, network, tags and options may have changed since the bind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from neutron_drivers.errors import PartitionInUseError
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.port_rules import LIMITED_TAG, WantedMember, choose_membership
from nova_hpc.fabric.partitions.keys import Membership, format_guid


@attrs.frozen
class HeldPort:
    """A bound port that has a GUID.

    :ivar held: how it was bound, with the membership that it has whenever it is a member.
    :ivar member: how it is a member now; None: it is none.
    :ivar is_on: port and network are on, and the port is bound.
    """

    port_id: str
    project_id: str
    network_project: str
    held: WantedMember
    member: Membership | None
    is_on: bool
    tagged: bool
    network_tagged: bool

    def target(self, membership: Membership) -> Membership | None:
        """How it is to be a member now."""
        return membership if self.is_on else None

    def is_settled(self, membership: Membership) -> bool:
        """Whether nothing is to be changed."""
        return (self.held.membership, self.member) == (membership, self.target(membership))


@attrs.frozen
class SettledGuid:
    """The ports of one GUID.

    :ivar memberships: port -> how it is a member whenever it is one.
    :ivar complaint: why a tag or an option does not hold yet; "": all do.
    """

    memberships: Mapping[str, Membership]
    complaint: str = ""


def settle_guid(ports: Sequence[HeldPort], settings: FabricSettings) -> SettledGuid:
    """Choose the memberships of all ports of one GUID: one table entry says one.

    While tags or options would make some full and some limited, all of them stay as they are.
    """
    held = {port.port_id: port.held.membership for port in ports}
    try:
        wished = {port.port_id: _wish_of(port, settings) for port in ports}
    except PartitionInUseError as error:
        return SettledGuid(held, f"Ports {', '.join(sorted(held))}: {error}")
    if len(set(wished.values())) <= 1:
        return SettledGuid(wished)
    names = ", ".join(f"{port} ({membership})" for port, membership in sorted(wished.items()))
    return SettledGuid(
        held,
        f"Ports {names} have the same physical port, GUID {format_guid(ports[0].held.guid)} of "
        f"fabric {ports[0].held.key.fabric}, which is full or limited: their tags hpc-limited, or "
        "[hpc_partitions]limited_pkeys, hold when they agree, or when one of the ports is bound "
        "elsewhere",
    )


def _wish_of(port: HeldPort, settings: FabricSettings) -> Membership:
    key: FabricKey = port.held.key
    return choose_membership(
        {"project_id": port.project_id, "tags": [LIMITED_TAG] * port.tagged},
        {"project_id": port.network_project, "tags": [LIMITED_TAG] * port.network_tagged},
        key,
        settings,
    )
