# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer data for a server and its record, read for a service that is not root.

nova-compute reads the node itself, and reads no registers of ACS and ATS unless it is
root. The privileged helper reads the few registers that decide about one server's devices.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from oslo_log import log as logging

from nova_hpc.topology import peer_registers
from nova_hpc.topology.model import Node
from nova_hpc.topology.peer_wish import PeerWish
from virt_driver_patches import privileged
from virt_driver_patches.driver.reading import NodeReading

LOG = logging.getLogger(__name__)


def configured_wish_of(conf: Any) -> PeerWish:
    """Return the value of ``[hpc]peer_to_peer``, as a :class:`PeerWish`."""
    return PeerWish(conf.hpc.peer_to_peer)


def add_peer_registers(conf: Any, reading: NodeReading, addresses: Iterable[str]) -> Node:
    """Return the node with the registers that decide about peer-to-peer. Never raises.

    The helper is used only if this node needs it anyway: to clean devices, or to set
    the ports. If it does not answer, the paths remain unknown.
    """
    lacking = peer_registers.find_unread_functions(reading.node, addresses)
    helped = conf.hpc.clean_devices or configured_wish_of(conf) is not PeerWish.KEEP
    if not lacking or not helped or os.geteuid() == 0:
        return reading.node
    try:
        configs = privileged.read_configs_by_helper(lacking)
    except Exception as error:  # the helper has ended, or does not start
        LOG.warning(
            "Peer-to-peer of the server's devices is not known: the privileged helper of "
            "nova-compute does not answer (%s)",
            type(error).__name__,
        )
        return reading.node
    return peer_registers.with_registers(reading.node, configs)
