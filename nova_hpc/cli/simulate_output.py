"""What ``nova-hpc simulate`` shows: a table, curves, and where they come from."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from nova_hpc.cloud.simulate.scenario import Scenario, Spread, Summary

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


def table(scenario: Scenario, summaries: Sequence[Summary], seeds: int) -> None:
    """Print the table; wide lines are not folded."""
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
    shown = {
        name: header
        for name, header in _HEADERS.items()
        if any(one.figures[name].most for one in summaries)
    }
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("policy")
    for header in shown.values():
        grid.add_column(header, justify="right")
    for one in summaries:
        grid.add_row(one.policy, *(_cell(name, one.figures[name]) for name in shown))
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=200)
    console.print(grid)


def _cell(name: str, spread: Spread) -> str:
    digits = 0 if name.startswith("refused") else 2
    text = f"{spread.mean:.{digits}f}"
    return f"{text} ±{spread.deviation:.{digits}f}" if spread.deviation else text


def provenance() -> Mapping[str, Any]:
    """When and where the figures were made."""
    import numpy

    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} CPUs",
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def draw(scenario: Scenario, summaries: Sequence[Summary], path: Path) -> None:
    """Draw idle and fragmented GPUs against demand, as SVG.

    :raises OSError: the file cannot be written
    """
    import matplotlib

    # Text stays text, and the same figures give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nova-hpc"})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    styles = ["-", "--", ":", "-."]
    along = "time passed, %" if scenario.demand is None else "demand, % of the GPUs"
    for number, one in enumerate(summaries):
        style: dict[str, Any] = {
            "label": one.policy,
            "color": f"C{number % 10}",
            "linestyle": styles[number // 3 % len(styles)],
            "linewidth": 2.0 if one.policy == "nova-hpc" else 1.2,
        }
        at = list(one.curve)
        axes[0].plot(at, [100 - allocated for allocated, _ in one.curve.values()], **style)
        axes[1].plot(at, [fragmented for _, fragmented in one.curve.values()], **style)
    axes[0].set(xlabel=along, ylabel="GPUs idle, %")
    axes[1].set(xlabel=along, ylabel="GPUs fragmented, %")
    if scenario.demand is not None and scenario.demand > 80:
        axes[0].set(xlim=(75, scenario.demand), ylim=(0, 25))
    for each in axes:
        each.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "nova-hpc simulate"})
