# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the driver's rows, so that several API and RPC processes can do it at once.

A primary key protects each thing that must not happen twice. The second transaction gets an error
of the database, and Neutron starts its request again. That try sees the rows of the first one.
The holders of GUIDs and their locks are in ``guid_holders``.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import Any

import attrs
import sqlalchemy as sa
from neutron.db import models_v2
from neutron.db.models import segment as segment_model
from neutron.plugins.ml2 import models as ml2_models
from neutron_lib import constants
from neutron_lib.db import api as db_api
from oslo_utils import timeutils

from neutron_drivers.errors import PartitionInUseError
from neutron_drivers.guid_holders import (
    drop_free_owner,
    has_holders,
    has_members,
    lock_row,
    release_guid,
)
from neutron_drivers.member_rows import (
    PartitionGuidRow,
    PartitionHolderRow,
    PartitionKeyRow,
    PartitionMemberRow,
    PartitionTicketRow,
    member_of_row,
)
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.port_rules import WantedMember
from nova_hpc.fabric.partitions.keys import format_guid, format_pkey
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionPolicy


@attrs.frozen
class MembershipChange:
    """The changes of a port's member rows.

    :ivar added: the new row; None if no row was added.
    :ivar withdrawn: rows that are not wanted any more.
    """

    added: int | None = None
    withdrawn: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.added is not None or bool(self.withdrawn)


# -- keys ------------------------------------------------------------------------------


def claim_key(
    session: Any, key: FabricKey, network_id: str, physical_networks: Collection[str]
) -> None:
    """Assign a P_Key to a network, inside the transaction that creates the network.

    :param physical_networks: the physical networks of the key's fabric.
    :raises PartitionInUseError: another network has it, or had it and still has members in the
        fabric.
    """
    owner = lock_row(session, PartitionKeyRow, (key.fabric, key.pkey))
    if owner is not None and owner.network_id != network_id:
        if _network_exists(session, owner.network_id):
            raise PartitionInUseError(
                f"P_Key {format_pkey(key.pkey)} is in use on another physical network of the same "
                "InfiniBand fabric",
                f"{key} is network {owner.network_id}",
            )
        if has_members(session, fabric=key.fabric, pkey=key.pkey):
            raise PartitionInUseError(
                f"P_Key {format_pkey(key.pkey)} still has members of a deleted network: it is free "
                "as soon as the subnet manager has taken it from their ports",
                f"{key} was network {owner.network_id}",
            )
        owner.network_id = network_id
    segments = segment_model.NetworkSegment
    # Networks that are older than the driver have no row in its tables.
    older = (
        session.query(segments.network_id)
        .filter(segments.physical_network.in_(sorted(physical_networks)))
        .filter(segments.segmentation_id == key.pkey, segments.network_id != network_id)
        .first()
    )
    if older is not None:
        raise PartitionInUseError(
            f"P_Key {format_pkey(key.pkey)} is in use on another physical network of the same "
            "InfiniBand fabric",
            f"{key} is network {older[0]}",
        )
    if owner is None:
        session.add(PartitionKeyRow(fabric=key.fabric, pkey=key.pkey, network_id=network_id))
    session.flush()


def keys_of_network(session: Any, network_id: str) -> set[FabricKey]:
    """Return the P_Keys of a network, one for each fabric."""
    rows = session.query(PartitionKeyRow).filter_by(network_id=network_id)
    return {FabricKey(row.fabric, row.pkey) for row in rows}


def release_keys(session: Any, network_id: str) -> None:
    """Delete the P_Key rows of a network. A key with members stays until the last member is
    gone.
    """
    for row in session.query(PartitionKeyRow).filter_by(network_id=network_id).all():
        if not has_members(session, fabric=row.fabric, pkey=row.pkey):
            session.delete(row)
    session.flush()


def network_has_members(session: Any, network_id: str) -> bool:
    """Whether a port of the network has its P_Key, is about to get it, or has not lost it yet."""
    return has_members(session, network_id=network_id) or has_holders(
        session, network_id=network_id
    )


# -- members ---------------------------------------------------------------------------


