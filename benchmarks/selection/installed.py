# SPDX-License-Identifier: Apache-2.0
"""Stock Nova and Placement as they are installed: no option of our documentation is set."""

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

#: Bytes that Placement may have: without a limit it takes the machine's.
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
    """Each question so many times, or once where no answer comes within so many seconds."""
    for question in questions:
        while _more(kept.all(INSTALLED, hosts, question), samples):
            # A Placement that is busy with an answer nobody waits for is ended with the crew.
            with stage.as_installed(made, MEMORY) as url:
                options = {**_DEFAULTS, ("placement", "endpoint_override"): url}
                with Crew(made, INSTALLED, options) as crew:
                    _ask(crew, hosts, question, samples, seconds, kept)


def _more(found: Sequence[Mapping[str, Any]], samples: int) -> bool:
    return not any(each["fault"] for each in found) and len(found) < samples


def _ask(
    crew: Crew, hosts: int, question: Question, samples: int, seconds: float, kept: Kept
) -> None:
    # The first answer fills what a scheduler remembers, as for the other sides.
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
    """Seconds of an answer, or why there is none."""
    faults = [each["fault"] for each in found if each["fault"]]
    if faults:
        return faults[0].split("\n")[0][:80]
    return f"{statistics.median(each['seconds'] for each in found):.3f}" if found else ""
