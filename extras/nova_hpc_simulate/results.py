# SPDX-License-Identifier: Apache-2.0
"""The files, the runs and the results of ``nova-hpc simulate``.

The module is apart from the command, because all of it needs the extra ``simulate``.
"""

from __future__ import annotations

import datetime
import gzip
import multiprocessing
import os
import platform
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from nova_hpc import conf
from nova_hpc.topology import roles
from nova_hpc.topology.model import InventoryError
from nova_hpc_common.output.printing import InertConsole
from nova_hpc_simulate import inputs, model
from nova_hpc_simulate.model import Layout, SimulatedMachine, SimulatedTask
from nova_hpc_simulate.policies import PolicyMaker
from nova_hpc_simulate.scenario import FigureSpread, ReplayOutcome, Scenario, Summary, play_scenario
from nova_hpc_tools.site import lstopo
from nova_hpc_tools.snapshot import SnapshotError
from nova_hpc_tools.snapshot import document as snapshot_document

BUILT_IN: Final = "dgx"
#: The longest unpacked file in bytes, as protection against decompression bombs.
MOST_BYTES: Final = 512 * 1024 * 1024

# --- files ---------------------------------------------------------------------


def read_simulation_inputs(
    node_file: Path | None, request_file: Path | None, snapshot_file: Path | None, role: str
) -> tuple[list[SimulatedMachine], list[SimulatedTask], tuple[str, ...]]:
    """Read the nodes and requests, and list the parts of a snapshot that are not simulated.

    :raises ValueError: a file cannot be used; the text names the file and the line.
    """
    machines: list[SimulatedMachine] = []
    tasks: list[SimulatedTask] = []
    left_out: tuple[str, ...] = ()
    if snapshot_file is not None:
        try:
            cloud = snapshot_document.read_snapshot_file(snapshot_file)
        except SnapshotError as error:
            raise ValueError(str(error)) from error
        machines = inputs.machines_of(cloud, role)
        tasks = inputs.tasks_of(cloud, role)
        left_out = inputs.not_simulated(cloud, role) if request_file is None else ()
        if not any(machine.gpus for machine in machines):
            raise ValueError(f"{snapshot_file}: no node has a device of role {role!r}")
        if request_file is None and not tasks:
            raise ValueError(
                f"{snapshot_file}: no flavor requests a device of role {role!r}; "
                + "".join(f"{remark}; " for remark in left_out)
                + "give the requests with --requests"
            )
    if node_file is not None:
        machines = inputs.read_machines(_read_input_lines(node_file), str(node_file))
    if request_file is not None:
        tasks = inputs.read_tasks(_read_input_lines(request_file), str(request_file))
    return machines, tasks, left_out


def _read_input_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{path} cannot be read: {reason}") from error
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} is longer than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8") from error
    return text.splitlines(keepends=True)


def with_topology(machines: list[SimulatedMachine], given: Sequence[str]) -> list[SimulatedMachine]:
    """Return the machines with the GPU places that ``--topology`` names.

    :raises ValueError: a topology cannot be used; the text names the option and the reason.
    """
    kinds = {machine.kind for machine in machines}
    for text in given:
        kind, equals, source = text.rpartition("=")
        if equals and kind not in kinds:
            raise ValueError(
                f"--topology {text}: no node of type {kind!r}; there are {', '.join(sorted(kinds))}"
            )
        if not equals and source != BUILT_IN:
            raise ValueError(f"--topology {text}: write {BUILT_IN}, or TYPE=FILE, or TYPE=dgx")
        chosen_machines = [machine for machine in machines if not equals or machine.kind == kind]
        try:
            if source == BUILT_IN:
                changed = model.all_dgx(chosen_machines)
            else:
                changed = model.with_layout(chosen_machines, {kind: _read_gpu_layout(Path(source))})
        except ValueError as error:
            raise ValueError(f"--topology {text}: {error}") from error
        by_name = {machine.name: machine for machine in changed}
        machines = [by_name.get(machine.name, machine) for machine in machines]
    return machines


def _read_gpu_layout(path: Path) -> Layout:
    try:
        node = lstopo.read_lstopo_file(path)
    except InventoryError as error:
        raise ValueError(str(error)) from error
    table = roles.parse_roles(conf.roles.DEFAULT_ROLES)
    places = tuple(
        function.location for function in node.functions if table.role_of(function, node) == "gpu"
    )
    if not places:
        raise ValueError(f"{path} has no GPU")
    return places


