# SPDX-License-Identifier: Apache-2.0
"""Cleaners of a vendor, as its own distribution.

The directory of this file is what an installation puts into ``site-packages``: tests add it to
the module path, and nova-hpc finds the cleaners by their entry points.
"""

import os

from nova_hpc.tenancy.hygiene.cleaner import Cleaner, CleanError, Generic
from nova_hpc.tenancy.hygiene.own_reset import ADDRESS, ResetFile, ResetProgram

#: Tests have it in a directory of their own.
PROGRAM = os.environ.get("ACME_RESET", "/usr/sbin/acme-reset")


class AcmeCleaner(Generic):
    """Devices that are reset by a file of their own."""

    resets = (ResetFile("engines", "acme/reset_engines", "all\n"),)


class AcmeTool(Generic):
    """Devices that are reset by a program."""

    resets = (ResetProgram("tool", PROGRAM, ("--device", ADDRESS, "--wait")),)


class AcmeChoosy(Cleaner):
    """Devices of which only some have a reset of their own; it looks at them afterwards."""

    resets = (ResetFile("engines", "acme/reset_engines"), ResetFile("card", "acme/reset_card"))

    @classmethod
    def choose_reset(cls, function):
        """Only the second generation needs its own reset."""
        return cls.resets[1] if function.product_id == "2330" else None

    def clean(self, function):
        """Reset, and see that the firmware is idle."""
        self.tools.reset(function.address, self.choose_reset(function))
        state = self.tools.root / f"sys/bus/pci/devices/{function.address}/acme/state"
        if state.read_text().strip() != "idle":
            raise CleanError("its firmware is not idle after the reset")
