# SPDX-License-Identifier: Apache-2.0
"""One host, one request: the time in which the engine finds the optimum."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks import hosts, measure
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import DeviceGroup, FreeHost, Request, Want, WantedCell
from nova_hpc_common.level import AffinityPolicy, Level

PART = "one host"
#: A file below the folder that NOVA_HPC_TEST_DATA names.
DGX2 = "hwloc/nvidiaDGX2.xml"


def gpus(count: int, level: Level = Level.HOST) -> Request:
    """A request for *count* GPUs that share *level*."""
    return Request(
        wants=(Want("gpu", "gpu", count),),
        groups=(DeviceGroup({"gpu": count}),),
        level=level,
        policy=AffinityPolicy.REQUIRED,
    )


def pairs(count: int, cells: int) -> Request:
    """A request for *count* groups of one GPU and one virtual function, each below one switch."""
    return Request(
        wants=(Want("gpu", "gpu", count), Want("vf", "vf", count)),
        groups=tuple(DeviceGroup({"gpu": 1, "vf": 1}) for _ in range(count)),
        level=Level.SWITCH,
        policy=AffinityPolicy.REQUIRED,
        cells=tuple(WantedCell(index, 16, 64 * 1048576, 1048576) for index in range(cells)),
        on_cells=bool(cells),
    )


def run(samples: int) -> Iterator[measure.Row]:
    """The rows of one host.

    :param samples: number of calls for the median. Each call is on a host with other
        providers, so no cached result of an earlier call helps.
    """
    plain = hosts.eight_gpus()
    wide = hosts.eight_gpus(adapters=16, functions=16)
    cases: list[tuple[str, FreeHost, Request, float]] = [
        ("8 of 8 GPUs", plain, gpus(8), 2.0),
        ("2 of 8 GPUs, one switch", plain, gpus(2, Level.SWITCH), 2.0),
        ("4 GPUs with 4 VFs of 16 PFs x 16 VFs, in pairs", wide, pairs(4, 0), 2.0),
        ("the same on two guest cells", wide, pairs(4, 2), 2.0),
    ]
    folder = os.environ.get("NOVA_HPC_TEST_DATA")
    path = Path(folder, DGX2) if folder else None
    if path is not None and path.is_file():
        dgx2 = hosts.from_lstopo(path)
        count = len(dgx2.pools)
        cases += [
            (f"DGX-2: {wanted} of {count} GPUs", dgx2, gpus(wanted), 5.0)
            for wanted in (2, 8, 16)
            if wanted <= count
        ]
    for title, host, request, limit in cases:
        alike = [hosts.renamed(host, number) for number in range(samples)]
        assert choose_device_sets(request, alike[0]).sets, title

        def call(one: FreeHost, request: Request = request) -> object:
            return choose_device_sets(request, one)

        found = [value * 1000 for value in measure.repeat(call, alike)]
        yield measure.row(PART, title, "ms", found, f"under {limit:.0f} ms", limit)
    if path is None or not path.is_file():
        yield measure.Row(
            PART, "DGX-2", "ms", 0, 0, 0, 0, note=f"not measured: no {DGX2} in NOVA_HPC_TEST_DATA"
        )
