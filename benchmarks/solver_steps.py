# SPDX-License-Identifier: Apache-2.0
"""How many steps the exact search takes, and what is left where they are too many.

::

    python -m benchmarks.solver_steps [--requests 1000] [--seed 1]

The requests and hosts are random. A host has two sockets and up to 8 switches, with up to 32
GPUs and 16 adapters of up to 16 virtual functions. A request has up to 4 aliases, and some of
them share devices.
If the search exceeds its bound, it is repeated without the damage of a profile, and
the bounded choice answers instead; the table has the steps and times of all three.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import time

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
from nova_hpc.placement.profile import DEFAULT, HostProfile
from nova_hpc.placement.solver import greedy
from nova_hpc.placement.solver.costs import MAX_WORK, TooMuchError
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import survey_host
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.solve import Solver
from nova_hpc.placement.solver.spanning import LinkedSets, read_linked_sets
from nova_hpc_common.level import AffinityPolicy, Level, Location


def case(rng: random.Random) -> tuple[Request, FreeHost]:
    """A large request and a host, drawn at random."""
    aliases = [f"alias{number}" for number in range(rng.choice([1, 2, 2, 3, 3, 4]))]
    nodes, switches = rng.choice([2, 4]), rng.choice([2, 4, 8])
    pools: list[DevicePool] = []
    for switch in range(switches):
        numa = switch * nodes // switches
        place = Location(numa, numa * 2 // nodes, f"pci0000:{switch:02x}", (f"s{switch}",))
        frees = [1] * rng.choice([1, 2, 2, 4])
        frees += [rng.choice([1, 4, 8, 16]) for _ in range(rng.choice([0, 1, 1, 2]))]
        for number, free in enumerate(frees):
            gpu = number < 4 and free == 1
            others = aliases[1:] or aliases
            serves = {aliases[0]} if gpu else set(rng.sample(others, rng.randint(1, len(others))))
            if rng.random() < 0.15:
                serves.add(rng.choice(aliases))
            pools.append(
                DevicePool(
                    id=f"{switch}/{number}",
                    name=f"{switch}/{number}",
                    location=place,
                    free=free,
                    serves=frozenset(serves),
                    role="gpu" if gpu else rng.choice(["vf", "nic"]),
                    unit=f"unit{rng.randrange(6)}" if rng.random() < 0.05 else None,
                )
            )
    groups = rng.choice([1, 1, 2, 4, 8])
    counts = {alias: rng.choice([1, 1, 2, 4]) for alias in aliases}
    request = Request(
        wants=tuple(Want(alias, alias, count * groups) for alias, count in counts.items()),
        groups=tuple(DeviceGroup(counts) for _ in range(groups)),
        level=rng.choice(list(Level)),
        policy=rng.choice(list(AffinityPolicy)),
        cells=tuple(
            WantedCell(number, 4) for number in range(min(rng.choice([0, 1, 2, 2, 4]), nodes))
        ),
        on_cells=rng.random() < 0.3,
    )
    numa_nodes = tuple(HostNode(number, number * 2 // nodes, 32) for number in range(nodes))
    return request, FreeHost("host", tuple(pools), numa_nodes)


def without_damage(problem: SearchProblem) -> SearchProblem:
    """The same problem, but without damage by any choice."""
    return attrs.evolve(
        problem,
        profile=HostProfile((), (), False, 0),
        label=dict.fromkeys(problem.label, -1),
        label_of=(-1,) * len(problem.label_of),
        tracked=(),
        host_limits=(None, None),
        open=((), ()),
    )


@attrs.frozen
class Run:
    """One search."""

    within: bool  # its bound
    steps: int
    seconds: float


def search(problem: SearchProblem, linked: LinkedSets) -> Run:
    """The exact search, up to its bound."""
    solver = Solver(problem, linked)
    start = time.perf_counter()
    with contextlib.suppress(TooMuchError):
        solver.best()
    taken = time.perf_counter() - start
    return Run(solver.budget.left >= 0, MAX_WORK - solver.budget.left, taken)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    runs, plain, bounded = [], [], []
    for _ in range(args.requests):
        request, host = case(rng)
        demand = Demand.of(request)
        site = survey_host(demand, host)
        linked = read_linked_sets(request, demand, site, host)
        problem = SearchProblem.of(request, demand, site, DEFAULT)
        runs.append(search(problem, linked))
        if runs[-1].within:
            continue
        plain.append(search(without_damage(problem), linked))
        start = time.perf_counter()
        found = greedy.solve_greedily(Solver(problem, linked), 1)
        bounded.append((time.perf_counter() - start, bool(found)))
    steps = sorted(run.steps for run in runs)
    print(f"{len(runs)} requests: median {steps[len(steps) // 2]} steps")
    print(f"beyond {MAX_WORK} steps: {len(plain)}")
    if not plain:
        return
    print(f"of these within the bound without damage: {sum(run.within for run in plain)}")
    for name, times in (
        ("exact, until given up", [run.seconds for run in runs if not run.within]),
        ("exact without damage", [run.seconds for run in plain]),
        ("bounded choice", [seconds for seconds, _ in bounded]),
    ):
        print(f"{name}: median {statistics.median(times) * 1000:.1f} ms, most {max(times):.2f} s")
    print(f"answered by the bounded choice: {sum(found for _, found in bounded)}")


if __name__ == "__main__":
    main()
