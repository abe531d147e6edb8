# SPDX-License-Identifier: Apache-2.0
"""Published ratios of virtual machines to real ones, beside the user's own ratios.

A ratio of 1 is native speed. Few published figures are comparable with today's measurements; the
reason is given with each.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .evidence import BESIDE, FILE, AcceptanceRow
from .facts import GuestFacts
from .sample import AcceptanceError

#: Benchmark -> the closest probe, of accept or of a sample file, and the differences.
_NEAREST: Final = {
    "HPCC HPL": ("hpcc_hpl", "hpcc.ini measures it, at another size and on other CPUs"),
    "SHOC PCIe host to device": ("h2d", "SHOC's copy is nvbandwidth's today"),
    "SHOC PCIe device to host": ("d2h", "SHOC's copy is nvbandwidth's today"),
    "LAMMPS Rhodopsin": (
        "lammps_gpu",
        "lammps-gpu.ini measures it, with bench/in.rhodo of LAMMPS and on another GPU",
    ),
    **{
        f"SKaMPI latency, {size} B": (
            f"osu_lat_{size}",
            "osu-sizes.ini measures it, with OSU's ping-pong in place of SKaMPI's",
        )
        for size in (4, 16, 64, 256, 1024, 4096)
    },
}
#: Remark of a figure that could be compared.
NOT_HERE: Final = "not measured here"
_FOUR_SERVERS: Final = "theirs ran over four servers, and a probe runs on one server or a pair"
_REASONS: Final = (
    ("SPEC OMP", "SPEC's benchmarks are not free"),
    ("SHOC", "SHOC needs its own programs, built from source; levels are means of many"),
    ("GPU-LIBSVM", "needs its own program and data"),
    ("LAMMPS, all runs", "a mean of several inputs and sizes"),
    ("LAMMPS", _FOUR_SERVERS),
    ("HOOMD, gain", "no ratio of virtual to native"),
    ("HOOMD", _FOUR_SERVERS),
    ("SKaMPI", "they give no figure"),
    ("rCUDA", "our GPU shares go over TCP, and no probe runs a program with and without one"),
    ("IVC", "no ratio of virtual to native; python -m benchmarks.shared_memory measures it"),
)


def load_published() -> list[dict[str, Any]]:
    """Load the published ratios of virtual machines to real ones, one JSON object each.

    :raises AcceptanceError: this copy of the command has none.
    """
    data = pkgutil.get_data(__package__ or "", "published.json")
    if data is None:
        raise AcceptanceError("the published figures are not part of this copy of the command")
    rows: list[dict[str, Any]] = json.loads(data.decode("utf-8"))["rows"]
    return rows


def compare_published(
    figures: Sequence[Mapping[str, Any]], rows: Mapping[str, AcceptanceRow], base: GuestFacts | None
) -> list[dict[str, Any]]:
    """Compare each published figure with the user's own ratio, if there is one, with remarks.

    :param base: facts of the baseline; None if the machine is its own baseline.
    :returns: one JSON object for each figure.
    """
    lines = []
    for figure in figures:
        benchmark = str(figure.get("benchmark"))
        own, why = None, _find_reason(benchmark)
        if benchmark in _NEAREST:
            probe, differs = _NEAREST[benchmark]
            own, why = _take_own_ratio(rows.get(probe), base)
            why = f"{differs}; {why}"
        lines.append(
            {
                **{key: figure.get(key) for key in ("source", "place", "hypervisor", "benchmark")},
                **{key: figure.get(key) for key in ("ratio", "quoted", "cause")},
                "own": own,
                "why": why,
            }
        )
    return lines


def _take_own_ratio(row: AcceptanceRow | None, base: GuestFacts | None) -> tuple[float | None, str]:
    if row is None:
        return None, NOT_HERE
    if row.against not in (BESIDE, FILE) or base is None:
        return None, f"measured here: {row.test:.4g} {row.unit}, and no baseline to divide it by"
    if base.hypervisor:
        return (
            row.ratio,
            "the baseline is a virtual machine as well: this is no loss to native speed",
        )
    return row.ratio, "guest against bare metal, as theirs"


def _find_reason(benchmark: str) -> str:
    for start, reason in _REASONS:
        if benchmark.startswith(start):
            return f"not comparable: {reason}"
    return "not comparable: no probe measures it"
