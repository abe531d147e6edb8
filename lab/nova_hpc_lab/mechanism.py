# SPDX-License-Identifier: Apache-2.0
"""An ML2 mechanism driver that binds every port without an agent.

Only Neutron's server loads it, through the entry point ``neutron.ml2.mechanism_drivers`` named
``nova_hpc_lab``.
"""

from __future__ import annotations

from typing import Any, Final

from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api
from oslo_config import cfg

_SRIOV: Final = (portbindings.VNIC_DIRECT, portbindings.VNIC_MACVTAP)


class LabMechanismDriver(api.MechanismDriver):
    """Binds ports of a lab in which no network reaches beyond the node."""

    def initialize(self) -> None:
        """Prepare nothing: Neutron requires this method of a driver."""

    def bind_port(self, context: Any) -> None:
        """Bind to the first segment: a tap, or the virtual function that Nova chose."""
        kind = context.current[portbindings.VNIC_TYPE]
        for segment in context.segments_to_bind:
            if segment[api.PHYSICAL_NETWORK] in _partitioned():
                # Only the driver of partitions binds ports of these networks.
                continue
            if kind in _SRIOV:
                details = {"vlan": str(segment[api.SEGMENTATION_ID] or 0)}
                context.set_binding(
                    segment[api.ID], portbindings.VIF_TYPE_HW_VEB, details, status="ACTIVE"
                )
            else:
                context.set_binding(
                    segment[api.ID],
                    portbindings.VIF_TYPE_TAP,
                    {portbindings.CAP_PORT_FILTER: False},
                    status="ACTIVE",
                )
            return


def _partitioned() -> set[str]:
    """Return physical networks whose ports are members of partitions; empty without that driver."""
    return set(cfg.CONF.hpc_partitions.physical_networks) if "hpc_partitions" in cfg.CONF else set()
