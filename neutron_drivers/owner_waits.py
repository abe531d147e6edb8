# SPDX-License-Identifier: Apache-2.0
"""Waits until another network, or the server of a deleted port, has left a GUID."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from neutron_lib import context as neutron_context
from neutron_lib.db import api as db_api
from oslo_log import log

from neutron_drivers import guid_holders
from neutron_drivers.guid_holders import GuidOwner
from neutron_drivers.held_ports import FormerHolder
from neutron_drivers.nova_servers import NovaServerLookup
from neutron_drivers.port_rules import WantedMember
from neutron_drivers.said_once import SaidOnce

LOG = log.getLogger(__name__)

#: Seconds between two looks.
_PAUSE: Final = 0.25


def find_leaving_owner(place: WantedMember) -> GuidOwner | None:
    """Find the owner that holds a port's GUID now and may soon release it; None without one."""
    admin = neutron_context.get_admin_context()
    with db_api.CONTEXT_READER.using(admin):
        owner = guid_holders.find_guid_owner(admin.session, place)
    return None if owner is None or owner.is_firm else owner


def wait_for_last_owner(place: WantedMember, seconds: float, nova: NovaServerLookup) -> None:
    """Wait until the GUID is free: the last member is gone, and servers of deleted ports have left.

    Called outside of any transaction, since it queries Nova. The commit refuses the port if an
    owner stays.
    """
    deadline = time.monotonic() + seconds
    while (owner := find_leaving_owner(place)) is not None:
        complaint = _release_gone_servers(owner.formers, nova)
        if time.monotonic() >= deadline:
            if complaint:
                LOG.warning("A deleted port keeps its InfiniBand port: %s", complaint)
            return
        time.sleep(_PAUSE)


def release_next_server(nova: NovaServerLookup, after: str, said: SaidOnce) -> str:
    """Release the GUID of the next deleted port if its server has left. No bind needs to wait.

    The log names each deleted port that stays, so it is the operator's list of them.

    :param after: the port of the call before; "" for the first port.
    :returns: the port; "" if there is none behind *after*.
    """
    admin = neutron_context.get_admin_context()
    with db_api.CONTEXT_READER.using(admin):
        former = guid_holders.find_next_former(admin.session, after)
    if former is None:
        return ""
    complaint = _release_gone_servers((former,), nova)
    if said.is_new(former.port_id, complaint):
        LOG.warning("A deleted port keeps its InfiniBand port: %s", complaint)
    return former.port_id


def _release_gone_servers(formers: Iterable[FormerHolder], nova: NovaServerLookup) -> str:
    """Release the GUID from servers that are gone; why the first other one keeps it."""
    for former in formers:
        reason = nova.explain_hold(former.server_id, former.host)
        if reason:
            # One server is enough to keep the GUID: the others are checked later.
            names = f"port {former.port_id}, server {former.server_id}, host {former.host}"
            return f"{names} {former.pci_slot}: {reason}"
        _release_former(neutron_context.get_admin_context(), former.port_id)
    return ""


@db_api.retry_db_errors
def _release_former(context: Any, port_id: str) -> None:
    with db_api.CONTEXT_WRITER.using(context):
        guid_holders.release_former(context.session, port_id)
