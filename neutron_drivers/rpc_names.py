# SPDX-License-Identifier: Apache-2.0
"""The RPC names of Neutron's server and the fabric agents.

Messages go through the exchange ``neutron``. ``neutron-rpc-server`` serves the server's methods;
heartbeats are Neutron's own ``report_state``.
"""

from __future__ import annotations

from typing import Final

#: Topic and versions of the server's methods: ``read_desired`` and ``report_members``; since 1.1
#: ``report_members`` takes ``lost``.
SERVER_TOPIC: Final = "hpc-partitions"
SERVER_VERSION: Final = "1.0"
LOST_VERSION: Final = "1.1"
#: Topic and version of the message to all agents: ``wake``.
AGENT_TOPIC: Final = "hpc-fabric-agent"
AGENT_VERSION: Final = "1.0"

#: The agent's type in ``openstack network agent list``.
AGENT_TYPE: Final = "InfiniBand fabric agent"
AGENT_BINARY: Final = "nova-hpc-fabric-agent"

#: The most rows of one ``report_members``. Neutron needs 0.05 to 0.3 s for each port, and a call
#: that takes longer than oslo.messaging's timeout is repeated in vain.
MOST_REPORTED: Final = 8
