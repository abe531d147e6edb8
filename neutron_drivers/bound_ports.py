# SPDX-License-Identifier: Apache-2.0
"""Gives a GUID to ports that were bound by a release without holders.

During an upgrade a server with such a release may still bind ports, beside this one.
"""

from __future__ import annotations

import json
from typing import Any, Final

import sqlalchemy as sa
from neutron.db import models_v2
from neutron.db.models import segment as segment_model
from neutron.plugins.ml2 import models as ml2_models
from neutron_lib import constants
from neutron_lib.db import api as db_api
from oslo_log import log

from neutron_drivers import guid_holders
from neutron_drivers.errors import PartitionError
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.member_rows import PartitionHolderRow, PartitionMemberRow
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.port_rules import VIF_TYPES, WantedMember
from neutron_drivers.said_once import SaidOnce
from nova_hpc.fabric.partitions.keys import Membership, parse_guid

LOG = log.getLogger(__name__)

_SAID: Final = SaidOnce()


def take_over_bound_ports(context: Any, settings: FabricSettings) -> None:
    """Add the missing holder rows of ports that were bound before such rows existed.

    A holder row records which port has a GUID. A port that cannot get one is logged.
    """
    with db_api.CONTEXT_READER.using(context):
        unheld = _find_unheld_ports(context.session, settings)
    complaints = {}
    for port_id, held in unheld:
        try:
            _hold_bound_port(context, port_id, held)
        except PartitionError as error:
            complaints[port_id] = f"{error} ({error.detail})"
        except Exception:
            LOG.exception("Port %s was not given its hold", port_id)
    for port_id, text in complaints.items():
        if _SAID.is_new(port_id, text):
            LOG.error(
                "Port %s is bound to a device that another network has; stop one of their "
                "servers: %s",
                *(port_id, text),
            )


@db_api.retry_db_errors
def _hold_bound_port(context: Any, port_id: str, held: WantedMember) -> None:
    with db_api.CONTEXT_WRITER.using(context):
        bindings = ml2_models.PortBinding
        still = (
            context.session.query(bindings.vif_details)
            .filter_by(port_id=port_id, host=held.host)
            .filter(bindings.vif_type.in_(VIF_TYPES))
            .with_for_update()
            .first()
        )
        if still is not None and _read_guid(still[0]) == held.guid:
            guid_holders.add_bound_holder(context.session, port_id, held)


def _find_unheld_ports(session: Any, settings: FabricSettings) -> list[tuple[str, WantedMember]]:
    """Find ports with an active binding of this driver and no row of a holder.

    A port keeps the membership of its present row; without one it is a full member.

    :returns: pairs of a port's id and the membership to record.
    """
    holders, ports, bindings = PartitionHolderRow, models_v2.Port, ml2_models.PortBinding
    segments, members = segment_model.NetworkSegment, PartitionMemberRow
    rows = (
        session.query(
            *(ports.id, ports.network_id, bindings.host, bindings.profile, bindings.vif_details),
            *(segments.physical_network, segments.segmentation_id, members.membership),
        )
        .join(bindings, bindings.port_id == ports.id)
        .join(segments, segments.network_id == ports.network_id)
        .outerjoin(holders, holders.port_id == ports.id)
        .outerjoin(members, sa.and_(members.port_id == ports.id, members.wanted == sa.true()))
        .filter(holders.port_id == sa.null(), bindings.status == constants.ACTIVE)
        .filter(bindings.host != "", bindings.vif_type.in_(VIF_TYPES))
        .filter(segments.physical_network.in_(sorted(settings.fabrics)))
    )
    unheld = []
    for row in rows:
        guid = _read_guid(row.vif_details)
        if guid is None:
            continue
        held = WantedMember(
            key=FabricKey(settings.fabrics[row.physical_network], row.segmentation_id),
            guid=guid,
            physical_guid=guid,
            membership=Membership(row.membership or Membership.FULL),
            host=row.host,
            pci_slot=_read_text(row.profile, "pci_slot"),
            network_id=row.network_id,
        )
        unheld.append((row.id, held))
    return unheld


def _read_guid(details: str) -> int | None:
    try:
        return parse_guid(_read_text(details, "guid"))
    except ValueError:
        return None


def _read_text(document: str, name: str) -> str:
    try:
        value = json.loads(document or "{}").get(name)
    except (ValueError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""
