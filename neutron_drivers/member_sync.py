# SPDX-License-Identifier: Apache-2.0
"""Keeps the members of bound ports consistent with port, network, tags and options.

A port's own transaction does it for that port. This module does it for ports that are bound
already, when a network is switched off or on, or a tag or an option changes. Neutron informs no
driver about tags. It also corrects ports whose request came at the same moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import attrs
import sqlalchemy as sa
from neutron.db import models_v2, provisioning_blocks
from neutron.db.models import tag as tag_model
from neutron.plugins.ml2 import models as ml2_models
from neutron_lib import constants
from neutron_lib.callbacks import resources
from neutron_lib.db import api as db_api
from oslo_log import log
from sqlalchemy import orm

from neutron_drivers import guid_holders, member_store
from neutron_drivers.agent_endpoint import block_of_row
from neutron_drivers.bound_ports import take_over_bound_ports
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.held_ports import HeldPort, settle_guid
from neutron_drivers.member_rows import (
    PartitionGuidRow,
    PartitionHolderRow,
    PartitionMemberRow,
)
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.port_rules import LIMITED_TAG, VIF_TYPES, WantedMember
from neutron_drivers.said_once import SaidOnce
from nova_hpc.fabric.partitions.keys import Membership, format_guid, parse_guid

LOG = log.getLogger(__name__)

#: Keeps a port from ACTIVE while it has no row.
BLOCK: Final = "HPC_PARTITION"
_SAID: Final = SaidOnce()


def apply_membership(
    context: Any, port_id: str, wanted: WantedMember | None, *, has_host: bool
) -> bool:
    """Make a port a member of a partition, or of none.

    Provisioning blocks keep it from ACTIVE until the membership is in force.

    Inside a transaction that has locked the port's GUID.

    :param has_host: the port is on a host, bound or not.
    :returns: whether its rows have changed; the port is DOWN then.
    """
    change = member_store.set_membership(context.session, port_id, wanted)
    for row in change.withdrawn:
        _remove_block(context, port_id, block_of_row(row))
    if change.added is not None:
        _add_block(context, port_id, block_of_row(change.added))
        _remove_block(context, port_id, BLOCK)
    elif wanted is None and has_host:
        _add_block(context, port_id, BLOCK)
    if change:
        # Neutron leaves the status as it is when a port is switched off.
        member_store.set_port_down(context.session, port_id)
    return bool(change)


def settle_network(context: Any, settings: FabricSettings, network_id: str) -> None:
    """Adjust the memberships of a network's ports, inside the transaction that changes the
    network.
    """
    for fabric, guid in _guids_of(context.session, PartitionHolderRow.network_id == network_id):
        _settle_locked(context, settings, fabric, guid)


def settle_all(context: Any, settings: FabricSettings) -> set[str]:
    """Adjust the memberships of all bound ports, each GUID in a transaction of its own.

    :returns: the fabrics whose members have changed.
    """
    take_over_bound_ports(context, settings)
    with db_api.CONTEXT_READER.using(context):
        ports = _find_held_ports(context.session)
    changed, complaints = set(), {}
    for (fabric, guid), group in _by_guid(ports).items():
        settled = settle_guid(group, settings)
        if settled.complaint:
            complaints[fabric, guid] = settled.complaint
        if all(port.is_settled(settled.memberships[port.port_id]) for port in group):
            continue
        try:
            _settle_guid(context, settings, fabric, format_guid(guid))
            changed.add(fabric)
        except Exception:
            # One GUID never keeps the others from it; the next look tries it again.
            LOG.exception("Members with GUID %s of %s were not settled", format_guid(guid), fabric)
    for text in _SAID.take_new(complaints):
        LOG.error("Tags or options do not hold for bound ports yet: %s", text)
    return changed


@db_api.retry_db_errors
def _settle_guid(context: Any, settings: FabricSettings, fabric: str, guid: str) -> None:
    with db_api.CONTEXT_WRITER.using(context):
        _settle_locked(context, settings, fabric, guid)


def _settle_locked(context: Any, settings: FabricSettings, fabric: str, guid: str) -> None:
    """Change the memberships of all ports of one GUID, under the GUID's lock."""
    session, holders = context.session, PartitionHolderRow
    guid_holders.lock_row(session, PartitionGuidRow, (fabric, guid))
    ports = _find_held_ports(session, holders.fabric == fabric, holders.guid == guid, lock=True)
    if not ports:
        return
    memberships = settle_guid(ports, settings).memberships
    for port in ports:
        membership = memberships[port.port_id]
        if port.is_settled(membership):
            continue
        row = session.get(holders, port.port_id)
        row.membership = membership.value
        wanted = attrs.evolve(port.held, membership=membership) if port.is_on else None
        changed = apply_membership(context, port.port_id, wanted, has_host=True)
        if wanted is None and port.is_active and not changed:
            member_store.set_port_down(session, port.port_id)
        LOG.info(
            "Port %s is to be %s of P_Key %#06x",
            *(port.port_id, f"a {membership} member" if wanted else "no member"),
            port.held.key.pkey,
        )


