# SPDX-License-Identifier: Apache-2.0
"""Networks that have GUIDs, and the ports that hold them.

A bound port holds its GUID until it is unbound. A port that is deleted before that becomes a
*former holder*, because a guest may refuse to give its function back. It keeps the ports of other
servers off the GUID until Nova gives the function again, or the server has left the host. Ports
of its own network may have the GUID if port and network belong to one project. In that case the
server was not a guest in a foreign network.

The GUID's own row is the lock: a transaction that changes its holders or its members locks it
first, and reads both after that. A snapshot from the start of the transaction would not contain
the rows that other transactions have committed since.
"""

from __future__ import annotations

from typing import Any

import attrs
from neutron.db import models_v2
from oslo_utils import uuidutils

from neutron_drivers.errors import PartitionInUseError
from neutron_drivers.held_ports import FormerHolder, conflict_of_formers
from neutron_drivers.member_rows import (
    PartitionFormerHolderRow,
    PartitionGuidRow,
    PartitionHolderRow,
    PartitionMemberRow,
)
from neutron_drivers.port_rules import WantedMember, no_room
from nova_hpc.fabric.partitions.keys import Membership, format_guid


@attrs.frozen
class GuidOwner:
    """The reason why a port cannot have a GUID now: the network or the deleted ports that keep it.

    :ivar is_firm: it is another network than the port's, and one of its ports is to keep it.
    :ivar formers: deleted ports that are in the way, of any network.
    """

    network_id: str
    is_firm: bool
    formers: tuple[FormerHolder, ...]


def find_guid_owner(session: Any, wanted: WantedMember) -> GuidOwner | None:
    """Find the owner that keeps a port from its GUID now; None if the port can have it."""
    fabric = wanted.key.fabric
    owner = session.get(PartitionGuidRow, (fabric, format_guid(wanted.guid)))
    if owner is None:
        return None
    which = {"fabric": fabric, "guid": owner.guid}
    is_other = owner.network_id != wanted.network_id
    is_firm = is_other and (
        has_holders(session, **which) or has_members(session, wanted=True, **which)
    )
    formers = _find_formers_in_the_way(session, wanted)
    if is_firm or formers or (is_other and has_members(session, **which)):
        return GuidOwner(owner.network_id, is_firm, formers)
    return None


def lock_holder(session: Any, port_id: str) -> PartitionHolderRow | None:
    """Lock the GUID of a port; return the port's present holder row, or None without a GUID."""
    row = session.get(PartitionHolderRow, port_id)
    if row is None:
        return None
    lock_row(session, PartitionGuidRow, (row.fabric, row.guid))
    holder: PartitionHolderRow | None = session.get(
        PartitionHolderRow, port_id, with_for_update=True, populate_existing=True
    )
    return holder


def hold_guid(session: Any, port_id: str, wanted: WantedMember, most_pkeys: int) -> WantedMember:
    """Assign a GUID to a port that is being bound, inside the port's own transaction.

    :param most_pkeys: number of P_Keys that one physical port keeps.
    :returns: *wanted*; for a port that has that place already, with the membership it has.
    :raises PartitionInUseError: another network or server has the GUID, or the adapter's port would
        be full and limited, or keeps no further key.
    """
    # Nova gives the function to this port, so no former server can have it any more.
    if wanted.pci_slot:
        _release_function(session, wanted.host, wanted.pci_slot)
    is_shared = _claim_guid(session, wanted)
    row = session.get(PartitionHolderRow, port_id)
    if row is not None and _place_of_row(row) == _place_of(wanted):
        return attrs.evolve(wanted, membership=Membership(row.membership))
    # A port that has the place already keeps it: its network's key is there in any case.
    _check_formers(session, wanted)
    if is_shared:
        check_like_members(session, port_id, wanted)
    check_room(session, port_id, wanted, most_pkeys)
    if row is not None:
        _drop_holder(session, row)
    _add_holder(session, port_id, wanted)
    return wanted


def add_bound_holder(session: Any, port_id: str, held: WantedMember) -> None:
    """Assign a GUID to a port that is bound already.

    :raises PartitionInUseError: another network or server has it.
    """
    is_shared = _claim_guid(session, held)
    if session.get(PartitionHolderRow, port_id) is not None:
        return
    # In the network that has the GUID, the port has its place already.
    if not is_shared:
        _check_formers(session, held)
    which = {"fabric": held.key.fabric, "guid": format_guid(held.guid)}
    neighbour = session.query(PartitionHolderRow).filter_by(**which).with_for_update().first()
    membership = held.membership if neighbour is None else Membership(neighbour.membership)
    _add_holder(session, port_id, attrs.evolve(held, membership=membership))


