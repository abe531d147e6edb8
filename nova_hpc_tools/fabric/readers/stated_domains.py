# SPDX-License-Identifier: Apache-2.0
"""Sources that contain the domain of each host itself."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nova_hpc.fabric.model import (
    FabricLevel,
    FabricLink,
    FabricMap,
    FabricPlace,
    FabricSwitch,
    Rail,
)
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions, note_placeholders
from nova_hpc_tools.fabric.problems import FabricReading, ProblemCollector


@attrs.define
class Spoken:
    """Collects the stated domains of each host. A host with two domains of a level has an unknown
    one.
    """

    found: ProblemCollector
    exclusions: Exclusions = NOTHING
    #: Host -> level -> domain and line; the domain is None after a contradiction.
    _said: dict[str, dict[FabricLevel, tuple[str | None, int]]] = attrs.Factory(dict)
    _rails: dict[str, set[str]] = attrs.Factory(dict)
    #: Placeholder for "unknown" -> the hosts that have it as a domain.
    _nowhere: dict[str, set[str]] = attrs.Factory(dict)

    def host(self, host: str) -> None:
        """Add a host, without a domain yet."""
        self._said.setdefault(host, {})

    def put(self, host: str, level: FabricLevel, domain: str, line: int) -> None:
        """Record that *host* is in *domain*, by this line of the source."""
        by_level = self._said.setdefault(host, {})
        if self.exclusions.leaves_out_switch(domain):
            if self.exclusions.is_placeholder(domain):
                self._nowhere.setdefault(domain, set()).add(host)
            return
        before = by_level.get(level)
        if before is None:
            by_level[level] = (domain, line)
        elif before[0] != domain:
            self.found.wrong(
                f"host {host!r} is in {level.word} {domain!r} here and in {before[0]!r} in line "
                f"{before[1]}: which one is unknown"
                if before[0]
                else f"host {host!r} is in {level.word} {domain!r} here, and in others elsewhere",
                line,
            )
            by_level[level] = (None, before[1])
        else:
            self.found.note(
                f"host {host!r} is in {level.word} {domain!r}, also by line {before[1]}", line
            )

    def rails(self, host: str, names: Iterable[str]) -> None:
        """Record that *host* has ports of these names."""
        kept = {name for name in names if not self.exclusions.leaves_out_rail(name)}
        self._rails.setdefault(host, set()).update(kept)

    def reading(
        self,
        name: str,
        source: str,
        switches: Iterable[FabricSwitch] = (),
        links: Iterable[FabricLink] = (),
    ) -> FabricReading:
        """Build the map of all collected hosts, and return it with the problems and notes."""
        note_placeholders(self._nowhere, self.exclusions, self.found)
        places = [
            FabricPlace(
                host,
                rails=tuple(Rail(rail) for rail in sorted(self._rails.get(host, ()))),
                **{level.word: domain for level, (domain, _) in by_level.items()},
            )
            for host, by_level in self._said.items()
            if not self.exclusions.leaves_out_host(host)
        ]
        return self.found.checked_reading(FabricMap(places, switches, links, name, source))
