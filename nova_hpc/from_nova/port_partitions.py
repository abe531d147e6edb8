# SPDX-License-Identifier: Apache-2.0
"""The partitions of a server's InfiniBand ports, from Nova's view of its ports.

``neutron_drivers.port_rules.describe_binding`` writes P_Key and service level into the
``binding:vif_details`` of a port; Nova keeps them in the ``details`` of its VIF, and the device in
its ``profile``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nova_hpc.guest_tree.guest_document import PortPartition
from nova_hpc.topology.model import try_normalise_address
from nova_hpc.wire.guest_terms import PKEY


def read_port_partitions(vifs: Iterable[Mapping[str, Any]]) -> dict[str, PortPartition]:
    """Return PCI address of a port's device on the host -> the InfiniBand partition of its network.

    A port that is in no partition, or whose details are invalid, is left out.

    :param vifs: Nova's view of the server's ports.
    """
    partitions = {}
    for vif in vifs:
        slot = (vif.get("profile") or {}).get("pci_slot")
        details = vif.get("details") or {}
        pkey = details.get("pkey")
        address = try_normalise_address(slot) if isinstance(slot, str) else None
        if address is None or not isinstance(pkey, str) or not PKEY.fullmatch(pkey):
            continue
        level = details.get("service_level")
        good = type(level) is int and 0 <= level < 16
        partitions[address] = PortPartition(pkey, level if good else None)
    return partitions