def _add_holder(session: Any, port_id: str, wanted: WantedMember) -> None:
    session.add(
        PartitionHolderRow(
            port_id=port_id,
            fabric=wanted.key.fabric,
            guid=format_guid(wanted.guid),
            physical_guid=format_guid(wanted.physical_guid),
            pkey=wanted.key.pkey,
            network_id=wanted.network_id,
            host=wanted.host,
            pci_slot=wanted.pci_slot,
            membership=wanted.membership.value,
        )
    )
    session.flush()


def release_guid(session: Any, port_id: str) -> None:
    """Remove the GUID from a port. The network keeps it while other ports or members use it."""
    row = lock_holder(session, port_id)
    if row is not None:
        _drop_holder(session, row)


def leave_guid(session: Any, port_id: str) -> None:
    """Remove the GUID from a port that is being deleted; its server may still have the function.

    The server is read here, under the lock of the GUID: a bind may have come since Neutron started
    to delete the port. A value that is not an ID does not name a server, so no row stays.
    """
    row = lock_holder(session, port_id)
    if row is None:
        return
    port = models_v2.Port
    columns = session.query(port.device_id, port.project_id).filter_by(id=port_id)
    server_id, project_id = columns.with_for_update().first() or ("", "")
    if uuidutils.is_uuid_like(server_id):
        names = "port_id", "fabric", "guid", "host", "pci_slot"
        values = {name: getattr(row, name) for name in names}
        network = session.get(models_v2.Network, row.network_id)
        is_own = network is not None and network.project_id == project_id
        values["own_network"] = row.network_id if is_own else None
        session.add(PartitionFormerHolderRow(server_id=server_id, **values))
    _drop_holder(session, row)


def find_next_former(session: Any, after: str) -> FormerHolder | None:
    """Find a former holder of a GUID (a deleted port) with the next ID above *after*; else None."""
    formers = PartitionFormerHolderRow
    row = (
        session.query(formers)
        .filter(formers.port_id > after)
        .order_by(formers.port_id)
        .limit(1)
        .first()
    )
    return None if row is None else _former_of_row(row)


def _former_of_row(row: Any) -> FormerHolder:
    place = row.host, row.pci_slot
    return FormerHolder(row.port_id, row.server_id, *place, own_network=row.own_network)


def release_former(session: Any, port_id: str) -> None:
    """Delete the row of a deleted port, because its server does not have the function any more."""
    row = session.get(PartitionFormerHolderRow, port_id)
    if row is None:
        return
    fabric, guid = row.fabric, row.guid
    lock_row(session, PartitionGuidRow, (fabric, guid))
    row = lock_row(session, PartitionFormerHolderRow, (port_id,))
    if row is not None:
        session.delete(row)
        session.flush()
        drop_free_owner(session, fabric, guid)


def drop_free_owner(session: Any, fabric: str, guid: str) -> None:
    """Delete the record of a GUID's network if no port and no member uses the GUID any more."""
    owner = lock_row(session, PartitionGuidRow, (fabric, guid))
    which = {"fabric": fabric, "guid": guid}
    if (
        owner is not None
        and not has_holders(session, **which)
        and not has_members(session, **which)
        and not _has_rows(session, PartitionFormerHolderRow.port_id, which)
    ):
        session.delete(owner)
        session.flush()


def check_like_members(session: Any, port_id: str, wanted: WantedMember) -> None:
    """Refuse a port that would make its physical port a full and a limited member at once.

    Ports that are switched off count: they could not be switched on again.

    :raises PartitionInUseError: it would.
    """
    others = (
        session.query(PartitionHolderRow)
        .filter_by(fabric=wanted.key.fabric, guid=format_guid(wanted.guid))
        .filter(PartitionHolderRow.port_id != port_id)
        .with_for_update()
        .populate_existing()
    )
    unlike = [row.port_id for row in others if row.membership != wanted.membership.value]
    if unlike:
        raise PartitionInUseError(
            "the InfiniBand port of its device would be a full and a limited member of the "
            "network: all ports of one adapter's port have the tag hpc-limited, or none has",
            f"GUID {format_guid(wanted.guid)} of fabric {wanted.key.fabric}: "
            f"{wanted.membership} beside port {', '.join(sorted(unlike))}",
        )


