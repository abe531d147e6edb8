# SPDX-License-Identifier: Apache-2.0
"""Draws how an answer's time grows with the cloud: ``python -m benchmarks.selection.growth``.

::

    python -m benchmarks.selection --hosts 100 1000 2000 --samples 5 5 5 --plainest --json FILE
    python -m benchmarks.selection.growth FILE PICTURE.svg

One panel for each question: stock Nova and this project, and below both the time that Placement
alone takes for its plainest question, CPUs and memory of any host. Nobody who asks Placement
can be faster than that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.concurrency.stage import Stage
from benchmarks.selection.kept import PAIR, PLAINEST, Kept
from benchmarks.selection.side import Question

_COLORS: Final = {"stock": "#b5651d", "ours": "#1f6f8b", "plainest": "#999999"}
_NAMES: Final = {
    "stock": "stock Nova",
    "ours": "with this project",
    "plainest": "Placement alone, plainest question",
}
#: The kept samples of the plainest question are of no question of a user.
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

    :param results: lines of the file of samples.
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
        for question, sides in seconds.items()
    }


def draw_growth(curves: Mapping[str, Curves], picture: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("svg")
    # The same numbers give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(curves), figsize=(3.2 * len(curves), 3.8), sharey=True, squeeze=False
    )
    for panel, (question, sides) in zip(panels[0], curves.items(), strict=True):
        for side, points in sides.items():
            panel.loglog(*zip(*points, strict=True), "o-", color=_COLORS[side], label=_NAMES[side])
        panel.set_title(question)
        panel.set_xlabel("hosts")
        panel.grid(True, alpha=0.3)
    panels[0][0].set_ylabel("seconds of one answer")
    panels[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})


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
