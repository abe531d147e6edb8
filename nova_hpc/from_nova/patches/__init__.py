# SPDX-License-Identifier: Apache-2.0
"""Wraps of Nova's functions that nova-scheduler and nova-compute both need.

Nova decides on both sides, from the same records, where a guest's cells go. The same functions
are wrapped in both, so that both follow this project's choice. Nothing changes while Nova
serves a flavor without ``hpc:`` keys. Wraps only for nova-scheduler are in
:mod:`nova_hpc.from_nova.patches.scheduler`, which nova-compute does not import.
"""

from __future__ import annotations

import threading
from typing import Final

from nova_hpc.from_nova import gate
from nova_hpc.from_nova.gate import Patch
from nova_hpc.from_nova.patches import numa_cells, numa_fit, pci_pools

#: The wraps in both services.
BOTH: Final[tuple[Patch, ...]] = (numa_fit.FIT, numa_cells.NETWORKS, pci_pools.POOLS)

_LOCK: Final = threading.Lock()


def install_shared_patches() -> None:
    """Wrap the functions of Nova that scheduler and compute need; all or none (idempotent).

    :raises nova.exception.InvalidConfiguration: this Nova is not supported.
    """
    gate.check_release()
    for patch in BOTH:
        patch.function()
    with _LOCK:
        numa_fit.install_numa_fit_patch()
        pci_pools.install_pci_pools_patch()