def check_room(session: Any, port_id: str, wanted: WantedMember, most_pkeys: int) -> None:
    """Refuse a function if its physical port has reached its number of P_Keys.

    :raises PartitionInUseError: the physical port is full.
    """
    if wanted.physical_guid == wanted.guid:
        return  # All its functions are in one network.
    rows = (
        session.query(PartitionHolderRow.pkey)
        .filter_by(fabric=wanted.key.fabric, physical_guid=format_guid(wanted.physical_guid))
        .filter(PartitionHolderRow.port_id != port_id)
        .with_for_update()
    )
    pkeys = {pkey for (pkey,) in rows}
    if wanted.key.pkey not in pkeys and len(pkeys) >= most_pkeys:
        raise no_room(wanted.physical_guid, most_pkeys)


def conflict_of_guid(fabric: str, guid: int, network_id: str) -> PartitionInUseError:
    """Build the error for a GUID that another network uses, and log the name of that network."""
    return PartitionInUseError(
        "the InfiniBand port of its device is a member of another network's partition, or was and "
        "is not rid of it yet: two networks never share a port",
        f"GUID {format_guid(guid)} of fabric {fabric} is network {network_id}'s",
    )


def lock_row(session: Any, kind: Any, identity: tuple[Any, ...]) -> Any:
    """Lock a database row and return its present state; None if it does not exist.

    The first look takes no lock, because a lock on a missing row keeps other transactions from
    adding theirs.
    """
    if session.get(kind, identity) is None:
        return None
    return session.get(kind, identity, with_for_update=True, populate_existing=True)


def has_holders(session: Any, **which: Any) -> bool:
    """Whether a bound port with these column values exists now."""
    return _has_rows(session, PartitionHolderRow.port_id, which)


def has_members(session: Any, **which: Any) -> bool:
    """Whether a member row with these column values exists now."""
    return _has_rows(session, PartitionMemberRow.id, which)


def _has_rows(session: Any, column: Any, which: dict[str, Any]) -> bool:
    # A locking read: others may have added or removed rows since this transaction began.
    return session.query(column).filter_by(**which).with_for_update().limit(1).first() is not None


def _drop_holder(session: Any, row: PartitionHolderRow) -> None:
    fabric, guid = row.fabric, row.guid
    session.delete(row)
    session.flush()
    drop_free_owner(session, fabric, guid)


def _claim_guid(session: Any, wanted: WantedMember) -> bool:
    """Lock a GUID for its network; returns whether ports of the network had the GUID before.

    :raises PartitionInUseError: another network has holders or members of it.
    """
    identity = wanted.key.fabric, format_guid(wanted.guid)
    owner = lock_row(session, PartitionGuidRow, identity)
    if owner is None:
        session.add(
            PartitionGuidRow(
                fabric=wanted.key.fabric,
                guid=identity[1],
                pkey=wanted.key.pkey,
                network_id=wanted.network_id,
                claims=1,
            )
        )
        session.flush()
        return False
    owner.claims += 1
    if (owner.network_id, owner.pkey) == (wanted.network_id, wanted.key.pkey):
        return True
    which = {"fabric": wanted.key.fabric, "guid": identity[1]}
    if has_holders(session, **which) or has_members(session, **which):
        raise conflict_of_guid(wanted.key.fabric, wanted.guid, owner.network_id)
    owner.network_id, owner.pkey = wanted.network_id, wanted.key.pkey
    session.flush()
    return False


def _check_formers(session: Any, wanted: WantedMember) -> None:
    formers = _find_formers_in_the_way(session, wanted)
    if formers:
        raise conflict_of_formers(wanted.key.fabric, wanted.guid, formers)


def _find_formers_in_the_way(session: Any, wanted: WantedMember) -> tuple[FormerHolder, ...]:
    rows = (
        session.query(PartitionFormerHolderRow)
        .filter_by(fabric=wanted.key.fabric, guid=format_guid(wanted.guid))
        .order_by(PartitionFormerHolderRow.port_id)
        .with_for_update()
        .populate_existing()
    )
    return tuple(former for former in map(_former_of_row, rows) if former.is_in_the_way(wanted))


def _release_function(session: Any, host: str, pci_slot: str) -> None:
    """Forget deleted ports with a function that Nova gives again."""
    formers = PartitionFormerHolderRow
    rows = session.query(formers.port_id).filter_by(host=host, pci_slot=pci_slot).all()
    for (port_id,) in rows:
        release_former(session, port_id)


def _place_of(wanted: WantedMember) -> tuple[Any, ...]:
    key = wanted.key
    place = wanted.host, wanted.pci_slot
    return (key.fabric, key.pkey, format_guid(wanted.guid), wanted.network_id, *place)


def _place_of_row(row: PartitionHolderRow) -> tuple[Any, ...]:
    return row.fabric, row.pkey, row.guid, row.network_id, row.host, row.pci_slot
