# SPDX-License-Identifier: Apache-2.0
"""The words of one node of a cloud on its devices. Data only."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class NodeHealth:
    """The exceptions of one node."""

    host: str
    #: PCI address -> why the device is not offered to anybody.
    withheld: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: PCI address -> what is wrong with a device that a server has.
    in_use: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: PCI address -> state, and when it began (Unix time, seconds).
    states: Mapping[str, tuple[str, float]] = attrs.field(factory=dict, hash=False)
    #: What is wrong with the node as a whole.
    notes: tuple[str, ...] = ()
    #: Devices that did not fit into its document.
    left_out: int = 0

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and how many devices this does not name."""
        text = f"{self.left_out} more devices did not fit into the report of the node; nova-hpc "
        return self.notes + (f"{text}device list on the node lists them",) * bool(self.left_out)