# --- runs ----------------------------------------------------------------------

_scenario: Scenario | None = None


def play_all(
    scenario: Scenario, chosen: Mapping[str, PolicyMaker], seeds: Sequence[int], jobs: int
) -> list[ReplayOutcome]:
    """Simulate every policy with every seed, in several processes.

    :param jobs: number of processes; 0 for all CPUs of this process. The outcomes do not
        depend on it.
    """
    wanted = [(name, seed) for name in chosen for seed in seeds]
    jobs = min(jobs or len(os.sched_getaffinity(0)), len(wanted))
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    console = InertConsole(file=sys.stderr)
    outcomes: dict[tuple[str, int], ReplayOutcome] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulations", total=len(wanted))
        for outcome in _play_in_processes(scenario, chosen, wanted, jobs):
            outcomes[outcome.policy, outcome.seed] = outcome
            progress.update(bar, advance=1, description=f"{outcome.policy}, seed {outcome.seed}")
    return [outcomes[pair] for pair in wanted]


def _play_in_processes(
    scenario: Scenario,
    chosen: Mapping[str, PolicyMaker],
    wanted: Sequence[tuple[str, int]],
    jobs: int,
) -> Iterator[ReplayOutcome]:
    if jobs == 1:
        for name, seed in wanted:
            yield play_scenario(scenario, name, seed, chosen[name])
        return
    pool = ProcessPoolExecutor(
        jobs,
        # Not fork: a lock that a thread holds at a fork would stay locked in the child.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_set_worker_scenario,
        initargs=(scenario,),
    )
    try:
        # The slowest policy is the last one of the list, so the pool gets it first.
        for future in as_completed(
            [
                pool.submit(_play_in_worker, name, seed, chosen[name])
                for name, seed in reversed(wanted)
            ]
        ):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _set_worker_scenario(scenario: Scenario) -> None:
    global _scenario
    _scenario = scenario


def _play_in_worker(name: str, seed: int, maker: PolicyMaker) -> ReplayOutcome:
    assert _scenario is not None
    return play_scenario(_scenario, name, seed, maker)


# --- results -------------------------------------------------------------------

#: Header of each figure of the table.
_HEADERS: Final = {
    "allocated": "allocated %",
    "allocated_at_100": "at 100 %",
    "fragmented": "fragmented %",
    "refused": "refused",
    "refused_several": "several GPUs",
    "refused_local": "together",
    "refused_gpus": "GPUs refused",
}


def print_result_table(
    scenario: Scenario, summaries: Sequence[Summary], seeds: int, left_out: Sequence[str] = ()
) -> None:
    """Print the table of results; wide lines are not folded.

    :param left_out: parts that are not simulated, one sentence each.
    """
    gpus = scenario.capacity // 1000
    print(
        f"{len(scenario.machines)} nodes, {gpus} free GPUs"
        + (f" before {scenario.added} nodes are added" if scenario.added else "")
        + (
            "; requests arrive and leave at their times"
            if scenario.demand is None
            else f"; requests for {scenario.demand} % of them"
        )
        + f"; {seeds} seed{'s' if seeds > 1 else ''}"
    )
    for remark in left_out:
        print(f"not simulated: {remark}")
    columns, rows = result_cells_of(summaries)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for number, header in enumerate(columns):
        grid.add_column(header, justify="right" if number else "left")
    for row in rows:
        grid.add_row(*row)
    console = InertConsole(file=sys.stdout)
    if not console.is_terminal:
        console = InertConsole(file=sys.stdout, width=200)
    console.print(grid)


def result_cells_of(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and rows of the table, without figures that are 0 everywhere."""
    shown = {
        name: header
        for name, header in _HEADERS.items()
        if any(summary.figures[name].most for summary in summaries)
    }
    rows = [
        [summary.policy, *(_format_figure(name, summary.figures[name]) for name in shown)]
        for summary in summaries
    ]
    return ["policy", *shown.values()], rows


def _format_figure(name: str, spread: FigureSpread) -> str:
    digits = 0 if name.startswith("refused") else 2
    text = f"{spread.mean:.{digits}f}"
    return f"{text} ±{spread.deviation:.{digits}f}" if spread.deviation else text


def describe_provenance() -> Mapping[str, Any]:
    """Return the date, machine and versions with which the figures were made."""
    import numpy

    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": f"{_processor_name()}, {len(os.sched_getaffinity(0))} CPUs",
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def _processor_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