def set_membership(session: Any, port_id: str, wanted: WantedMember | None) -> MembershipChange:
    """Make a port a member of one partition, or of none, inside a transaction.

    A port that has a GUID, or gets it by this, has it locked before:
    :func:`~neutron_drivers.guid_holders.lock_holder`.
    """
    query = session.query(PartitionMemberRow).filter_by(port_id=port_id, wanted=True)
    # Include rows that were added since this transaction began.
    rows = query.with_for_update().populate_existing().all()
    if wanted is not None and [_wish_of_row(row) for row in rows] == [_wish_of(wanted)]:
        return MembershipChange()
    for row in rows:
        row.wanted = False
    session.flush()
    withdrawn = tuple(row.id for row in rows)
    if wanted is None:
        return MembershipChange(withdrawn=withdrawn)
    # The new row replaces former ones of the same port and key. Otherwise a project could fill the
    # table: it would switch a port off and on again and again while no agent runs.
    session.query(PartitionMemberRow).filter_by(
        fabric=wanted.key.fabric,
        port_id=port_id,
        guid=format_guid(wanted.guid),
        pkey=wanted.key.pkey,
        wanted=False,
    ).delete(synchronize_session="fetch")
    row = PartitionMemberRow(
        fabric=wanted.key.fabric,
        port_id=port_id,
        network_id=wanted.network_id,
        host=wanted.host,
        pci_slot=wanted.pci_slot,
        guid=format_guid(wanted.guid),
        pkey=wanted.key.pkey,
        membership=wanted.membership.value,
        wanted=True,
        since=timeutils.utcnow(),
    )
    session.add(row)
    session.flush()
    return MembershipChange(row.id, withdrawn)


def find_wanted_rows(session: Any, fabric: str, rows: Collection[int]) -> list[Any]:
    """Return the membership rows among the ids *rows* that are still wanted."""
    return list(
        session.query(PartitionMemberRow)
        .filter(PartitionMemberRow.id.in_(sorted(rows)))
        .filter_by(fabric=fabric, wanted=True)
        .all()
    )


@db_api.retry_db_errors
def drop_gone_rows(context: Any, fabric: str, rows: Collection[int]) -> int:
    """Delete member rows whose membership is gone, and GUID and key rows without a user after that.

    :returns: the number of forgotten rows; wanted rows are never forgotten.
    """
    members = PartitionMemberRow
    with db_api.CONTEXT_WRITER.using(context):
        session = context.session
        gone = (
            session.query(members.id, members.guid, members.pkey)
            .filter(members.id.in_(sorted(rows)))
            .filter_by(fabric=fabric, wanted=False)
            .all()
        )
        guids = sorted({row.guid for row in gone})
        for guid in guids:
            lock_row(session, PartitionGuidRow, (fabric, guid))
        dropped: int = (
            session.query(members)
            .filter(members.id.in_([row.id for row in gone]))
            .filter_by(fabric=fabric, wanted=False)
            .delete(synchronize_session=False)
        )
        for guid in guids:
            drop_free_owner(session, fabric, guid)
        for pkey in sorted({row.pkey for row in gone}):
            key = lock_row(session, PartitionKeyRow, (fabric, pkey))
            if (
                key is not None
                and not _network_exists(session, key.network_id)
                and not has_members(session, fabric=fabric, pkey=pkey)
            ):
                session.delete(key)
        return dropped


@db_api.retry_db_errors
def read_desired_partitions(
    context: Any, fabric: str, policies: Mapping[int, PartitionPolicy]
) -> DesiredPartitions:
    """Read all member rows of a fabric, with a new ticket.

    The ticket's row is locked before the first row is read. So readings come one after the other,
    and each sees all rows that the reading before it has seen.
    """
    tickets, members, ports = PartitionTicketRow, PartitionMemberRow, models_v2.Port
    with db_api.CONTEXT_WRITER.using(context):
        session = context.session
        counted = session.execute(
            sa.update(tickets)
            .where(tickets.fabric == fabric)
            .values(ticket=tickets.ticket + 1)
            .execution_options(synchronize_session=False)
        )
        if not counted.rowcount:
            session.add(tickets(fabric=fabric, ticket=1))
            session.flush()
        ticket = session.query(tickets.ticket).filter_by(fabric=fabric).scalar()
        rows = (
            session.query(members, ports.status)
            .outerjoin(ports, ports.id == members.port_id)
            .filter(members.fabric == fabric)
            .order_by(members.id)
            .all()
        )
        keys = {row.pkey for row, _ in rows}
        return DesiredPartitions(
            ticket=ticket,
            members=tuple(member_of_row(row, status) for row, status in rows),
            policies={pkey: policies[pkey] for pkey in keys & policies.keys()},
        )


