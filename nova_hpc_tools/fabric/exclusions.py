# SPDX-License-Identifier: Apache-2.0
"""The parts of a source that are left out: by the operator, or because they mean "not known"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.fabric.model import FabricLevel, FabricMap
from nova_hpc.outside.name_lists import join_first
from nova_hpc_tools.fabric.problems import ProblemCollector

#: Names that stand for "not known" in what others write (topograph's is "no-topology").
_PLACEHOLDERS: Final = frozenset(
    {"no-topology", "unknown", "none", "(none)", "null", "n/a", "undefined"}
)


@attrs.frozen
class Exclusions:
    """Patterns of what is left out; None leaves nothing out.

    Hosts, switches and rails match anywhere in their name, placeholders as a whole.
    """

    hosts: re.Pattern[str] | None = None
    switches: re.Pattern[str] | None = None
    #: By the name of the host's port, e.g. ``mlx5_8``.
    rails: re.Pattern[str] | None = None
    #: More names that are no domain.
    unknown: re.Pattern[str] | None = None

    def leaves_out_host(self, name: str) -> bool:
        """Whether *name* is no compute node."""
        return self.hosts is not None and self.hosts.search(name) is not None

    def leaves_out_switch(self, name: str) -> bool:
        """Whether nothing of the switch *name* counts."""
        ignored = self.switches is not None and self.switches.search(name) is not None
        return ignored or self.is_placeholder(name)

    def leaves_out_rail(self, name: str | None) -> bool:
        """Whether ports of the name *name* do not count."""
        return self.rails is not None and name is not None and self.rails.search(name) is not None

    def is_placeholder(self, name: str) -> bool:
        """Whether *name* stands for "not known" and is no domain."""
        named = self.unknown is not None and self.unknown.fullmatch(name) is not None
        return named or name.casefold() in _PLACEHOLDERS


#: Leaves nothing out but placeholders.
NOTHING: Final = Exclusions()


def note_placeholders(
    hosts_by_domain: Mapping[str, Iterable[str]],
    exclusions: Exclusions,
    collector: ProblemCollector,
) -> None:
    """Say which hosts are in a domain whose name only stands for "not known"."""
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
    """A finished map without what is left out."""
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
