# SPDX-License-Identifier: Apache-2.0
"""Stock Nova and Placement with their defaults, without the options of our documentation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks.concurrency import stage
from benchmarks.concurrency.stage import Stage
from benchmarks.selection.kept import INSTALLED, Kept
from benchmarks.selection.processes import Crew
from benchmarks.selection.side import Question

#: Memory limit of Placement in bytes: without a limit it uses all of the machine's.
MEMORY: Final = 6 << 30
#: Nova's defaults (nova/conf/scheduler.py and workarounds.py).
_DEFAULTS: Final[Mapping[tuple[str, str], object]] = {
    ("scheduler", "max_placement_results"): 1000,
    ("workarounds", "disable_fallback_pcpu_query"): False,
}
_LATE: Final = "not within"


def measure(
    made: Stage,
    hosts: int,
    questions: Sequence[Question],
    samples: int,
    seconds: float,
    kept: Kept,
) -> None:
    """Measure each question *samples* times, or once if no answer comes in time."""
    for question in questions:
        while _more(kept.all(INSTALLED, hosts, question), samples):
            # A Placement that still works on a late answer is ended with the crew.
            with stage.as_installed(made, MEMORY) as url:
                options = {**_DEFAULTS, ("placement", "endpoint_override"): url}
                with Crew(made, INSTALLED, options) as crew:
                    _ask(crew, hosts, question, samples, seconds, kept)


def _more(found: Sequence[Mapping[str, Any]], samples: int) -> bool:
    return not any(each["fault"] for each in found) and len(found) < samples


def _ask(
    crew: Crew, hosts: int, question: Question, samples: int, seconds: float, kept: Kept
) -> None:
    # The first answer fills the scheduler's caches, as on the other sides.
    for number in range(len(kept.all(INSTALLED, hosts, question)), samples + 1):
        try:
            result = attrs.asdict(crew.ask(question, seconds))
        except TimeoutError:
            result = {"seconds": seconds, "fault": f"{_LATE} {seconds:g} s"}
        if number or result["fault"]:
            kept.add(INSTALLED, hosts, question, result)
        if result["fault"]:
            return


def cell(found: Sequence[Mapping[str, Any]]) -> str:
    """Seconds of an answer, or the reason why there is none."""
    faults = [each["fault"] for each in found if each["fault"]]
    if faults:
        return faults[0].split("\n")[0][:80]
    return f"{statistics.median(each['seconds'] for each in found):.3f}" if found else ""
