# SPDX-License-Identifier: Apache-2.0
"""One look at a device in use: the few values that show a fault, and nothing that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

#: Names of the counters of :attr:`DeviceLook.counters`, which count since the boot.
FATAL: Final = "fatal"
NONFATAL: Final = "nonfatal"
#: Fatal errors of a virtual function's physical function: they end all functions behind its link.
PARENT_FATAL: Final = "parent_fatal"
#: Fatal errors of the port above the device's link, or above its physical function's. A device that
#: has lost its link cannot report that itself: the port does (PCI Express Base 5.0, 6.2.4.1).
PORT_FATAL: Final = "port_fatal"
#: Errors that the device's driver on the host reports, from an operator's exporter.
DRIVER: Final = "driver"


@attrs.frozen
class DeviceLook:
    """One device at one moment. A value of None, or a missing one, is unknown and no fault."""

    #: Whether the kernel has the device.
    present: bool | None = None
    #: Whether all its registers read as ones.
    silent: bool | None = None
    #: It saves power (D1 to D3): its registers and its link are not read.
    asleep: bool = False
    #: nova-compute, or an operator's command, resets it now.
    resetting: bool = False
    #: Its guest lacks it; two checks of the guests agree.
    left_guest: bool = False
    #: Vendor, device, revision, class and subsystem from its registers, as hex digits.
    ids: str | None = None
    #: Firmware of an adapter, or of a virtual function's adapter.
    firmware: str | None = None
    #: Lanes and GT/s of its link, or of its physical function's link. The speed of a device that
    #: lowers it to save power is not read.
    width: int | None = None
    speed: float | None = None
    #: Name of a counter -> its value.
    counters: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    #: Port of the adapter, as ``mlx5_0/1`` -> whether it is active.
    ports: Mapping[str, bool] = attrs.field(factory=dict, hash=False)

    @property
    def readable(self) -> bool:
        """Whether its registers contain data."""
        return bool(self.present) and self.silent is False and not self.asleep
