# SPDX-License-Identifier: Apache-2.0
"""The size of a segment: memory in parts that servers of one group on one host share."""

from __future__ import annotations

from typing import Final

import attrs

MIB: Final = 1 << 20
#: Bytes of one page of the size in which the kernel maps the device. The head of a segment takes
#: one, and the label before it, which a guest's kernel reads, takes another.
PAGE: Final = 2 * MIB
FEWEST_PARTS, MOST_PARTS = 2, 16


@attrs.frozen(order=True)
class SegmentShape:
    """The size of a shared-memory segment: *parts* parts of *part_mib* MiB each.

    Each server of the group writes to one part.
    """

    part_mib: int
    parts: int

    @property
    def part_bytes(self) -> int:
        """The size of one part in bytes: the memory that each server contributes."""
        return self.part_mib * MIB

    @property
    def device_bytes(self) -> int:
        """The size in bytes of the device that a guest maps: the head page and all parts."""
        return PAGE + self.parts * self.part_bytes

    @property
    def file_bytes(self) -> int:
        """The size in bytes of the segment's file on the host: the label, the head and all
        parts.
        """
        return PAGE + self.device_bytes


def count_parts(dedicated_cpus: int, vcpus: int) -> int:
    """Count the parts of a segment: servers of *vcpus* that fit on a host's dedicated CPUs.

    At least 2 and at most 16.
    """
    return min(MOST_PARTS, max(FEWEST_PARTS, dedicated_cpus // max(vcpus, 1)))
