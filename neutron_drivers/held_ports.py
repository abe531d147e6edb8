# SPDX-License-Identifier: Apache-2.0
"""The present memberships of bound ports. Pure: Neutron's data in, memberships out.

Port, network, tags and options may have changed since the bind. A port may be deleted while its
server still runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from neutron_drivers.errors import PartitionInUseError
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.port_rules import LIMITED_TAG, WantedMember, choose_membership
from nova_hpc.fabric.partitions.keys import Membership, format_guid


@attrs.frozen
class HeldPort:
    """A bound port that has a GUID, with its present and its possible membership.

    :ivar held: its binding, with the membership that it has whenever it is a member.
    :ivar member: its present membership; None if it is not a member.
    :ivar is_on: port and network are on, and the port is bound.
    :ivar is_active: its status is ACTIVE.
    """

    port_id: str
    project_id: str
    network_project: str
    held: WantedMember
    member: Membership | None
    is_on: bool
    tagged: bool
    network_tagged: bool
    is_active: bool = False

    def target(self, membership: Membership) -> Membership | None:
        """Return the membership that the port should have now; None if it should be no member."""
        return membership if self.is_on else None

    def is_settled(self, membership: Membership) -> bool:
        """Whether the port's rows and status need no change.

        A report of the agent may set a port ACTIVE just after it was switched off.
        """
        target = self.target(membership)
        if self.is_active and target is None:
            return False
        return (self.held.membership, self.member) == (membership, target)


@attrs.frozen
class SettledGuid:
    """The memberships that were chosen for all ports of one GUID.

    :ivar memberships: port -> its membership whenever it is a member.
    :ivar complaint: why a tag or an option does not hold yet; "" if all hold.
    """

    memberships: Mapping[str, Membership]
    complaint: str = ""


def settle_guid(ports: Sequence[HeldPort], settings: FabricSettings) -> SettledGuid:
    """Choose one membership for all ports of a GUID: the table entry has only one.

    If tags or options would make some ports full and some limited, all of them stay as they are.
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


@attrs.frozen
class FormerHolder:
    """A port that was deleted while it was bound, so its server may still have the function.

    :ivar own_network: its network, if network and port belong to one project; None for another
        project's, or if unknown. Only the own network's partition is not foreign to the server.
    """

    port_id: str
    server_id: str
    host: str
    pci_slot: str
    own_network: str | None = None

    def is_in_the_way(self, wanted: WantedMember) -> bool:
        """Whether *wanted* has to wait for this deleted port's server.

        Nova gives a function to one server at a time, and a server may have several functions.
        """
        place = self.host, self.pci_slot
        is_given_again = bool(self.pci_slot) and place == (wanted.host, wanted.pci_slot)
        is_own = wanted.network_id == self.own_network or wanted.server_id == self.server_id
        return not (is_given_again or is_own)


def conflict_of_formers(
    fabric: str, guid: int, formers: Iterable[FormerHolder]
) -> PartitionInUseError:
    """Build the error for a GUID that servers of deleted ports may still reach.

    Nova may show the text to users of other projects, so only the log names ports and servers.
    """
    named = ", ".join(
        f"port {one.port_id} of server {one.server_id}"
        for one in sorted(formers, key=lambda former: former.port_id)
    )
    return PartitionInUseError(
        "the InfiniBand port of its device may still be in use: a port was deleted while it was "
        "bound, and its server has not left the host. Delete or move that server, or use another "
        "host",
        f"GUID {format_guid(guid)} of fabric {fabric}: {named}. Section [nova] of neutron.conf has "
        "to reach Nova as an administrator",
    )