@db_api.retry_db_errors
def restart_wait(context: Any, row: int) -> None:
    """Restart the timeout of a wanted row's membership: its time becomes the present one."""
    with db_api.CONTEXT_WRITER.using(context):
        context.session.query(PartitionMemberRow).filter_by(id=row, wanted=True).update(
            {"since": timeutils.utcnow()}, synchronize_session=False
        )


# -- ports -----------------------------------------------------------------------------


def find_port(session: Any, port_id: str) -> Any:
    """Return the row of a port in Neutron's own table; None if the port was deleted."""
    return session.query(models_v2.Port).filter_by(id=port_id).one_or_none()


def set_port_down(session: Any, port_id: str) -> None:
    """Set a port DOWN inside the transaction that ends its membership; Nova gets an event."""
    port = find_port(session, port_id)
    if port is not None:
        port.status = constants.PORT_STATUS_DOWN
        session.flush()


def active_host_of_port(session: Any, port_id: str) -> str:
    """Return the host of a port's active binding; "" if it has none."""
    binding = ml2_models.PortBinding
    found = session.query(binding.host).filter_by(port_id=port_id, status=constants.ACTIVE).first()
    return found[0] if found else ""


def physical_networks_of(session: Any, network_id: str) -> set[str]:
    """Return the names of the physical networks that a network has segments on."""
    segments = segment_model.NetworkSegment
    rows = session.query(segments.physical_network).filter_by(network_id=network_id)
    return {name for (name,) in rows if name}


@db_api.retry_db_errors
def withdraw_orphans(context: Any) -> int:
    """Mark member rows as unwanted, and release GUIDs, if their ports were deleted without this
    driver.

    :returns: the number of rows.
    """
    members, ports = PartitionMemberRow, models_v2.Port
    with db_api.CONTEXT_WRITER.using(context):
        session = context.session
        orphans = [
            row
            for (row,) in session.query(members.id)
            .outerjoin(ports, ports.id == members.port_id)
            .filter(members.wanted == sa.true(), ports.id == sa.null())
        ]
        if orphans:
            session.query(members).filter(members.id.in_(orphans)).update(
                {"wanted": False}, synchronize_session=False
            )
        holders = PartitionHolderRow
        for (port_id,) in (
            session.query(holders.port_id)
            .outerjoin(ports, ports.id == holders.port_id)
            .filter(ports.id == sa.null())
            .all()
        ):
            release_guid(session, port_id)
        return len(orphans)


@db_api.retry_db_errors
def find_overdue_rows(context: Any, since: datetime.datetime) -> list[tuple[int, str, str]]:
    """Find wanted rows from before *since* whose ports are still DOWN, as (row, port, fabric)."""
    members, ports = PartitionMemberRow, models_v2.Port
    with db_api.CONTEXT_READER.using(context):
        return [
            tuple(row)
            for row in context.session.query(members.id, members.port_id, members.fabric)
            .join(ports, ports.id == members.port_id)
            .filter(members.wanted == sa.true(), members.since < since, ports.status == "DOWN")
            .filter(ports.admin_state_up == sa.true())
            .all()
        ]


# -- inside ----------------------------------------------------------------------------


def _wish_of(wanted: WantedMember) -> tuple[Any, ...]:
    return (
        wanted.key.fabric,
        wanted.key.pkey,
        format_guid(wanted.guid),
        wanted.membership.value,
        wanted.host,
        wanted.network_id,
    )


def _wish_of_row(row: Any) -> tuple[Any, ...]:
    return row.fabric, row.pkey, row.guid, row.membership, row.host, row.network_id


def _network_exists(session: Any, network_id: str) -> bool:
    return session.query(models_v2.Network.id).filter_by(id=network_id).first() is not None
