# SPDX-License-Identifier: Apache-2.0
"""A separate program that measures the duration of one reading of the time, in nanoseconds.

The first argument is ``real`` for the clock that programs use, ``coarse`` for the clock that
never reads the hardware. The best of several runs counts.
"""

import json
import sys
import time

_TIMES, _READINGS = 9, 4000
_COARSE = 6  # CLOCK_MONOTONIC_COARSE of Linux


def measure_clock(number: int) -> float:
    """Measure one reading of the clock with this number, in nanoseconds; return the best."""
    best = float("inf")
    for _ in range(_TIMES):
        start = time.perf_counter()
        for _ in range(_READINGS):
            time.clock_gettime(number)
        best = min(best, time.perf_counter() - start)
    return best / _READINGS * 1e9


if __name__ == "__main__":
    clock = _COARSE if sys.argv[1] == "coarse" else time.CLOCK_MONOTONIC
    print(json.dumps({"nanoseconds": measure_clock(clock)}))
