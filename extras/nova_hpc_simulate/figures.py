# SPDX-License-Identifier: Apache-2.0
"""Figures of matplotlib as pictures like all others: for light and dark, with texts.

The curves of a simulation are one such figure; benchmarks have more.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nova_hpc_common.output.canvas import format_svg, read_figure
from nova_hpc_simulate.scenario import Scenario, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG; its texts stay texts, and equal figures give equal files.

    :raises OSError: the file cannot be written
    """
    import matplotlib

    drawn = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nova-hpc"}):
        figure.savefig(drawn, format="svg", metadata=nothing)
    path.write_text(format_svg(read_figure(drawn.getvalue())), encoding="utf-8")


def draw_curves(scenario: Scenario, summaries: Sequence[Summary], path: Path) -> None:
    """Draw idle and fragmented GPUs against demand, as SVG.

    :raises OSError: the file cannot be written
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    styles = ["-", "--", ":", "-."]
    along = "time passed, %" if scenario.demand is None else "demand, % of the GPUs"
    for number, summary in enumerate(summaries):
        style: dict[str, Any] = {
            "label": summary.policy,
            "color": f"C{number % 10}",
            "linestyle": styles[number // 3 % len(styles)],
            "linewidth": 2.0 if summary.policy == "nova-hpc" else 1.2,
        }
        at = list(summary.curve)
        axes[0].plot(at, [100 - allocated for allocated, _ in summary.curve.values()], **style)
        axes[1].plot(at, [fragmented for _, fragmented in summary.curve.values()], **style)
    axes[0].set(xlabel=along, ylabel="GPUs idle, %")
    axes[1].set(xlabel=along, ylabel="GPUs fragmented, %")
    if scenario.demand is not None and scenario.demand > 80:
        axes[0].set(xlim=(75, scenario.demand), ylim=(0, 25))
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    save_figure(figure, path)
