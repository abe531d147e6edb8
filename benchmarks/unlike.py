# SPDX-License-Identifier: Apache-2.0
"""The bounds of a pass over hosts that all differ, and for requests that fit nowhere.

A cached result of one host never helps another here, as on a cloud after long use. The 99th
percentile is that of one call on one host. Times are processor times, so that other work on a
busy machine does not change a percentile.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence

import attrs

from benchmarks import hosts, measure
from benchmarks.engine import gpus, pairs
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import (
    DeviceGroup,
    DevicePool,
    DeviceSet,
    FreeHost,
    HostNode,
    Nvlink,
    Request,
    Want,
    WantedCell,
)
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc.placement.solver.costs import PassWork
from nova_hpc_common.level import AffinityPolicy, Level

PART = "one host of many that are unlike"
#: The highest 99th percentile of one host, in milliseconds.
GOAL = 20.0
#: Steps of a pass, so few that most of its hosts are rated without damage.
FEW_STEPS = 200_000

#: The flavors of such a cloud: GPUs with and without functions, at three levels.
SOLD = Profile(
    tuple(
        FlavorShape(
            {"gpu": count, "vf": count} if functions else {"gpu": count},
            level=level,
            cpus=8 * count,
            memory_kib=count * 32 * 1048576,
            page_kib=1048576,
        )
        for count in (1, 2, 4, 8)
        for functions in (False, True)
        for level in (Level.SWITCH, Level.NUMA, Level.HOST)
    )
)


def fragmented(seed: int) -> FreeHost:
    """Sixteen GPUs of which about half are free, and 16 adapters with up to 16 functions."""
    rng = random.Random(seed)
    pools = [
        DevicePool(
            f"g{n:02}", f"g{n:02}", hosts.place(n // 2, 8), 1, frozenset({"gpu"}), role="gpu"
        )
        for n in range(16)
        if rng.random() < 0.55
    ]
    pools += [
        DevicePool(
            f"a{n:02}",
            f"a{n:02}",
            hosts.place(n // 2, 8),
            rng.randint(0, 16),
            frozenset({"vf"}),
            role="vf",
        )
        for n in range(16)
    ]
    nodes = tuple(
        HostNode(n, n, rng.randint(8, 96), {1048576: rng.randint(64, 1024)}) for n in range(2)
    )
    return FreeHost(f"host{seed}", tuple(pools), nodes)


def linked(seed: int, nodes: int = 2) -> FreeHost:
    """Fourteen free GPUs of which every two are an NVLink set."""
    rng = random.Random(seed)
    pools = tuple(
        DevicePool(
            f"g{n:02}", f"g{n:02}", hosts.place(n // 2, 7, nodes), 1, frozenset({"gpu"}), role="gpu"
        )
        for n in range(14)
    )
    sets = tuple(frozenset(pair) for pair in itertools.combinations([pool.id for pool in pools], 2))
    found = tuple(
        HostNode(n, n, rng.randint(32, 96), {1048576: rng.randint(256, 1024)}) for n in range(nodes)
    )
    return FreeHost(f"host{seed}", pools, found, sets)


def two_each(groups: int, cells: int, nvlink: Nvlink) -> Request:
    """Groups of two GPUs on one NUMA node each."""
    return Request(
        wants=(Want("gpu", "gpu", 2 * groups),),
        groups=(DeviceGroup({"gpu": 2}),) * groups,
        level=Level.NUMA,
        policy=AffinityPolicy.REQUIRED,
        cells=tuple(WantedCell(number, 8, 32 * 1048576, 1048576) for number in range(cells)),
        nvlink=nvlink,
    )


def run(samples: int) -> Iterator[measure.Row]:
    """The rows.

    :param samples: number of hosts, with one call on each.
    """
    many = [fragmented(seed) for seed in range(samples)]
    several = attrs.evolve(gpus(4, Level.NUMA), policy=AffinityPolicy.PREFERRED)
    cases: list[tuple[str, Request, Sequence[FreeHost]]] = [
        ("16 GPUs, 256 VFs, fragmented: 4 pairs", pairs(4, 0), many),
        ("the same, on two guest cells", pairs(4, 2), many),
        ("16 GPUs, 256 VFs, fragmented: 4 GPUs, preferred", several, many),
        (
            "14 linked GPUs, 4 cells asked of 1 NUMA node, NVLink required",
            two_each(4, 4, Nvlink.REQUIRED),
            [linked(seed, 1) for seed in range(samples)],
        ),
        (
            "the same, NVLink preferred",
            two_each(4, 4, Nvlink.PREFERRED),
            [linked(seed, 1) for seed in range(samples)],
        ),
        (
            "14 linked GPUs, 4 pairs on 2 cells, NVLink required",
            two_each(4, 2, Nvlink.REQUIRED),
            [linked(seed) for seed in range(samples)],
        ),
    ]
    for title, request, found in cases:
        yield from _rows(title, _timed(request, found))
    request = pairs(4, 2)
    for title, steps in (("all steps", None), (f"{FEW_STEPS} steps", FEW_STEPS)):
        work = PassWork(1 << 62 if steps is None else steps)
        times = _timed(request, many, work)
        late = sum(not each.measured for each in _sets(request, many, steps))
        yield measure.row(
            PART,
            f"{len(many)} hosts in one pass with {title}: 4 pairs on two guest cells",
            "ms of CPU",
            [sum(times)],
            note=f"{late} hosts judged without damage",
        )


def _timed(
    request: Request, found: Sequence[FreeHost], work: PassWork | None = None
) -> list[float]:
    call: Callable[[FreeHost], object] = lambda one: choose_device_sets(request, one, 1, SOLD, work)  # noqa: E731
    # The first call does not count, and must use none of the steps in *work*.
    choose_device_sets(request, found[0], 1, SOLD)
    times = []
    gc.collect()
    gc.disable()
    try:
        for one in found:
            begin = time.process_time()
            call(one)
            times.append((time.process_time() - begin) * 1000)
    finally:
        gc.enable()
    return times


def _sets(request: Request, found: Sequence[FreeHost], steps: int | None) -> Iterator[DeviceSet]:
    work = PassWork(1 << 62 if steps is None else steps)
    for one in found:
        yield from choose_device_sets(request, one, 1, SOLD, work).sets


def _rows(title: str, times: Sequence[float]) -> Iterator[measure.Row]:
    yield measure.row(PART, title, "ms of CPU", times)
    late = sorted(times)[min(len(times) * 99 // 100, len(times) - 1)]
    yield measure.row(
        PART, f"{title}: 99th percentile", "ms of CPU", [late], f"under {GOAL:.0f} ms", GOAL
    )
