# SPDX-License-Identifier: Apache-2.0
"""The errors of a check of a device's stage. This module also runs in service VMs: no imports."""


class UncleanError(Exception):
    """The device is not clean, or differs from its required state; the text names the fault."""


class UnableError(Exception):
    """The check cannot run, and the device's state is unknown; the text gives the reason."""
