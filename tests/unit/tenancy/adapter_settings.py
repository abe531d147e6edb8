# SPDX-License-Identifier: Apache-2.0
"""All settings of a virtual function, in short."""

from typing import Any

import attrs

from nova_hpc.tenancy.adapters.settings import LinkState


@attrs.frozen
class EthernetSettings:
    """On Ethernet (also RoCE). Rates in Mb/s; 0: none."""

    mac: str
    vlan: int = 0
    qos: int = 0
    spoof_check: bool = True
    trust: bool = False
    min_rate: int = 0
    max_rate: int = 0
    link_state: LinkState = LinkState.AUTO

    @property
    def values(self) -> dict[str, Any]:
        """By their names."""
        return {
            "mac": self.mac,
            "vlan": (self.vlan, self.qos),
            "spoof_check": self.spoof_check,
            "trust": self.trust,
            "rate": (self.min_rate, self.max_rate),
            "link_state": self.link_state,
        }


@attrs.frozen
class InfinibandSettings:
    """On InfiniBand."""

    node_guid: int
    port_guid: int
    link_state: LinkState = LinkState.AUTO

    @property
    def values(self) -> dict[str, Any]:
        """By their names."""
        return attrs.asdict(self)
