# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: traffic between devices below one switch."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

OPTS: Final[list[cfg.Opt]] = [
    cfg.StrOpt(
        "peer_to_peer",
        choices=[
            ("keep", "Ports are left as the kernel has set them."),
            (
                "translated",
                "Ports of switches let translated requests pass directly between a GPU and an "
                "adapter; everything else is redirected as before.",
            ),
            (
                "direct",
                "Ports of switches redirect nothing, if no IOMMU groups become reachable by it.",
            ),
        ],
        default="keep",
        help="""
The path between GPUs and network adapters below one PCIe switch. If the switch's ports redirect
(ACS), as the kernel sets them to keep guests apart, the traffic goes up to the root complex and
down again.

With ``translated``, nova-compute sets direct translated peer-to-peer at the ports
of the switches between a GPU and an adapter. Both need Address Translation Services
(ATS), which on mlx5 adapters is an option of the firmware. IOMMU groups do not
depend on that bit. It trusts devices to translate honestly: a device that
does not could reach its neighbours below the switch.

With ``direct``, redirect is switched off at those ports. A port is not changed if devices in
different IOMMU groups could then reach each other. So ``direct`` has an effect only if all
devices below the switch are in one group already.

The ports are set when nova-compute starts and whenever one is found changed, and read back. Its
log names each port that could not be set; ``nova-hpc inventory`` adds the cure. A change back to
``keep`` takes effect at the next boot of the node.
""",
    ),
]
