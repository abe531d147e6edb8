# SPDX-License-Identifier: Apache-2.0
"""The problems of a source, and the map that its reader delivers in spite of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricMap, wrong_name
from nova_hpc_common.output.hostlist import HostListError, expand_hostlist
from nova_hpc_common.outside.name_lists import cut_after
from nova_hpc_tools.fabric.map_outline import find_crossed_leaves

#: The most problems that are kept of one source; a truncated file has thousands.
MOST: Final = 200


#: The problem of a map without hosts.
NO_HOST: Final = "the map names no host"


class FabricMapError(Exception):
    """A source is not a fabric map at all, or a request cannot be met. The text is one line."""


@attrs.frozen
class SourceProblem:
    """A fault in a map source, with its line, for the operator."""

    text: str
    #: Line of the source, from 1; None if the fault is not on a single line.
    line: int | None = None

    def __str__(self) -> str:
        return self.text if self.line is None else f"line {self.line}: {self.text}"


@attrs.frozen
class FabricReading:
    """The result of reading a map source: the map, problems and notes."""

    fabric: FabricMap
    #: Damages and contradictions; the part that they concern is unknown in the map.
    problems: tuple[SourceProblem, ...] = ()
    #: Hints for the operator, which change nothing in the map.
    notes: tuple[SourceProblem, ...] = ()


@attrs.define
class ProblemCollector:
    """Collector of the problems and notes that a reader finds in a source of a fabric map."""

    problems: list[SourceProblem] = attrs.Factory(list)
    notes: list[SourceProblem] = attrs.Factory(list)

    def wrong(self, text: str, line: int | None = None) -> None:
        """Add a problem: a damage or a contradiction."""
        self.problems.append(SourceProblem(text, line))

    def note(self, text: str, line: int | None = None) -> None:
        """Add a note about the source: a remark that is no problem."""
        self.notes.append(SourceProblem(text, line))

    def good_name(self, name: object, what: str, line: int | None) -> bool:
        """Whether *name* can be a name; if not, it is a problem.

        :param what: the noun for the problem, e.g. "a node".
        """
        wrong = wrong_name(name)
        if wrong is not None:
            self.wrong(f"{what}: {wrong}", line)
        return wrong is None

    def good_names(self, text: str, what: str, line: int) -> list[str]:
        """Return the names of a text like ``n[1-4],n7``; wrong ones are problems, and left out."""
        try:
            names = expand_hostlist(text)
        except HostListError as error:
            self.wrong(str(error), line)
            return []
        return [name for name in names if self.good_name(name, what, line)]

    def checked_reading(self, fabric: FabricMap) -> FabricReading:
        """Check the domains of a new map, and return it with all problems and notes.

        Contradictions become problems; NVLink domains across leaves become notes.
        """
        for text in fabric.contradictions():
            self.wrong(text)
        for text in find_crossed_leaves(fabric):
            self.note(text)
        return self.reading(fabric)

    def reading(self, fabric: FabricMap) -> FabricReading:
        """Return *fabric* with problems and notes by line, at most :data:`MOST` of each.

        A map without any host is a problem: if accepted, it would undo the last one.
        """
        if not fabric.places:
            self.wrong(NO_HOST)
        return FabricReading(
            fabric, tuple(_limit_problems(self.problems)), tuple(_limit_problems(self.notes))
        )


def _limit_problems(problems: Iterable[SourceProblem]) -> list[SourceProblem]:
    ordered_problems = sorted(
        dict.fromkeys(problems), key=lambda problem: (problem.line is None, problem.line or 0)
    )
    return cut_after(ordered_problems, MOST, lambda rest: SourceProblem(f"and {rest} more"))
