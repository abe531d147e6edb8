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
                "Ports of switches redirect nothing, where the IOMMU keeps nobody apart by it.",
            ),
        ],
        default="keep",
        help="""
How GPUs and network adapters below one PCIe switch reach each other. Where the
switch's ports redirect (ACS), as the kernel sets them to keep guests apart, their
traffic goes up to the root complex and down again.

With ``translated``, nova-compute sets direct translated peer-to-peer at the ports
of the switches between a GPU and an adapter. Both need Address Translation Services
(ATS), which on mlx5 adapters is an option of the firmware. IOMMU groups do not
depend on that bit. It trusts devices to translate honestly: a device that
does not could reach its neighbours below the switch.

With ``direct``, redirect is switched off at those ports. A port is left alone where
devices in different IOMMU groups could then reach each other, so it has an effect only
where all that is below the switch is in one group already.

It is set when nova-compute starts and whenever it is found changed, and read back.
What could not be set is in its log, and in ``nova-hpc inventory`` with the cure. Going
back to ``keep`` changes nothing: the next boot of the node does.
""",
    ),
]
