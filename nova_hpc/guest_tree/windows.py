# SPDX-License-Identifier: Apache-2.0
"""The 64-bit address space that devices need in a guest.

A device's memory is mapped into a window of the port above it, and this window lies
in the window of the switch above. The firmware aligns each window to its
largest BAR: after a GPU with BARs of 128 GiB and 32 MiB, the next GPU starts behind a
gap of almost 128 GiB. All windows must lie between the guest's memory
and the end of the address space of its CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.topology.model import Bar

GIB: Final = 1 << 30

#: Window that QEMU and the firmware provide by default.
DEFAULT_WINDOW: Final = 32 * GIB
#: Window of QEMU's machine type ``virt`` of Arm (VIRT_HIGH_PCIE_MMIO in hw/arm/virt.c).
ARM_WINDOW: Final = 512 * GIB
#: Width of physical addresses of QEMU's own CPU models.
DEFAULT_BITS: Final = 40
#: The widest physical address of x86.
MOST_BITS: Final = 52

#: The gap below 4 GiB displaces memory, which continues above 4 GiB.
_GAP: Final = 4 * GIB
#: Reserve for devices that are plugged later.
_SPARE: Final = 16 * GIB
_PORT: Final = 1 << 20  # granularity of a port's window


@attrs.frozen
class Span:
    """A block of address space: size and alignment, in bytes."""

    size: int = 0
    align: int = _PORT


def span_of_bars(bars: Iterable[Bar]) -> Span:
    """Return the part of its port's 64-bit window that one device takes.

    This window holds only prefetchable 64-bit BARs.
    """
    sizes = [bar.size for bar in bars if bar.wide and bar.prefetchable and bar.index <= 5]
    return pack_spans(Span(size, max(size, _PORT)) for size in sizes)


def pack_spans(spans: Iterable[Span]) -> Span:
    """Return one window for all *spans*, placed in the order of their alignment, largest first.

    An example: a GPU with BARs of 128 GiB and 32 MiB takes 128 GiB and 32 MiB, aligned to 128 GiB.
    A second one starts at the next multiple, so both take 384 GiB and 32 MiB.
    """
    end, align = 0, _PORT
    for span in sorted(spans, key=lambda span: -span.align):
        align = max(align, span.align)
        end = _round_up(end, span.align) + _round_up(span.size, _PORT)
    return Span(end, align)


def window_size_of(needed: Span) -> int:
    """Return the size of the guest's 64-bit window: a power of two with a reserve.

    Two such GPUs (384 GiB and 32 MiB) get a window of 512 GiB.
    """
    if needed.size <= DEFAULT_WINDOW - _SPARE:
        return DEFAULT_WINDOW
    return 1 << (needed.size + _SPARE - 1).bit_length()


def address_bits_of(memory: int, size: int) -> int:
    """Return the number of address bits that a guest needs.

    A guest with 64 GiB of memory and a window of 512 GiB needs 40 bits: the window starts
    at 512 GiB and ends at 1 TiB.

    :param memory: the most memory that the guest can have, in bytes.
    :param size: size of its 64-bit window in bytes; the window starts at a multiple of it.
    """
    return (_round_up(memory + _GAP, size) + size - 1).bit_length()


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
