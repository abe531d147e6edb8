# SPDX-License-Identifier: Apache-2.0
"""The signs of a device's trouble: one vocabulary for every check, step and state.

A sign is what the program goes by; the reason beside it is for people, may be worded
anew in any release, and decides nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs


class HealthSign(enum.Enum):
    """The kinds of trouble, the worst first.

    The value is written to the ledger (``health.sign``), said in notifications, and for
    the optional checks it is the word of ``[hpc]health_checks``. Ledgers of earlier
    releases have ``unfit`` in place of ``iommu``, ``unit``, ``driver``, ``unbound`` and ``reset``.
    """

    #: It is not there, or cannot be read.
    ABSENT = "absent"
    #: An operator, or a check, has put it out of service.
    QUARANTINE = "quarantine"
    #: It is in no IOMMU group, or in one that is not viable.
    IOMMU = "iommu"
    #: It can only be given together with others.
    UNIT = "unit"
    #: It has to be on a VFIO driver, and is on another.
    DRIVER = "driver"
    #: It has to be on a VFIO driver, and is on none yet.
    UNBOUND = "unbound"
    #: The kernel knows no way to reset it.
    RESET = "reset"
    #: The host, as it is set up, cannot do what has to be done to it.
    UNFIT = "unfit"
    #: It answers with ones only.
    SILENT = "silent"
    #: It has lost what the kernel has set it to.
    LOST = "lost"
    #: It is not what its baseline says: identity, BARs, capabilities.
    CHANGED = "changed"
    #: The same, with many of its model at once.
    MODEL = "model"
    #: It may write to memory although nobody has it.
    MASTER = "master"
    #: More uncorrected errors than are tolerated.
    ERRORS = "errors"
    #: Its link is narrow.
    LINK = "link"
    #: Another number of virtual functions than its baseline says.
    FUNCTIONS = "functions"
    #: Its stage between two servers came to no answer.
    UNCHECKED = "unchecked"
    #: It could not be cleaned.
    FAILED = "failed"
    #: It was ill lately and is tried again; see nova_hpc.tenancy.health_states.
    SUSPECT = "suspect"
    #: It is not ready for the next server, or it is unknown whether it is.
    UNREADY = "unready"
    #: What the manager of the NVLink fabric says; see nova_hpc.tenancy.nvlink.step.
    NVLINK = "nvlink"
    #: No server may ever get it; see nova_hpc.tenancy.forbidden.
    NEVER = "never"
    #: It is unknown whether any server may ever get it.
    UNSURE = "unsure"


@attrs.frozen
class Symptom:
    """One thing that is wrong with a device."""

    sign: HealthSign
    #: For operators: with addresses and drivers.
    reason: str
    #: How it differs from its baseline, as the ledger has it (nova_hpc.wire.announcements);
    #: "": it does not, or in nothing that an operator can accept for a model.
    change: str = ""

    @property
    def user(self) -> str:
        """The same for the server's user: no address, no host."""
        return _USER.get(self.sign, "did not pass the check between two servers")


_USER: Final[Mapping[HealthSign, str]] = {
    HealthSign.ABSENT: "has disappeared or cannot be read",
    HealthSign.SILENT: "has disappeared or cannot be read",
    HealthSign.QUARANTINE: "is out of service",
    HealthSign.IOMMU: "is in an IOMMU group that is not viable",
    HealthSign.UNIT: "can only be given together with the other devices of its IOMMU group",
    HealthSign.DRIVER: "is in use by the host",
    HealthSign.UNBOUND: "has no driver on the host yet",
    HealthSign.LINK: "has a degraded link",
    HealthSign.RESET: "cannot be reset",
    HealthSign.SUSPECT: "is being checked",
    HealthSign.NVLINK: "cannot be linked by NVLink now",
    HealthSign.NEVER: "must not be given to any server",
    HealthSign.UNSURE: "must not be given to any server",
}
