# SPDX-License-Identifier: Apache-2.0
"""A separate program: an all-reduce over all ranks of mpirun, and its bus bandwidth.

``accept`` passes its text to Python. The first argument is the size of a message in bytes. Rank 0
prints one JSON object. The bus bandwidth is the rate at which each rank sends, 2(n-1)/n times the
size in the time of one all-reduce, as nccl-tests counts it: it does not depend on the number of
ranks.
"""

import array
import importlib
import json
import sys
from typing import Any

_LEAST_TIMES = 3
_SECONDS = 0.5


def measure_all_reduce(size: int) -> dict[str, Any]:
    """Sum numbers of *size* bytes over all ranks, at least three times, for at least 0.5 s.

    :raises ValueError: the sum is wrong.
    """
    MPI: Any = importlib.import_module("mpi4py.MPI")  # noqa: N806
    comm = MPI.COMM_WORLD
    ranks = comm.Get_size()
    given = array.array("f", [1.0]) * (size // 4)
    total = array.array("f", [0.0]) * (size // 4)
    # The first one sets up the connections.
    comm.Allreduce(given, total)
    begun, times, wall = MPI.Wtime(), 0, 0.0
    while times < _LEAST_TIMES or wall < _SECONDS:
        comm.Allreduce(given, total)
        times += 1
        # All ranks have to end after the same number.
        wall = comm.allreduce(MPI.Wtime() - begun, MPI.MAX)
    if {total[0], total[-1]} != {float(ranks)}:
        raise ValueError("the sum is wrong")
    rate = 2 * (ranks - 1) / ranks * size * times / wall / 1e9
    return {"busbw": rate, "ranks": ranks, "bytes": size, "rank": comm.Get_rank()}


if __name__ == "__main__":
    measured = measure_all_reduce(int(sys.argv[1]))
    if measured.pop("rank") == 0:
        print(json.dumps(measured))
