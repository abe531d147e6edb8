# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc doctor`` looks at in a whole cloud: Nova's records, Placement's, the map's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.progress import track

from nova_hpc_tools.adopt.findings import Finding
from nova_hpc_tools.doctor import checks_records as doctor_records
from nova_hpc_tools.printing import InertConsole
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers


def look(config: Sequence[str], alone: bool = True) -> list[Finding]:
    """What is wrong, of two looks: what was only changing is no fault.

    :param config: --config-file=FILE and --config-dir=DIR of Nova's scheduler.
    :param alone: nothing else is looked at.
    :raises nova_hpc_tools.snapshot.SnapshotError: nothing can be read, and *alone*.
    """
    try:
        read = cloud_readers.records_reader(config)
        found = doctor_records.look(read(_shown))
        if not found:
            return found
        again = doctor_records.look(read(_shown))
    except SnapshotError as error:
        if alone:
            raise
        text = str(error).rstrip(".")
        return [
            Finding(
                "not-looked",
                f"Nobody has looked at the cloud: {text}.",
                "Run nova-hpc doctor --part cloud where nova-manage runs.",
            )
        ]
    return [each for each in again if each in found]


def _shown(devices: Sequence[Any]) -> Iterable[Any]:
    console = InertConsole(stderr=True)
    return track(
        devices,
        "Asking Placement",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
