"""The frequency of the host's time-stamp counter.

The emulated processor shows the host's counter. A kernel that measures its
frequency against emulated timers is wrong by a factor when the host is busy,
and its clock then runs too fast or too slow; so it is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
import time
from collections.abc import Callable
from typing import Final

# rdtsc; shl rdx, 32; or rax, rdx; ret
_CODE: Final = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_SAMPLE: Final = 0.1
_TRIES: Final = 1000
#: ns between which both are read; a thousandth of the sample would be too coarse.
_NARROW: Final = 20_000


def frequency_khz() -> int | None:
    """Frequency in kHz, measured; None where it cannot be."""
    if platform.machine() != "x86_64":
        return None
    with contextlib.suppress(OSError, ValueError):
        return _measure()
    return None


def _measure() -> int | None:
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    with mmap.mmap(-1, mmap.PAGESIZE, prot=protection) as page:
        page.write(_CODE)
        start = ctypes.c_char.from_buffer(page)
        try:
            read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(start))
            first = _both(read)
            time.sleep(_SAMPLE)
            last = _both(read)
        finally:
            # The page cannot be given back while a pointer into it exists.
            del start
    if first is None or last is None:
        return None
    found = (last[1] - first[1]) * 1_000_000 // (last[0] - first[0])
    # Anything else is no counter that a clock could be made of.
    return found if 100_000 < found < 10_000_000 else None


def _both(read: Callable[[], int]) -> tuple[int, int] | None:
    """Time in ns and counter at the same moment; None on a machine too busy for that."""
    for _ in range(_TRIES):
        before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
        if after - before < _NARROW:
            return (before + after) // 2, ticks
    return None
