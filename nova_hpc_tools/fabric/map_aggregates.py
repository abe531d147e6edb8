# SPDX-License-Identifier: Apache-2.0
"""The aggregates of a fabric map; :mod:`nova_hpc.fabric.aggregates` reads them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.aggregates import (
    KIND_KEY,
    MAP_KEY,
    RAILS_KEY,
    VERSION,
    VERSION_KEY,
    aggregate_key_of,
)
from nova_hpc.fabric.model import OF_NVLINK, TREE, FabricLevel, FabricMap, FabricPlace

#: Prefix of the name of every aggregate of ours.
NAME_PREFIX: Final = "hpc-fabric:"
#: Longest value of a metadata item (nova/objects/aggregate.py), in characters.
_LONGEST_VALUE: Final = 255


@attrs.frozen
class Aggregate:
    """A host aggregate that represents one domain of a fabric map in Nova."""

    name: str
    #: Key and value, in the order of the keys.
    metadata: tuple[tuple[str, str], ...]
    #: In the order of their names.
    hosts: tuple[str, ...]


def aggregates_of(fabric: FabricMap) -> tuple[Aggregate, ...]:
    """Build the host aggregates that represent *fabric* in Nova, sorted by name.

    A host is in the aggregate of its lowest known domain of the tree, and in those of its NVLink
    levels. Hosts without a domain are in no aggregate.
    """
    aggregates: list[Aggregate] = []
    tree: dict[tuple[FabricLevel, str], list[FabricPlace]] = {}
    for place in fabric.places:
        for level in TREE:
            name = place.domain(level)
            if name is not None:
                tree.setdefault((level, name), []).append(place)
                break
    for (level, name), places in tree.items():
        metadata = {}
        for above in TREE[TREE.index(level) :]:
            names = {place.domain(above) for place in places}
            if len(names) == 1 and (only := names.pop()) is not None:
                metadata[aggregate_key_of(above)] = only
        rails = _common_rails(places)
        if rails:
            metadata[RAILS_KEY] = rails
        aggregates.append(
            _build_aggregate(fabric, level, name, metadata, [place.host for place in places])
        )
    for level in OF_NVLINK:
        for name, hosts in fabric.domains(level).items():
            aggregates.append(
                _build_aggregate(fabric, level, name, {aggregate_key_of(level): name}, hosts)
            )
    return tuple(sorted(aggregates, key=lambda aggregate: aggregate.name))


def _build_aggregate(
    fabric: FabricMap,
    level: FabricLevel,
    name: str,
    entries: Mapping[str, str],
    hosts: Iterable[str],
) -> Aggregate:
    metadata = {VERSION_KEY: VERSION, MAP_KEY: fabric.name, KIND_KEY: level.word, **entries}
    return Aggregate(
        name=f"{NAME_PREFIX}{level.word}:{name}",
        metadata=tuple(sorted(metadata.items())),
        hosts=tuple(sorted(hosts)),
    )


def _common_rails(places: list[FabricPlace]) -> str:
    """List the rails that more than half of the hosts have, as text; "" if it would be too long."""
    counts = Counter(rail.name for place in places for rail in place.rails)
    names = sorted(name for name, count in counts.items() if 2 * count > len(places))
    text = ",".join(names)
    return text if len(text) <= _LONGEST_VALUE else ""
