# SPDX-License-Identifier: Apache-2.0
"""The desired state of one fabric: which port is to be a member of which partition.

Neutron's database owns it. An agent beside the subnet manager reads it whole, has the
subnet manager make it true, reads back what is in the ports' tables, and reports.
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

    With a subnet manager that cannot tell the functions of a physical port apart, several
    rows have the GUID of one physical port; all of them are of one partition then.
    """

    row: int
    port_id: str
    #: What the subnet manager is told: the GUID of a physical port or of a function.
    guid: int
    pkey: int
    membership: Membership = Membership.FULL
    #: False: the membership has to go. Such a row outlives its port, until the table is read
    #: back without the key; GUID and key are not given to another network before.
    wanted: bool = True
    #: Neutron's status of the port; None: the port is gone.
    port_status: str | None = None


@attrs.frozen
class PartitionPolicy:
    """What the operator has configured for the partition of a network."""

    #: 0 to 15; None: the subnet manager's own.
    service_level: int | None = None
    #: Static rate in the encoding of the InfiniBand specification, e.g. 3 for 10 Gb/s.
    rate: int | None = None
    #: MTU in that encoding, 1 (256 bytes) to 5 (4096); None: opensm makes it 2048 bytes.
    mtu: int | None = None


def _freeze_policies(given: Mapping[int, PartitionPolicy]) -> Mapping[int, PartitionPolicy]:
    return MappingProxyType(dict(given))


@attrs.frozen
class DesiredPartitions:
    """All rows of one fabric.

    :ivar ticket: counts the readings of this fabric's rows. Neutron gives a reading its ticket
        before it reads, one after the other: who has the higher ticket has read later and has
        seen all that the other has. A subnet manager's file is never replaced by what an
        earlier reading made.
    """

    ticket: int
    members: tuple[PartitionMember, ...] = ()
    #: P_Key -> policy, where one is configured.
    policies: Mapping[int, PartitionPolicy] = attrs.field(factory=dict, converter=_freeze_policies)

    def wanted(self) -> tuple[PartitionMember, ...]:
        """The members that are to be there."""
        return tuple(member for member in self.members if member.wanted)
