# SPDX-License-Identifier: Apache-2.0
"""Draws how an answer's time grows with the cloud: ``python -m benchmarks.selection.growth``.

::

    python -m benchmarks.selection --hosts 100 1000 2000 --samples 5 5 5 --plainest --json FILE
    python -m benchmarks.selection.growth FILE PICTURE.svg

There is one panel for each question, those for one server first, by the number of devices: Nova
requests each device from Placement in a group of its own. A panel shows stock Nova and this
project. Below both it shows the time of only Placement for its simplest question, CPUs and memory
of any host. No client of Placement can be faster than that.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks.concurrency.stage import Stage
from benchmarks.selection.kept import PAIR, PLAINEST, Kept
from benchmarks.selection.side import Question
from nova_hpc_simulate.figures import save_figure

_COLORS: Final = {"stock": "#b5651d", "ours": "#1f6f8b", "plainest": "#777777"}
_NAMES: Final = {
    "stock": "stock Nova",
    "ours": "with this project",
    "plainest": "Placement alone, plainest question",
}
#: Panels side by side.
_COLUMNS: Final = 3
#: The question of the kept samples for Placement's simplest question: none of a user.
NOTHING: Final = Question(0)

#: Side -> hosts and median seconds.
Curves = Mapping[str, Sequence[tuple[int, float]]]


def measure_plainest(made: Stage, hosts: int, samples: int, kept: Kept) -> None:
    """Placement's own time for the hosts with two CPUs and a gigabyte, without a scheduler."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        f"{made.placement_url}/allocation_candidates?resources=VCPU:2,MEMORY_MB:1024",
        headers={"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"},
    )
    for _ in range(samples - len(kept.all(PLAINEST, hosts, NOTHING))):
        begin = time.perf_counter()
        with direct.open(request, timeout=600) as answer:
            answer.read()
        kept.add(PLAINEST, hosts, NOTHING, {"seconds": time.perf_counter() - begin})


def find_curves(results: Iterable[Mapping[str, Any]]) -> Mapping[str, Curves]:
    """Question -> its curves.

    :param results: lines of the file of samples, as objects.
    """
    seconds: dict[str, dict[str, dict[int, list[float]]]] = {}
    plainest: dict[int, list[float]] = {}
    for result in results:
        if result["kind"] == PLAINEST:
            plainest.setdefault(result["hosts"], []).append(result["seconds"])
        elif result["kind"] == PAIR:
            sides = seconds.setdefault(result["question"], {"stock": {}, "ours": {}})
            for side, by_hosts in sides.items():
                by_hosts.setdefault(result["hosts"], []).append(result[side]["seconds"])
    return {
        question: {
            side: [(hosts, statistics.median(found)) for hosts, found in sorted(by_hosts.items())]
            for side, by_hosts in (*sides.items(), ("plainest", plainest))
            if by_hosts
        }
        for question, sides in sorted(seconds.items(), key=lambda item: _place_of(item[0]))
    }


def _place_of(question: str) -> tuple[bool, int, str]:
    devices = sum(map(int, re.findall(r":(\d+)", question)))
    return "servers" in question, devices, question


def draw_growth(curves: Mapping[str, Curves], picture: Path) -> None:
    """Write the picture."""
    lines = -(-len(curves) // _COLUMNS)
    figure = Figure(figsize=(3.2 * _COLUMNS, 3.2 * lines + 0.4), layout="constrained")
    panels = figure.subplots(
        *(lines, _COLUMNS),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for panel in panels.flat[len(curves) :]:
        panel.set_axis_off()
    for panel, (question, sides) in zip(panels.flat, curves.items(), strict=False):
        for side, points in sides.items():
            panel.loglog(*zip(*points, strict=True), "o-", color=_COLORS[side], label=_NAMES[side])
        panel.set_title(question)
        panel.grid(True, alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("hosts")
        panel.xaxis.set_major_formatter("{x:g}")
    for line in panels:
        line[0].set_ylabel("seconds of one answer")
        line[0].yaxis.set_major_formatter("{x:g}")
    handles = panels[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=len(_NAMES), frameon=False)
    save_figure(figure, picture)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(argv)
    lines = options.samples.read_text().splitlines()
    draw_growth(find_curves(map(json.loads, lines)), options.picture)


if __name__ == "__main__":
    main()
