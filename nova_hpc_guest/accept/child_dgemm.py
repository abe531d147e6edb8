# SPDX-License-Identifier: Apache-2.0
"""A separate program that calls the BLAS of users' programs, and prints its speed.

``accept`` passes its text to Python, so a crash of the library does not end ``accept``. The first
argument is the library to load, the second the size of the matrices. It prints one JSON object:
GFLOP/s of a product of matrices, and the name of the library that computed it.
"""

import ctypes
import json
import os
import re
import sys
import time
from typing import Any

_TIMES = 3


def find_library() -> str:
    """Return the kind of BLAS that this process has loaded, such as ``openblas``."""
    kinds = ("openblas", "mkl", "blis", "atlas")
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
        paths = {line.split()[-1] for line in maps if "/" in line}
    files = [os.path.realpath(path).lower() for path in paths]
    for kind in kinds:
        if any(kind in path.rpartition("/")[2] for path in files):
            return kind
    if any(re.search(r"lib(?:c?blas)[^/]*\.so", path) for path in files):
        return "reference"
    return "other"


def measure_product(path: str, size: int) -> float:
    """Multiply square matrices three times with the BLAS at *path*; return the best GFLOP/s.

    :param size: rows of a matrix.
    """
    real: Any = ctypes.c_double
    call = ctypes.CDLL(path).cblas_dgemm
    call.argtypes = [
        *[ctypes.c_int] * 6,
        *[real, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int],
        *[real, ctypes.c_void_p, ctypes.c_int],
    ]
    call.restype = None
    first, second, result = ((real * (size * size))(*([1.5] * (size * size))) for _ in range(3))
    best = float("inf")
    for _ in range(_TIMES):
        start = time.perf_counter()
        call(101, 111, 111, size, size, size, 1.0, first, size, second, size, 0.0, result, size)
        best = min(best, time.perf_counter() - start)
    if abs(result[0] - 1.5 * 1.5 * size) > 1e-6:
        raise ValueError("the product is wrong")
    return 2 * size**3 / best / 1e9


if __name__ == "__main__":
    rate = measure_product(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"gflops": rate, "library": find_library()}))
