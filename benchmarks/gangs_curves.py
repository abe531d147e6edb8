# SPDX-License-Identifier: Apache-2.0
"""Draws the measurements of gangs in ``RESULTS-gangs.rst``: ``python -m benchmarks.gangs_curves``.

The left part shows the processor time of one plan over the size of the fabric, for gangs of a
tenth of the hosts. The right part shows the planner's difference in each figure of quality with
the interval of the paired seeds, as a share of the other way's median.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from nova_hpc_simulate.figures import save_figure

_HERE: Final = Path(__file__).parent
RESULTS: Final = _HERE / "RESULTS-gangs.rst"
PICTURE: Final = _HERE.parent / "docs/source/contributor/gangs.svg"
_TABLE: Final = re.compile(r"^\.\. list-table:: (.+)\n((?:   .*\n|\n)*)", re.M)
_TIME: Final = re.compile(r"(?P<side>[^:]+): (?P<members>\d+) members, (?P<hosts>\d+) hosts")
_NOTE: Final = re.compile(r"planner (?P<mean>\S+) \(95 %: (?P<low>\S+) to (?P<high>\S+)\)")
_COLORS: Final = {"planner": "#1f6f8b", "first fit": "#b5651d", "Kueue": "#6a7f2a"}


def read_rows(page: str) -> Iterator[dict[str, Any]]:
    """Yield part, what, median and note of each row of the page with the tables."""
    for part, table in _TABLE.findall(page):
        for row in re.split(r"^   \* -", table, flags=re.M)[2:]:
            what, _, _, median, *_, note = map(str.strip, re.split(r"^     -", row, flags=re.M))
            yield {"part": part, "what": what, "median": float(median), "note": note}


def curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Side -> hosts and median seconds, for gangs of a tenth of the hosts."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        match = _TIME.match(row["what"])
        if match and int(match["members"]) * 10 == int(match["hosts"]):
            found.setdefault(match["side"], []).append((int(match["hosts"]), row["median"]))
    return found


def differences(rows: list[dict[str, Any]]) -> list[tuple[str, str, float, float, float]]:
    """The figure, the other way, and the difference in per cent with its interval."""
    found = []
    for row in rows:
        match = _NOTE.match(row["note"])
        if match and row["median"]:
            what, _, side = row["what"].rpartition(": ")
            policy = row["part"].rpartition(", ")[2]
            numbers = (100 * float(match[key]) / row["median"] for key in ("mean", "low", "high"))
            found.append((f"{what} ({policy})", side, *numbers))
    return found


def draw(rows: list[dict[str, Any]], picture: Path) -> None:
    """Write the picture."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [2, 3]})
    for side, points in curves(rows).items():
        left.loglog(*zip(*sorted(points), strict=True), "o-", color=_COLORS[side], label=side)
    left.axhline(1, color="#999", linewidth=0.8, linestyle="--")
    left.set_xlabel("hosts; the gang has a tenth as many members")
    left.set_ylabel("processor time of a plan [s]")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter("{x:g}")
    left.legend()
    left.grid(True, alpha=0.3)
    shown = differences(rows)
    names = list(dict.fromkeys(what for what, *_ in shown))
    for what, side, mean, low, high in shown:
        height = len(names) - names.index(what) + (0.15 if side == "Kueue" else -0.15)
        right.errorbar(
            mean, height, xerr=[[mean - low], [high - mean]], fmt="o", color=_COLORS[side],
            capsize=3, label=f"against {side}" if what == names[0] else None,
        )  # fmt: skip
    right.axvline(0, color="#999", linewidth=0.8)
    right.set_yticks([len(names) - index for index in range(len(names))], names)
    right.set_xlabel("the planner's difference [%], 95 % interval of paired seeds")
    right.legend()
    save_figure(figure, picture)


if __name__ == "__main__":
    draw(list(read_rows(RESULTS.read_text(encoding="utf-8"))), PICTURE)
