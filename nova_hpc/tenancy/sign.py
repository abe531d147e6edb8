# SPDX-License-Identifier: Apache-2.0
"""The signs of a device's faults: one set of terms for every check, step and state.

The code uses the sign. The reason beside it is text for people: any release may change its
wording, and no decision depends on it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs


class HealthSign(enum.Enum):
    """The kinds of faults, the worst first.

    The value is written to the ledger (``health.sign``) and to notifications. For
    the optional checks it is the value in ``[hpc]health_checks``. Ledgers of earlier
    releases have ``unfit`` in place of ``iommu``, ``unit``, ``driver``, ``unbound`` and ``reset``.
    """

    #: It is missing, or cannot be read.
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
    #: The kernel has no method to reset it.
    RESET = "reset"
    #: The host's present setup cannot prepare it.
    UNFIT = "unfit"
    #: All its registers read as ones.
    SILENT = "silent"
    #: It has lost settings that the kernel made.
    LOST = "lost"
    #: It differs from its baseline: identity, BARs, capabilities.
    CHANGED = "changed"
    #: It differs from its baseline together with many devices of its model.
    MODEL = "model"
    #: It may write to memory although it has no server.
    MASTER = "master"
    #: It has more uncorrected errors than are tolerated.
    ERRORS = "errors"
    #: Its link is narrow.
    LINK = "link"
    #: Its number of virtual functions differs from its baseline.
    FUNCTIONS = "functions"
    #: Its stage between two servers had no result.
    UNCHECKED = "unchecked"
    #: It could not be cleaned.
    FAILED = "failed"
    #: It was faulty lately and is tried again; see nova_hpc.tenancy.health_states.
    SUSPECT = "suspect"
    #: It is not ready for the next server, or it is unknown whether it is.
    UNREADY = "unready"
    #: The manager of the NVLink fabric reports a fault; see nova_hpc.tenancy.nvlink.step.
    NVLINK = "nvlink"
    #: No server may ever get it; see nova_hpc.tenancy.forbidden.
    NEVER = "never"
    #: It is unknown whether a server may ever get it.
    UNSURE = "unsure"


@attrs.frozen
class Symptom:
    """One fault of a device: the sign that the code uses, and the reason for people."""

    sign: HealthSign
    #: For operators: with addresses and drivers.
    reason: str
    #: Its difference from its baseline, in the ledger's form (nova_hpc.wire.announcements);
    #: "" if there is none, or none that an operator can accept for a model.
    change: str = ""

    @property
    def user(self) -> str:
        """The fault in the text for the server's user: no address, no host."""
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
