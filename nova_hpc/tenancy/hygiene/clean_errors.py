# SPDX-License-Identifier: Apache-2.0
"""The errors of a check of a device's stage. It runs in service VMs, too: no imports."""


class UncleanError(Exception):
    """The device is not clean, or not what it has to be; the text says how."""


class UnableError(Exception):
    """The check cannot be made, and nothing is known of the device; the text says why."""
