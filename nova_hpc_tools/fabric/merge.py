# SPDX-License-Identifier: Apache-2.0
"""Several maps of the same hosts as one: switches from one source, NVLink domains from another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova_hpc.fabric.model import (
    FabricLevel,
    FabricLink,
    FabricMap,
    FabricPlace,
    FabricSwitch,
    Rail,
)
from nova_hpc_tools.fabric.problems import FabricReading, ProblemCollector, SourceProblem


def merge_readings(readings: Sequence[FabricReading], name: str | None = None) -> FabricReading:
    """Merge several readings into one map. A domain on which they differ is unknown, and a problem.

    :param readings: at least one.
    :param name: of the map if there are several readings; None for the first one's name.
    """
    if len(readings) == 1:
        return readings[0]
    collector = ProblemCollector()
    for reading in readings:
        # A line number belongs to one file, so the problem needs the file's name.
        of = reading.fabric.source
        collector.problems += [_prefix_with_source(problem, of) for problem in reading.problems]
        collector.notes += [_prefix_with_source(note, of) for note in reading.notes]
    maps = [reading.fabric for reading in readings]
    places_by_host: dict[str, list[FabricPlace]] = {}
    for place in (place for fabric in maps for place in fabric.places):
        places_by_host.setdefault(place.host, []).append(place)
    # All places of a host at once: a third map must not settle a dispute of two.
    places = [_merge_places(host_places, collector) for host_places in places_by_host.values()]
    switches: dict[str, FabricSwitch] = {}
    for switch in (switch for fabric in maps for switch in fabric.switches):
        if switches.setdefault(switch.name, switch) != switch:
            collector.note(
                f"switch {switch.name!r} is not the same in two maps; the first one counts"
            )
    links: dict[tuple[str, str], FabricLink] = {}
    for link in (link for fabric in maps for link in fabric.links):
        links.setdefault((link.lower, link.upper), link)
    merged = FabricMap(
        places,
        switches.values(),
        links.values(),
        name or maps[0].name,
        ", ".join(fabric.source for fabric in maps if fabric.source),
    )
    return collector.checked_reading(merged)


def _prefix_with_source(problem: SourceProblem, source: str) -> SourceProblem:
    return SourceProblem(f"{source}: {problem}") if source and problem.line else problem


def _merge_places(places: Sequence[FabricPlace], collector: ProblemCollector) -> FabricPlace:
    """Merge the domains and rails that several maps have for one host; note contradictions."""
    host = places[0].host
    domains: dict[str, Any] = {}
    for level in FabricLevel:
        names = {name for place in places if (name := place.domain(level)) is not None}
        if len(names) > 1:
            text = " and ".join(repr(name) for name in sorted(names))
            collector.wrong(
                f"host {host!r} is in the {level.noun(1)} {text}, by {len(places)} maps: which one "
                "is unknown"
            )
        domains[level.word] = names.pop() if len(names) == 1 else None
    rails: dict[str, Rail] = {}
    for rail in (rail for place in places for rail in place.rails):
        previous = rails.get(rail.name)
        if previous is None or (previous.switch is None and rail.switch is not None):
            rails[rail.name] = rail
    return FabricPlace(host, rails=tuple(rails[name] for name in sorted(rails)), **domains)
