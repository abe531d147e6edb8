"""Runs simulations in parallel, with a progress bar on terminals."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from nova_hpc.cloud.simulate.scenario import Outcome, Scenario, play

_scenario: Scenario | None = None


def run(scenario: Scenario, names: Sequence[str], seeds: Sequence[int], jobs: int) -> list[Outcome]:
    """Every policy with every seed, by policy and then by seed.

    :param jobs: processes; 0: as many as CPUs may be used. The outcomes do not
        depend on it.
    """
    wanted = [(name, seed) for name in names for seed in seeds]
    jobs = min(jobs or len(os.sched_getaffinity(0)), len(wanted))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    console = Console(file=sys.stderr)
    found: dict[tuple[str, int], Outcome] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulations", total=len(wanted))
        for one in _outcomes(scenario, wanted, jobs):
            found[one.policy, one.seed] = one
            progress.update(bar, advance=1, description=f"{one.policy}, seed {one.seed}")
    return [found[pair] for pair in wanted]


def _outcomes(
    scenario: Scenario, wanted: Sequence[tuple[str, int]], jobs: int
) -> Iterator[Outcome]:
    if jobs == 1:
        for name, seed in wanted:
            yield play(scenario, name, seed)
        return
    pool = ProcessPoolExecutor(
        jobs,
        # What threads hold at a fork stays held for ever.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(scenario,),
    )
    try:
        # The slowest policy is the last of the list, and begins first.
        for future in as_completed([pool.submit(_play, *one) for one in reversed(wanted)]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(scenario: Scenario) -> None:
    global _scenario
    _scenario = scenario


def _play(name: str, seed: int) -> Outcome:
    assert _scenario is not None
    return play(_scenario, name, seed)
