# SPDX-License-Identifier: Apache-2.0
"""Checks an AMD GPU by the files that amdgpu shows in sysfs.

It needs the driver amdgpu on the GPU. It was written from the kernel's documentation of amdgpu
(RAS, partitions); it is **untested on hardware**.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError

#: Keys of a pin -> file of the device.
PINS: Final = {
    "vbios": "vbios_version",
    "compute_partition": "current_compute_partition",
    "memory_partition": "current_memory_partition",
}
_UNCORRECTED: Final = re.compile(r"^ue:\s*(\d+)$", re.MULTILINE)


def check(device: Path, pins: Mapping[str, Any]) -> Any:
    """Check an AMD GPU's memory errors and firmware in sysfs; it has to be bound to amdgpu.

    See :data:`nova_hpc.tenancy.hygiene.clean_check.Check` for parameters and errors.
    """
    if not (device / "driver").exists() or (device / "driver").resolve().name != "amdgpu":
        raise UnableError("it is not bound to amdgpu")
    facts: dict[str, Any] = {
        name: _read_stripped_text(device / file) for name, file in PINS.items()
    }
    errors = {}
    for path in sorted(device.glob("ras/*_err_count")):
        match = _UNCORRECTED.search(_read_stripped_text(path) or "")
        if match is None:
            raise UnableError(f"{path.name} cannot be read")
        errors[path.name.removesuffix("_err_count")] = int(match[1])
    faults = [f"{count} uncorrected errors ({block})" for block, count in errors.items() if count]
    for name in PINS.keys() & pins.keys():
        if facts[name] != pins[name]:
            faults.append(f"{name} is {facts[name]}, pinned is {pins[name]}")
    if faults:
        raise UncleanError("; ".join(faults))
    return {**facts, "uncorrected": errors}


def _read_stripped_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
