# SPDX-License-Identifier: Apache-2.0
"""The desired state of one fabric: the ports that are to be members of each partition.

Neutron's database owns it. An agent beside the subnet manager reads the whole state, has the
subnet manager put it in force, reads the ports' tables back, and reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from nova_hpc.fabric.partitions.keys import Membership

#: Neutron's words for the state of a port that matter here.
ACTIVE, DOWN, ERROR = "ACTIVE", "DOWN", "ERROR"


@attrs.frozen
class PartitionMember:
    """One row of Neutron's database: a port of a network as member of its partition.

    If the subnet manager cannot separate the functions of a physical port, several rows have its
    GUID. Then all of them are in one partition.
    """

    row: int
    port_id: str
    #: The GUID for the subnet manager: of a physical port or of a function.
    guid: int
    pkey: int
    membership: Membership = Membership.FULL
    #: False if the membership has to go. Such a row outlives its port, until the table is read
    #: back without the key; until then no other network gets the GUID and key.
    wanted: bool = True
    #: Neutron's status of the port; None if the port is gone.
    port_status: str | None = None


@attrs.frozen
class PartitionPolicy:
    """The operator's settings for the partition of a network: service level, rate and MTU."""

    #: 0 to 15; None for the subnet manager's own.
    service_level: int | None = None
    #: Static rate in the encoding of the InfiniBand specification, e.g. 3 for 10 Gb/s.
    rate: int | None = None
    #: MTU in that encoding, 1 (256 bytes) to 5 (4096); None for opensm's default, 2048 bytes.
    mtu: int | None = None


def _freeze_policies(given: Mapping[int, PartitionPolicy]) -> Mapping[int, PartitionPolicy]:
    return MappingProxyType(dict(given))


@attrs.frozen
class DesiredPartitions:
    """All member rows of one fabric in Neutron's database: the state to be enforced.

    :ivar ticket: counts the readings of this fabric's rows. Neutron gives a reading its ticket
        before it reads, one after the other. So the agent with the higher ticket has read later
        and has seen all rows that the other has. An earlier reading never replaces a subnet
        manager's file.
    """

    ticket: int
    members: tuple[PartitionMember, ...] = ()
    #: P_Key -> policy, if one is configured.
    policies: Mapping[int, PartitionPolicy] = attrs.field(factory=dict, converter=_freeze_policies)

    def wanted(self) -> tuple[PartitionMember, ...]:
        """Return the members whose membership has to be in force."""
        return tuple(member for member in self.members if member.wanted)
