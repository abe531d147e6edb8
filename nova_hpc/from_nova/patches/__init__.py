# SPDX-License-Identifier: Apache-2.0
"""Wraps of Nova's functions that nova-scheduler and nova-compute both need.

Where a guest's cells go is decided by Nova on both sides, from the same records. So
that both decide as this project has, the same functions are wrapped in both. Nothing
changes while Nova serves a flavor without ``hpc:`` keys. What nova-scheduler alone needs is
in :mod:`nova_hpc.from_nova.patches.scheduler`, which nova-compute does not import.
"""

from __future__ import annotations

import threading
from typing import Final

from nova_hpc.from_nova import gate
from nova_hpc.from_nova.gate import Patch
from nova_hpc.from_nova.patches import numa_cells, numa_fit, pci_pools

#: Those of both services.
BOTH: Final[tuple[Patch, ...]] = (numa_fit.FIT, numa_cells.NETWORKS, pci_pools.POOLS)

_LOCK: Final = threading.Lock()


def install_shared_patches() -> None:
    """Install what both services need, all or none (idempotent).

    :raises nova.exception.InvalidConfiguration: this Nova is not known.
    """
    gate.check_release()
    for patch in BOTH:
        patch.function()
    with _LOCK:
        numa_fit.install_numa_fit_patch()
        pci_pools.install_pci_pools_patch()
