# SPDX-License-Identifier: Apache-2.0
"""The names under which Neutron's server and the fabric agents find each other.

Messages go through the exchange ``neutron``. The server's methods are served by
``neutron-rpc-server``; heartbeats are Neutron's own ``report_state``.
"""

from __future__ import annotations

from typing import Final

#: Topic and versions of the server's methods: ``read_desired`` and ``report_members``; since 1.1
#: ``report_members`` takes ``lost``.
SERVER_TOPIC: Final = "hpc-partitions"
SERVER_VERSION: Final = "1.0"
LOST_VERSION: Final = "1.1"
#: Topic and version of what all agents hear: ``wake``.
AGENT_TOPIC: Final = "hpc-fabric-agent"
AGENT_VERSION: Final = "1.0"

#: How the agent is called in ``openstack network agent list``.
AGENT_TYPE: Final = "InfiniBand fabric agent"
AGENT_BINARY: Final = "nova-hpc-fabric-agent"

#: The most rows that one ``report_members`` has: for each port Neutron needs 0.05 to 0.3 s,
#: and a call that takes longer than oslo.messaging waits is repeated in vain.
MOST_REPORTED: Final = 8
