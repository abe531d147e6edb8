# SPDX-License-Identifier: Apache-2.0
"""Checks the firmware of an adapter by the files that its driver shows in sysfs.

A virtual function has the firmware of its physical function, which stays with the host's
driver. So in mode ``host`` this check also works for virtual functions. Drivers do not show
settings in the adapter's NVRAM; an operator's program can read them with mstconfig. It was written
from the drivers' documentation; it is **untested on hardware**.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError
from nova_hpc.topology.rdma_types import find_smi_devices

#: Keys of a pin -> file of the device's RDMA device.
PINS: Final = {"firmware": "fw_ver", "board": "board_id"}


def check(device: Path, pins: Mapping[str, Any]) -> Any:
    """Compare a network adapter's firmware in sysfs with the pinned version; return the values.

    See :data:`nova_hpc.tenancy.hygiene.clean_check.Check` for parameters and errors.
    """
    place = device / "physfn" if (device / "physfn").exists() else device
    folders = sorted(place.glob("infiniband/*"))
    rdma_devices = [path for path in folders if not find_smi_devices({path.name: ()})]
    if not rdma_devices:
        raise UnableError("no driver shows its firmware: it has no RDMA device on this host")
    facts = {name: _read_text_or_none(rdma_devices[0] / file) for name, file in PINS.items()}
    wrong = [
        f"{name} is {facts[name]}, pinned is {pins[name]}"
        for name in PINS
        if name in pins and facts[name] != pins[name]
    ]
    if wrong:
        raise UncleanError("; ".join(wrong))
    return facts


def _read_text_or_none(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
