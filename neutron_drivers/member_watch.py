# SPDX-License-Identifier: Apache-2.0
"""Looks at all members: which ports wait for too long, and which memberships have to change.

An agent reports by itself that a port cannot be isolated. If the agent is dead or cut off, this
thread of ``neutron-rpc-server`` fails the port, so that Nova's build ends within a bound. Changed
tags and options hold from the next look on, and the look corrects changes that a port's own request
could not see. Several servers may look at the same time: a repeated action has the same result.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Final

from neutron_lib import context as neutron_context
from neutron_lib.plugins import directory
from oslo_log import log
from oslo_utils import timeutils

from neutron_drivers import (
    agent_endpoint,
    fabric_heartbeats,
    member_store,
    member_sync,
    owner_waits,
)
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.nova_servers import NovaServerLookup
from neutron_drivers.said_once import SaidOnce

LOG = log.getLogger(__name__)

#: Seconds between two looks.
PERIOD: Final = 2.0
#: Seconds that an agent has longer than ``member_timeout``: its reason is the better one.
GRACE: Final = 5.0


def fail_overdue_ports(settings: FabricSettings) -> int:
    """Set ports to ERROR whose membership has not come within the timeout.

    :returns: how many.
    """
    context = neutron_context.get_admin_context()
    limit = settings.member_timeout + GRACE
    since = timeutils.utcnow() - datetime.timedelta(seconds=limit)
    overdue = member_store.find_overdue_rows(context, since)
    if not overdue:
        return 0
    heartbeats = fabric_heartbeats.read_heartbeats(directory.get_plugin(), context)
    for _, port_id, fabric in overdue:
        alive = fabric_heartbeats.has_live_agent(heartbeats, fabric)
        said = "has not reported it" if alive else "is not alive (openstack network agent list)"
        reason = f"the fabric agent of {fabric} {said} for {limit:.0f} seconds"
        agent_endpoint.fail_port(context, port_id, reason)
    return len(overdue)


def look_at_members(settings: FabricSettings, wake: Callable[[str], None]) -> None:
    """Check all members once: orphaned rows, changed options, and deleted ports' servers.

    :param wake: has the agents of a fabric look at once.
    """
    orphans = member_store.withdraw_orphans(neutron_context.get_admin_context())
    if orphans:
        LOG.warning(
            "%d members are withdrawn: their ports were deleted without the driver", orphans
        )
    for fabric in sorted(member_sync.settle_all(neutron_context.get_admin_context(), settings)):
        wake(fabric)
    fail_overdue_ports(settings)


class MemberWatch:
    """A thread that checks all members of partitions every two seconds."""

    def __init__(
        self,
        read_settings: Callable[[], FabricSettings],
        wake: Callable[[str], None],
        nova: NovaServerLookup,
    ) -> None:
        self._read_settings = read_settings
        self._wake = wake
        self._nova = nova
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread; it ends with the process."""
        threading.Thread(target=self._run, name="hpc-member-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its present check."""
        self._stopped.set()

    def _run(self) -> None:
        asked, said = "", SaidOnce()
        while not self._stopped.wait(PERIOD):
            try:
                look_at_members(self._read_settings(), self._wake)
                # One a look: Nova may take seconds for its answer.
                asked = owner_waits.release_next_server(self._nova, asked, said)
            except Exception:
                # The database may be away: the next look will do.
                LOG.exception("Ports that wait for their membership were not looked at")