def _by_guid(ports: Iterable[HeldPort]) -> dict[tuple[str, int], list[HeldPort]]:
    groups: defaultdict[tuple[str, int], list[HeldPort]] = defaultdict(list)
    for port in ports:
        groups[port.held.key.fabric, port.held.guid].append(port)
    return groups


def _guids_of(session: Any, *where: Any) -> list[tuple[str, str]]:
    columns = PartitionHolderRow.fabric, PartitionHolderRow.guid
    return [
        tuple(row) for row in session.query(*columns).filter(*where).distinct().order_by(*columns)
    ]


def _find_held_ports(session: Any, *where: Any, lock: bool = False) -> list[HeldPort]:
    holders, ports, networks = PartitionHolderRow, models_v2.Port, models_v2.Network
    bindings, members = ml2_models.PortBinding, PartitionMemberRow
    port_tags, network_tags = orm.aliased(tag_model.Tag), orm.aliased(tag_model.Tag)
    query = (
        session.query(
            *(holders.port_id, holders.fabric, holders.guid, holders.physical_guid),
            *(holders.pkey, holders.network_id, holders.host, holders.pci_slot),
            holders.membership,
            ports.project_id.label("project"),
            *(ports.admin_state_up.label("port_up"), ports.status),
            networks.project_id.label("network_project"),
            networks.admin_state_up.label("network_up"),
            *(bindings.vif_type, members.membership.label("member")),
            port_tags.tag.label("port_tag"),
            network_tags.tag.label("network_tag"),
        )
        .join(ports, ports.id == holders.port_id)
        .join(networks, networks.id == holders.network_id)
        .outerjoin(bindings, sa.and_(bindings.port_id == ports.id, bindings.host == holders.host))
        .outerjoin(
            members, sa.and_(members.port_id == holders.port_id, members.wanted == sa.true())
        )
        .outerjoin(port_tags, _is_tag_of(port_tags, ports))
        .outerjoin(network_tags, _is_tag_of(network_tags, networks))
        .filter(*where)
        .order_by(holders.port_id)
    )
    return [_read_held_port(row) for row in (query.with_for_update() if lock else query)]


def _is_tag_of(tags: Any, kind: Any) -> Any:
    return sa.and_(tags.standard_attr_id == kind.standard_attr_id, tags.tag == LIMITED_TAG)


def _read_held_port(row: Any) -> HeldPort:
    return HeldPort(
        port_id=row.port_id,
        project_id=row.project,
        network_project=row.network_project,
        held=WantedMember(
            key=FabricKey(row.fabric, row.pkey),
            guid=parse_guid(row.guid),
            physical_guid=parse_guid(row.physical_guid),
            membership=Membership(row.membership),
            host=row.host,
            pci_slot=row.pci_slot,
            network_id=row.network_id,
        ),
        member=None if row.member is None else Membership(row.member),
        is_on=bool(row.port_up and row.network_up and row.vif_type in VIF_TYPES),
        # The database finds tags in other letters, too.
        tagged=row.port_tag == LIMITED_TAG,
        network_tagged=row.network_tag == LIMITED_TAG,
        is_active=row.status == constants.PORT_STATUS_ACTIVE,
    )


# -- blocks -------------------------------------------------------------------------------


def _add_block(context: Any, port_id: str, block: str) -> None:
    provisioning_blocks.add_provisioning_component(context, port_id, resources.PORT, block)


def _remove_block(context: Any, port_id: str, block: str) -> None:
    provisioning_blocks.remove_provisioning_component(context, port_id, resources.PORT, block)
