# SPDX-License-Identifier: Apache-2.0
"""The problems of a source, and what its reader delivers all the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricMap
from nova_hpc.outside.name_lists import cut_after
from nova_hpc_tools.fabric.map_outline import find_crossed_leaves

#: The most problems that are kept of one source; a file that was cut has thousands.
MOST: Final = 200


#: What is wrong with a map that names no host.
NO_HOST: Final = "the map names no host"


class FabricMapError(Exception):
    """Something that is no fabric map at all, or that cannot be done; one line each."""


@attrs.frozen
class SourceProblem:
    """A fault of a source, for the operator."""

    text: str
    #: Line of the source, from 1; None: no single line.
    line: int | None = None

    def __str__(self) -> str:
        return self.text if self.line is None else f"line {self.line}: {self.text}"


@attrs.frozen
class FabricReading:
    """The content of a source."""

    fabric: FabricMap
    #: What is damaged or contradicts itself: what it concerns is unknown in the map.
    problems: tuple[SourceProblem, ...] = ()
    #: What the operator should know; the map is as good as without.
    notes: tuple[SourceProblem, ...] = ()


@attrs.define
class ProblemCollector:
    """Collects what is wrong while a source is read."""

    problems: list[SourceProblem] = attrs.Factory(list)
    notes: list[SourceProblem] = attrs.Factory(list)

    def wrong(self, text: str, line: int | None = None) -> None:
        """Something is damaged or contradicts itself."""
        self.problems.append(SourceProblem(text, line))

    def note(self, text: str, line: int | None = None) -> None:
        """Something is worth a word."""
        self.notes.append(SourceProblem(text, line))

    def checked_reading(self, fabric: FabricMap) -> FabricReading:
        """The same of a map that was just made; also what contradicts itself in it."""
        for text in fabric.contradictions():
            self.wrong(text)
        for text in find_crossed_leaves(fabric):
            self.note(text)
        return self.reading(fabric)

    def reading(self, fabric: FabricMap) -> FabricReading:
        """All of it, in the order of the lines, with a bound on how much.

        A map without any host is a problem: taken for good, it would undo the last one.
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
