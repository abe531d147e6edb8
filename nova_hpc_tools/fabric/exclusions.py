# SPDX-License-Identifier: Apache-2.0
"""The parts of a source that are left out: by options, or because their name means "unknown"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.fabric.model import FabricLevel, FabricMap
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.fabric.problems import ProblemCollector

#: Names that mean "unknown" in the output of other programs (topograph's is "no-topology").
_PLACEHOLDERS: Final = frozenset(
    {"no-topology", "unknown", "none", "(none)", "null", "n/a", "undefined"}
)


@attrs.frozen
class Exclusions:
    """Patterns for names in a map that are left out. None leaves nothing out.

    Hosts, switches and rails match anywhere in their name, placeholders as a whole.
    """

    hosts: re.Pattern[str] | None = None
    switches: re.Pattern[str] | None = None
    #: For the name of the host's port, e.g. ``mlx5_8``.
    rails: re.Pattern[str] | None = None
    #: Further placeholders: names that mean "unknown".
    unknown: re.Pattern[str] | None = None

    def leaves_out_host(self, name: str) -> bool:
        """Whether the host *name* is left out, as it is not a compute node."""
        return self.hosts is not None and self.hosts.search(name) is not None

    def leaves_out_switch(self, name: str) -> bool:
        """Whether the switch or domain *name* is left out, with all of its ports."""
        ignored = self.switches is not None and self.switches.search(name) is not None
        return ignored or self.is_placeholder(name)

    def leaves_out_rail(self, name: str | None) -> bool:
        """Whether ports with this name are left out."""
        return self.rails is not None and name is not None and self.rails.search(name) is not None

    def is_placeholder(self, name: str) -> bool:
        """Whether *name* means "unknown" instead of a domain."""
        named = self.unknown is not None and self.unknown.fullmatch(name) is not None
        return named or name.casefold() in _PLACEHOLDERS


#: Leaves out only placeholders.
NOTHING: Final = Exclusions()


def note_placeholders(
    hosts_by_domain: Mapping[str, Iterable[str]],
    exclusions: Exclusions,
    collector: ProblemCollector,
) -> None:
    """Add a note to *collector* for each domain whose name means "unknown", with its hosts."""
    for name, hosts in sorted(hosts_by_domain.items()):
        if exclusions.is_placeholder(name):
            those = sorted(set(hosts))
            collector.note(
                f'{name!r} is no domain but stands for "not known": {join_first(those, 5)} '
                f"{'is' if len(those) == 1 else 'are'} in none there"
            )


def exclude_places(
    fabric: FabricMap, exclusions: Exclusions, collector: ProblemCollector
) -> FabricMap:
    """Return a copy of *fabric* without the hosts, domains and rails that are left out."""
    nowhere: dict[str, list[str]] = {}
    kept = []
    for place in fabric.places:
        if exclusions.leaves_out_host(place.host):
            continue
        gone: dict[str, Any] = {}
        for level in FabricLevel:
            name = place.domain(level)
            if name is not None and exclusions.leaves_out_switch(name):
                gone[level.word] = None
                nowhere.setdefault(name, []).append(place.host)
        rails = tuple(rail for rail in place.rails if not exclusions.leaves_out_rail(rail.name))
        kept.append(attrs.evolve(place, rails=rails, **gone))
    note_placeholders(nowhere, exclusions, collector)
    return attrs.evolve(fabric, places=kept)
