# SPDX-License-Identifier: Apache-2.0
"""Hosts and requests that people know, for the examples."""

from __future__ import annotations

import attrs

from nova_hpc.placement.model import (
    DeviceGroup,
    DevicePool,
    FreeHost,
    HostNode,
    Request,
    Want,
    WantedCell,
)
from nova_hpc_common.level import AffinityPolicy, Level, Location


def spot(switch: int, per_node: int = 2) -> Location:
    """A place on a host with one PCIe root for each switch."""
    numa = switch // per_node
    return Location(numa=numa, socket=numa, root=f"root{switch}", switches=(f"sw{switch}",))


def gpus(*switches: int) -> tuple[DevicePool, ...]:
    """One GPU on each of these switches (a number may come several times)."""
    return tuple(
        DevicePool(f"gpu{n:02}", f"gpu{n:02}", spot(switch), 1, frozenset({"gpu"}))
        for n, switch in enumerate(switches)
    )


def adapters(*switches: int, functions: int = 16) -> tuple[DevicePool, ...]:
    """One physical function with virtual functions on each of these."""
    return tuple(
        DevicePool(f"pf{n:02}", f"pf{n:02}", spot(switch), functions, frozenset({"vf"}))
        for n, switch in enumerate(switches)
    )


def host(*pools: DevicePool, cpus: tuple[int, ...] = (32, 32)) -> FreeHost:
    nodes = tuple(HostNode(n, n, count, {2048: 1000}) for n, count in enumerate(cpus))
    return FreeHost("node7", pools, nodes)


def ask(
    level: Level = Level.SWITCH,
    policy: AffinityPolicy = AffinityPolicy.REQUIRED,
    groups: int = 1,
    cells: int = 0,
    cpus: int = 8,
    on_cells: bool = False,
    **counts: int,
) -> Request:
    return Request(
        wants=tuple(Want(name, name, count * groups) for name, count in counts.items()),
        groups=(DeviceGroup(counts),) * groups,
        level=level,
        policy=policy,
        cells=tuple(WantedCell(n, cpus, 100 * 2048, 2048) for n in range(cells)),
        on_cells=on_cells,
    )


#: two sockets, four switches, eight GPUs: 0 0 1 1 | 2 2 3 3
DGX = (*gpus(0, 0, 1, 1, 2, 2, 3, 3), *adapters(0, 1, 2, 3))


def unit(number: int, *pools: DevicePool) -> tuple[DevicePool, ...]:
    return tuple(attrs.evolve(pool, unit=f"unit{number}") for pool in pools)


BROKEN = [
    attrs.evolve(gpus(0)[0], free=-5),
    attrs.evolve(gpus(0)[0], id="neg", location=attrs.evolve(spot(0), numa=-1)),
    attrs.evolve(gpus(0)[0], id="lost", location=Location()),
]


QUADS = tuple(frozenset(f"gpu{n:02}" for n in four) for four in ((0, 1, 4, 5), (2, 3, 6, 7)))
