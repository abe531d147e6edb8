# SPDX-License-Identifier: Apache-2.0
"""Wakes the fabric agents. A lost message does no harm: they also poll."""

from __future__ import annotations

from typing import Any

import oslo_messaging
from neutron_lib import context as neutron_context
from neutron_lib import rpc as neutron_rpc
from oslo_log import log

from neutron_drivers.rpc_names import AGENT_TOPIC, AGENT_VERSION

LOG = log.getLogger(__name__)


class FabricAgentClient:
    """Sends RPC casts to all fabric agents of a fabric at once."""

    def __init__(self) -> None:
        # Made at first use, which is after the server's process has forked.
        self._client: Any = None

    def wake(self, fabric: str) -> None:
        """Make the agents of that fabric read the database at once."""
        try:
            if self._client is None:
                self._client = neutron_rpc.get_client(
                    oslo_messaging.Target(topic=AGENT_TOPIC, version=AGENT_VERSION)
                )
            # One try: the request must not wait for a broker that is away.
            call = self._client.prepare(fanout=True, retry=0)
            call.cast(neutron_context.get_admin_context_without_session(), "wake", fabric=fabric)
        except Exception as error:
            LOG.warning("The fabric agents of %s were not woken: %s", fabric, error)
