# SPDX-License-Identifier: Apache-2.0
"""The size of a segment: memory that servers of one group on one host share, in parts."""

from __future__ import annotations

from typing import Final

import attrs

MIB: Final = 1 << 20
#: The head of a segment, and before it the label that a guest's kernel reads; each takes one
#: page of the size in which the kernel maps the device.
PAGE: Final = 2 * MIB
FEWEST_PARTS, MOST_PARTS = 2, 16


@attrs.frozen(order=True)
class SegmentShape:
    """So many parts of so many MiB."""

    part_mib: int
    parts: int

    @property
    def part_bytes(self) -> int:
        """The memory that each server brings."""
        return self.part_mib * MIB

    @property
    def device_bytes(self) -> int:
        """What a guest can map: the head, and the parts."""
        return PAGE + self.parts * self.part_bytes

    @property
    def file_bytes(self) -> int:
        """All that it takes of the host: the label, the head, and the parts."""
        return PAGE + self.device_bytes


def count_parts(dedicated_cpus: int, vcpus: int) -> int:
    """How many servers of *vcpus* a host with so many dedicated CPUs may hold, within 2 and 16."""
    return min(MOST_PARTS, max(FEWEST_PARTS, dedicated_cpus // max(vcpus, 1)))
