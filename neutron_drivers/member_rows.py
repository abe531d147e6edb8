# SPDX-License-Identifier: Apache-2.0
"""The driver's tables in Neutron's database.

No table has a foreign key to Neutron's own. Rows outlive their port and network, until the subnet
manager's tables are read back without the key. Times are UTC.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from neutron_lib.db import model_base

from neutron_drivers.fabrics import LONGEST_FABRIC
from nova_hpc.fabric.partitions.keys import Membership, parse_guid
from nova_hpc.fabric.partitions.members import PartitionMember


class PartitionMemberRow(model_base.BASEV2):
    """Database row of a port's membership in the partition of its network.

    A row is never made wanted again. Each new membership has a row of its own, so a late report on
    a former row does not count for the new one.
    """

    __tablename__ = "hpc_partition_members"
    id = sa.Column(sa.Integer, primary_key=True, autoincrement=True)
    fabric = sa.Column(sa.String(LONGEST_FABRIC), nullable=False)
    port_id = sa.Column(sa.String(36), nullable=False, index=True)
    network_id = sa.Column(sa.String(36), nullable=False, index=True)
    #: Host of the port's binding, for people.
    host = sa.Column(sa.String(255), nullable=False)
    pci_slot = sa.Column(sa.String(32), nullable=False)
    #: E.g. 0x0002c90000200001.
    guid = sa.Column(sa.String(18), nullable=False)
    pkey = sa.Column(sa.Integer, nullable=False)
    membership = sa.Column(sa.String(16), nullable=False)
    #: False: the membership has to go, and then the row.
    wanted = sa.Column(sa.Boolean, nullable=False)
    #: Since when it is wanted.
    since = sa.Column(sa.DateTime, nullable=False)
    __table_args__ = (
        sa.Index("ix_hpc_partition_members_guid", "fabric", "guid"),
        sa.Index("ix_hpc_partition_members_pkey", "fabric", "pkey"),
        model_base.BASEV2.__table_args__,
    )


class PartitionHolderRow(model_base.BASEV2):
    """Database row of a bound port and its GUID. The row exists until the port is unbound.

    It stays while port or network are switched off: the device still leads to a server.
    """

    __tablename__ = "hpc_partition_holders"
    port_id = sa.Column(sa.String(36), primary_key=True)
    fabric = sa.Column(sa.String(LONGEST_FABRIC), nullable=False)
    guid = sa.Column(sa.String(18), nullable=False)
    #: Of the physical port, if functions have GUIDs of their own; otherwise the same GUID.
    physical_guid = sa.Column(sa.String(18), nullable=False)
    pkey = sa.Column(sa.Integer, nullable=False)
    network_id = sa.Column(sa.String(36), nullable=False, index=True)
    host = sa.Column(sa.String(255), nullable=False)
    pci_slot = sa.Column(sa.String(32), nullable=False)
    #: How the port is a member whenever it is one.
    membership = sa.Column(sa.String(16), nullable=False)
    __table_args__ = (
        sa.Index("ix_hpc_partition_holders_guid", "fabric", "guid"),
        sa.Index("ix_hpc_partition_holders_physical_guid", "fabric", "physical_guid"),
        model_base.BASEV2.__table_args__,
    )


class PartitionFormerHolderRow(model_base.BASEV2):
    """Database row of a port that was deleted while bound; its server may still have the function.

    The row makes no port a member. It keeps the ports of other servers off the GUID, except ports
    of ``own_network``.
    """

    __tablename__ = "hpc_partition_former_holders"
    port_id = sa.Column(sa.String(36), primary_key=True)
    fabric = sa.Column(sa.String(LONGEST_FABRIC), nullable=False)
    guid = sa.Column(sa.String(18), nullable=False)
    server_id = sa.Column(sa.String(36), nullable=False)
    #: The port's network if both are of one project.
    own_network = sa.Column(sa.String(36), nullable=True)
    host = sa.Column(sa.String(255), nullable=False)
    pci_slot = sa.Column(sa.String(32), nullable=False)
    __table_args__ = (
        sa.Index("ix_hpc_partition_former_holders_guid", "fabric", "guid"),
        sa.Index("ix_hpc_partition_former_holders_place", "host", "pci_slot"),
        model_base.BASEV2.__table_args__,
    )


class PartitionGuidRow(model_base.BASEV2):
    """Database row that assigns a GUID to one network.

    No other one gets it while a holder, a former holder or a member row names it.
    """

    __tablename__ = "hpc_partition_guids"
    fabric = sa.Column(sa.String(LONGEST_FABRIC), primary_key=True)
    guid = sa.Column(sa.String(18), primary_key=True)
    pkey = sa.Column(sa.Integer, nullable=False)
    network_id = sa.Column(sa.String(36), nullable=False)
    #: Counts holds. A new hold has to write the row that goes with the last one, because nodes of
    #: a database cluster do not see one another's locks if all of them take writes.
    claims = sa.Column(sa.Integer, nullable=False)


class PartitionKeyRow(model_base.BASEV2):
    """Database row that assigns a P_Key of a fabric to one network.

    It outlives its network while member rows have the key.
    """

    __tablename__ = "hpc_partition_keys"
    fabric = sa.Column(sa.String(LONGEST_FABRIC), primary_key=True)
    pkey = sa.Column(sa.Integer, primary_key=True, autoincrement=False)
    network_id = sa.Column(sa.String(36), nullable=False, index=True)


class PartitionTicketRow(model_base.BASEV2):
    """Database row that counts how often the member rows of a fabric were read."""

    __tablename__ = "hpc_partition_tickets"
    fabric = sa.Column(sa.String(LONGEST_FABRIC), primary_key=True)
    ticket = sa.Column(sa.BigInteger, nullable=False)


def member_of_row(row: Any, port_status: str | None) -> PartitionMember:
    """Convert a member row into the agent's form.

    :param row: a :class:`PartitionMemberRow`.
    :param port_status: of its port; None if the port is gone.
    """
    return PartitionMember(
        row=row.id,
        port_id=row.port_id,
        guid=parse_guid(row.guid),
        pkey=row.pkey,
        membership=Membership(row.membership),
        wanted=bool(row.wanted),
        port_status=port_status,
    )
