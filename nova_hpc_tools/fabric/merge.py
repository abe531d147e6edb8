# SPDX-License-Identifier: Apache-2.0
"""Several maps of the same hosts as one: switches from one source, NVLink domains from another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova_hpc.fabric.model import FabricLevel, FabricMap, Link, Place, Problem, Rail, Switch
from nova_hpc_tools.fabric.problems import Found, Reading


def merge_readings(readings: Sequence[Reading], name: str | None = None) -> Reading:
    """One reading of all of them; what two of them say differently is a problem, and unknown.

    :param readings: at least one.
    :param name: of the map where there are several; None: what the first one says.
    """
    if len(readings) == 1:
        return readings[0]
    found = Found()
    for reading in readings:
        # Lines are those of one file, which is named here.
        of = reading.fabric.source
        found.problems += [_of(problem, of) for problem in reading.problems]
        found.notes += [_of(note, of) for note in reading.notes]
    maps = [reading.fabric for reading in readings]
    said: dict[str, list[Place]] = {}
    for place in (each for fabric in maps for each in fabric.places):
        said.setdefault(place.host, []).append(place)
    # All at once: what two maps dispute, a third one does not settle.
    places = [_merge_places(each, found) for each in said.values()]
    switches: dict[str, Switch] = {}
    for switch in (each for fabric in maps for each in fabric.switches):
        if switches.setdefault(switch.name, switch) != switch:
            found.note(f"switch {switch.name!r} is not the same in two maps; the first one counts")
    links: dict[tuple[str, str], Link] = {}
    for link in (each for fabric in maps for each in fabric.links):
        links.setdefault((link.lower, link.upper), link)
    merged = FabricMap(
        places,
        switches.values(),
        links.values(),
        name or maps[0].name,
        ", ".join(fabric.source for fabric in maps if fabric.source),
    )
    for text in merged.contradictions():
        found.wrong(text)
    for text in merged.crossings():
        found.note(text)
    return found.reading(merged)


def _of(problem: Problem, source: str) -> Problem:
    return Problem(f"{source}: {problem}") if source and problem.line else problem


def _merge_places(places: Sequence[Place], found: Found) -> Place:
    """One host, as several maps place it."""
    host = places[0].host
    domains: dict[str, Any] = {}
    for level in FabricLevel:
        names = {name for place in places if (name := place.domain(level)) is not None}
        if len(names) > 1:
            said = " and ".join(repr(name) for name in sorted(names))
            found.wrong(
                f"host {host!r} is in the {level.noun(1)} {said}, by {len(places)} maps: which one "
                "is unknown"
            )
        domains[level.word] = names.pop() if len(names) == 1 else None
    rails: dict[str, Rail] = {}
    for rail in (each for place in places for each in place.rails):
        known = rails.get(rail.name)
        if known is None or (known.switch is None and rail.switch is not None):
            rails[rail.name] = rail
    return Place(host, rails=tuple(rails[name] for name in sorted(rails)), **domains)
