# SPDX-License-Identifier: Apache-2.0
"""The roles whose storage devices are erased between two servers, from group ``[hpc]``."""

from __future__ import annotations

from typing import Any, Final

from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.stage.device_stage import StageMode
from nova_hpc.tenancy.stage.host import ERASE
from nova_hpc.tenancy.storage import Erasers

#: The options of group ``[hpc]`` that matter.
OPTIONS: Final = ("clean_devices", "cleaners", "clean_stage", "clean_checks", "clean_drivers")
#: Class of NVMe controllers.
_NVME: Final = "0108"


def find_erasers(hpc: Any) -> Erasers:
    """Find the roles with a cleaner, or a check of their stage, that proves an erase.

    The check ``nvme`` counts in a service VM, and on the host with the driver ``nvme``.
    Without ``[hpc]clean_devices`` no role has one.

    :param hpc: group ``[hpc]`` of the configuration.
    """
    if not hpc.clean_devices:
        return Erasers()
    of_role = cleaner.find_erasing_cleaners(hpc.cleaners)
    for role, mode in hpc.clean_stage.items():
        checks = hpc.clean_checks.get(role, "").split("+")
        # The image of a service VM contains the driver; without it the check fails there.
        has_driver = mode == StageMode.SERVICE_VM.value or (
            mode == StageMode.HOST.value and hpc.clean_drivers.get(role) == ERASE
        )
        if ERASE in checks and has_driver:
            of_role[role] = (*of_role.get(role, ()), _NVME)
    return Erasers(of_role)
