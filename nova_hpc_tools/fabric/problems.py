# SPDX-License-Identifier: Apache-2.0
"""What a reader finds wrong with a source, and what it delivers all the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricMap, Problem

#: The most problems that are kept of one source; a file that was cut has thousands.
MOST: Final = 200


#: What is wrong with a map that names no host.
NO_HOST: Final = "the map names no host"


class FabricError(Exception):
    """Something that is no fabric map at all, or that cannot be done; one line each."""


@attrs.frozen
class Reading:
    """What a source says."""

    fabric: FabricMap
    #: What is damaged or contradicts itself: what it concerns is unknown in the map.
    problems: tuple[Problem, ...] = ()
    #: What the operator should know; the map is as good as without.
    notes: tuple[Problem, ...] = ()


@attrs.define
class Found:
    """Collects what is wrong while a source is read."""

    problems: list[Problem] = attrs.Factory(list)
    notes: list[Problem] = attrs.Factory(list)

    def wrong(self, text: str, line: int | None = None) -> None:
        """Something is damaged or contradicts itself."""
        self.problems.append(Problem(text, line))

    def note(self, text: str, line: int | None = None) -> None:
        """Something is worth a word."""
        self.notes.append(Problem(text, line))

    def reading(self, fabric: FabricMap) -> Reading:
        """All of it, in the order of the lines, with a bound on how much.

        A map without any host is a problem: taken for good, it would undo the last one.
        """
        if not fabric.places:
            self.wrong(NO_HOST)
        return Reading(fabric, tuple(_bounded(self.problems)), tuple(_bounded(self.notes)))


def _bounded(problems: Iterable[Problem]) -> Iterator[Problem]:
    found = sorted(dict.fromkeys(problems), key=lambda each: (each.line is None, each.line or 0))
    yield from found[:MOST]
    if len(found) > MOST:
        yield Problem(f"and {len(found) - MOST} more")
