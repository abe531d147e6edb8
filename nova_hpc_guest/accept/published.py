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

#: Beginning of a benchmark's name -> the closest probe, and the differences.
_NEAREST: Final = (
    ("HPCC HPL", "hpl", "the same benchmark, at another size and on other CPUs"),
    ("LAMMPS LJ, 4 cores, 4 GPUs", "lammps_lj", "theirs ran on GPUs, ours on one CPU"),
    ("LAMMPS LJ, 32 cores", "lammps_lj", "theirs ran on GPUs and four servers, ours on one CPU"),
    ("SHOC PCIe host to device", "h2d", "SHOC's copy is nvbandwidth's today"),
    ("SHOC PCIe device to host", "d2h", "SHOC's copy is nvbandwidth's today"),
    ("SKaMPI latency, 4 B", "ib_lat", "theirs is of MPI, ours of an RDMA write without MPI"),
)
_REASONS: Final = (
    ("SPEC OMP", "SPEC's benchmarks are not free"),
    ("SHOC", "SHOC needs its own programs, built from source; levels are means of many"),
    ("GPU-LIBSVM", "needs its own program and data"),
    ("LAMMPS", "the input or the GPU package is not in the distribution"),
    ("HOOMD", "needs its own program, built from source"),
    ("SKaMPI", "of this size nothing is measured"),
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
        for start, probe, differs in _NEAREST:
            if benchmark == start or benchmark.startswith(start + ","):
                row = rows.get(probe)
                own, why = _take_own_ratio(row, base)
                why = f"{differs}; {why}" if why else differs
                break
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
        return None, "not measured here (--tier full, or no such device)"
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
