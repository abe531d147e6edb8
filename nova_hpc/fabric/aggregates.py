# SPDX-License-Identifier: Apache-2.0
"""A fabric map as Nova's host aggregates, and back.

One aggregate a leaf says where the leaf is; hosts whose leaf is unknown are in one of the
tightest domain that is known. Each NVLink domain and each part of one has one more. So the
domains of the tree nest by construction: a leaf's place is said once, for all of its hosts.

All keys have a prefix of our own, with a colon. It has to be so that nothing else in Nova
decides otherwise because of them (nova/scheduler/filters, request_filter.py): the filter
``AggregateInstanceExtraSpecsFilter`` compares flavor keys without a scope, and those of the
scope ``aggregate_instance_extra_specs``, with which an operator may name a key of ours on
purpose; ``AggregateMultiTenancyIsolation`` reads ``filter_tenant_id*``, isolated aggregates
``trait:*``, the allocation ratios, weighers and limits keys without a colon;
``AggregateImagePropertiesIsolation`` asks the image for a property of the key's name, which
Nova's images cannot have (it logs that, as for every key). There is never an availability zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.model import OF_NVLINK, FabricLevel, FabricPlace, Rail, wrong_name

#: Of every metadata key that is ours.
PREFIX: Final = "hpc_fabric:"
#: The key that marks an aggregate as ours; its value is the version of all keys.
VERSION_KEY: Final = f"{PREFIX}version"
VERSION: Final = "1"
#: Key of the map's name: a cloud with two fabrics has two maps.
MAP_KEY: Final = f"{PREFIX}map"
#: Key of the level that the aggregate is one domain of.
KIND_KEY: Final = f"{PREFIX}kind"
#: Key of the names of the rails that more than half of the leaf's hosts have.
RAILS_KEY: Final = f"{PREFIX}rails"
#: Key of the map's secret, from which the names are made that owners of servers read
#: (:mod:`nova_hpc.fabric.pseudonym`): 32 hexadecimal digits, the same in all aggregates of
#: a map. Nova tells the metadata of aggregates to operators alone.
SALT_KEY: Final = f"{PREFIX}salt"


def aggregate_key_of(level: FabricLevel) -> str:
    """The metadata key that holds the name of a domain of *level*."""
    return f"{PREFIX}{level.word}"


_KEYS: Final = tuple((level, aggregate_key_of(level)) for level in FabricLevel)
_BY_WORD: Final = {level.word: level for level in FabricLevel}


@attrs.frozen
class PlaceReading:
    """The place of one host by the aggregates."""

    place: FabricPlace
    #: What makes no sense in them; the domains concerned are unknown.
    problems: tuple[str, ...] = ()
    #: Name of the map that they are of; "" where there is none, or more than one.
    map: str = ""
    #: The map's secret; "" where they say none.
    salt: str = ""


def salt_of(metadata: Iterable[Mapping[str, str]]) -> str:
    """The secret of a map, by the metadata of its aggregates; "" where none says it.

    Of several, which two first runs at once may leave for a moment, everybody takes the same.
    """
    salts = [mapping.get(SALT_KEY, "") for mapping in metadata]
    return min((salt for salt in salts if _SALT.fullmatch(salt)), default="")


_SALT: Final = re.compile("[0-9a-f]{32}", re.ASCII)


def read_aggregate_place(host: str, metadata: Iterable[Mapping[str, str]]) -> PlaceReading:
    """Read the place of *host* from the metadata of all aggregates that it is in.

    Metadata that make no sense, as somebody's hand may leave them, are unknown.
    """
    problems: list[str] = []
    ours = [mapping for mapping in metadata if any(key.startswith(PREFIX) for key in mapping)]
    sound = [mapping for mapping in ours if _is_sound_metadata(mapping, problems)]
    maps = sorted({mapping[MAP_KEY] for mapping in sound})
    if len(maps) > 1:
        # Which of them is right nobody can tell.
        text = " and ".join(map(repr, maps))
        return PlaceReading(
            FabricPlace(host), (*problems, f"host {host!r} is in the maps {text} at once")
        )
    domains: dict[str, str] = {}
    for level, key in _KEYS:
        names = sorted({mapping[key] for mapping in sound if key in mapping})
        if len(names) > 1:
            text = " and ".join(map(repr, names))
            problems.append(
                f"host {host!r} is in two domains of level {level.word} at once: {text}"
            )
        elif names:
            domains[level.word] = names[0]
    rails: tuple[Rail, ...] = ()
    if "leaf" in domains:
        text = next((mapping[RAILS_KEY] for mapping in sound if mapping.get(RAILS_KEY)), "")
        rails = tuple(Rail(name) for name in text.split(",") if not wrong_name(name))
    return PlaceReading(
        place=FabricPlace(host, rails=rails, **domains),
        problems=tuple(problems),
        map=maps[0] if maps else "",
        salt=salt_of(sound),
    )


def _is_sound_metadata(metadata: Mapping[str, str], problems: list[str]) -> bool:
    """Whether one aggregate's metadata can be believed; adds to *problems* why not."""
    if VERSION_KEY not in metadata:
        key = min(key for key in metadata if key.startswith(PREFIX))
        problems.append(
            f"an aggregate has {key} but no {VERSION_KEY}: it is not of the fabric map and not read"
        )
        return False
    if metadata[VERSION_KEY] != VERSION:
        problems.append(
            f"an aggregate has {VERSION_KEY}={metadata[VERSION_KEY]!r}; this release of nova-hpc "
            f"reads {VERSION}"
        )
        return False
    wrong = _find_manual_edit(metadata)
    if wrong:
        called = next((metadata[key] for _, key in _KEYS if metadata.get(key)), "?")
        problems.append(f"the aggregate of {called!r} was edited by hand: it has {wrong}")
    return not wrong


def _find_manual_edit(metadata: Mapping[str, str]) -> str:
    """The sign of an edit by hand in an aggregate of ours; "" when it is sound."""
    kind = _BY_WORD.get(metadata.get(KIND_KEY, ""))
    if kind is None:
        return f"{KIND_KEY}={metadata.get(KIND_KEY)!r}"
    for key in (MAP_KEY, aggregate_key_of(kind)):
        if key not in metadata:
            return f"no {key}"
    for level, key in _KEYS:
        # A leaf's aggregate says nothing of NVLink domains, and the other way round.
        if key in metadata and not _belongs_in_aggregate(level, kind):
            return f"{key}, which does not belong there"
    for key in (MAP_KEY, *(key for _, key in _KEYS)):
        if key in metadata and wrong_name(metadata[key]):
            return f"{key}={metadata[key]!r}"
    return ""


def _belongs_in_aggregate(level: FabricLevel, kind: FabricLevel) -> bool:
    if kind in OF_NVLINK:
        return level is kind
    return level >= kind
