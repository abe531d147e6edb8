# SPDX-License-Identifier: Apache-2.0
"""The report of one node of a cloud on its devices. Data only."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class NodeHealth:
    """The devices of one node that need attention. Healthy devices are not in it."""

    host: str
    #: PCI address -> the reason why the device is offered to no server.
    withheld: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: PCI address -> the fault of a device that a server has.
    in_use: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: PCI address -> state, and the time when it began (Unix time, seconds).
    states: Mapping[str, tuple[str, float]] = attrs.field(factory=dict, hash=False)
    #: Problems of the node as a whole.
    notes: tuple[str, ...] = ()
    #: The number of devices that did not fit into the node's report.
    left_out: int = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes of the node, and a sentence with the number of devices that are left out."""
        text = f"{self.left_out} more devices did not fit into the report of the node; nova-hpc "
        return self.notes + (f"{text}device list on the node lists them",) * bool(self.left_out)
