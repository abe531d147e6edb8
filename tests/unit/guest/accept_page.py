# SPDX-License-Identifier: Apache-2.0
"""The tables of the guide *Is it as fast as it should be?*, made from the code and the trials.

``python -m tests.unit.guest.accept_page`` writes them again.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.acceptance import whole
from benchmarks.acceptance.__main__ import TRIALS, format_table, read_trials
from nova_hpc_client.accept.link_rates import LINK_RATES
from nova_hpc_guest.accept.causes import CAUSES, CHANGES_NOTHING, CLOSES, COSTS_NOTHING
from nova_hpc_guest.accept.probes import PROBES, TOOL_OF
from nova_hpc_guest.accept.published import NOT_HERE, compare_published, load_published

FOLDER = Path(__file__).parents[3] / "docs/source/user/accept"
_ALONE = {
    "cpu=other": "another CPU",
    "cpus=sum": "so many times one CPU",
    "pages=large": "the same with large pages",
    "cell=other": "memory of another node",
    "blas=default": "the best BLAS there is",
    "clock=coarse": "the coarse clock",
    "btl=shared": "shared memory",
    "ceiling=rdma": "the rate of the port",
    "ceiling=pcie": "the promised link",
    None: "",
}
_PROVES = {
    CLOSES: "proved if more than half of the gap closes, taken back if less than a fifth",
    COSTS_NOTHING: "proved if it is as fast (0.9), taken back below 0.7",
    CHANGES_NOTHING: "proved if it is no faster (1.1), taken back above 1.3; without it no name",
}


def write_table(heading: tuple[str, ...], rows: list[tuple[str, ...]], widths: str) -> str:
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in [heading, *rows]:
        for number, cell in enumerate(row):
            mark = "   * - " if number == 0 else "     - "
            lines.append(f"{mark}{cell}".rstrip())
    return "\n".join(lines) + "\n"


def write_probes() -> str:
    rows = []
    for probe in PROBES:
        package = TOOL_OF[probe.tool].package
        floor = f"{probe.floor:g}"
        if probe.alone_floor is not None:
            floor += f" ({probe.alone_floor:g})"
        rows.append(
            (
                f"``{probe.name}``",
                f"{probe.says}, {probe.unit}",
                f"{probe.tool}" + (f" ({package})" if package else ""),
                probe.tier,
                floor,
                _ALONE[probe.alone],
            )
        )
    heading = ("Probe", "What", "Tool (package)", "Tier", "Floor", "Against itself")
    return write_table(heading, rows, "14 30 22 8 10 20")


def write_causes() -> str:
    parts = []
    for cause in CAUSES:
        symptom = ", ".join(f"``{name}``" for name in sorted(cause.symptoms))
        text = [
            f".. _{cause.anchor}:",
            "",
            f".. rubric:: {cause.name}",
            "",
            f":Symptom: {symptom}",
            f":Fact: {cause.fact}",
        ]
        if cause.setting:
            text.append(f":Experiment: ``{cause.setting}``; {_PROVES[cause.proves]}")
        cure = re.sub(r"(\w+_\*)", r"``\1``", cause.cure)
        text += [f":Cure: {cure}", ""]
        parts.append("\n".join(text))
    return "\n".join(parts)


def write_trials() -> str:
    return format_table(read_trials(TRIALS)) + "\n"


def _mark_comparable(remark: str) -> str:
    differs = remark.removesuffix(f"; {NOT_HERE}")
    differs = re.sub(r"(\S+\.ini|bench/\S+)", r"``\1``", differs)
    return remark if not remark.endswith(NOT_HERE) else f"comparable: {differs}"


def write_published() -> str:
    rows = []
    for line in compare_published(load_published(), {}, None):
        ratio = "" if line["ratio"] is None else f"{line['ratio']:.3f}"
        rows.append(
            (
                ratio,
                f"{line['benchmark']}".replace("*", ""),
                f"{line['hypervisor']}",
                f"{line['source']}, {line['place']}",
                _mark_comparable(line["why"]),
            )
        )
    return write_table(
        ("Ratio", "Benchmark", "Hypervisor", "Source", "Beside ours"), rows, "8 26 18 26 32"
    )


def write_links() -> str:
    rows = []
    for name, rate in LINK_RATES.items():
        least = "" if rate.least is None else f"{rate.least:g} ({rate.least / rate.most:.0%})"
        data = f"{float(rate.line):.8g} x {float(rate.encoding):.4f}"
        rows.append((f"{name:g}", rate.says, data, f"{rate.most:.2f}", least))
    heading = ("Gbit/s", "Adapter", "Line x encoding", "Allowed, GB/s", "Floor, GB/s")
    return write_table(heading, rows, "12 34 24 15 15")


PARTS = {
    "links.inc": write_links,
    "probes.inc": write_probes,
    "whole.inc": lambda: whole.format_table(whole.read_trials(whole.TRIALS)) + "\n",
    "causes.inc": write_causes,
    "trials.inc": write_trials,
    "published.inc": write_published,
}


def main() -> None:
    """Write the parts again."""
    for name, write in PARTS.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
