# SPDX-License-Identifier: Apache-2.0
"""The state of the stage in one process of nova-compute, beside the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.step import NodeView


@attrs.define
class StageWork:
    """State of the stage in this process that is not in the ledger: locks, flags and notes."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    running: bool = False
    again: bool = False
    #: Whether a second thread processes devices that their owners have reported.
    testing: bool = False
    #: End of the time in which devices are expected to become free, by time.monotonic().
    soon: float = 0.0
    #: Whether domains of a killed process that are not in the ledger were searched.
    swept: bool = False
    #: Whether the servers of the service's start have made their devices due.
    asked: bool = False
    #: Devices that this process is working on.
    mine: set[str] = attrs.field(factory=set)
    view: NodeView | None = None
    owners: DeviceOwners | None = None
    #: One sentence for each failure since the last call of :meth:`StageStep.withhold`.
    notes: list[str] = attrs.field(factory=list)


def spawn_stage_thread(attend: Callable[[], None]) -> None:
    """Start a thread of the stage."""
    threading.Thread(target=attend, name="hpc-stage", daemon=True).start()
