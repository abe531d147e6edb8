# SPDX-License-Identifier: Apache-2.0
"""A fabric map as Nova's host aggregates, and back.

Each leaf has one aggregate, which names the domains around the leaf. Hosts whose leaf is unknown
are in the aggregate of their tightest known domain. Each NVLink domain and each sub-domain has
one more. So the domains of the tree nest by construction: all hosts of a leaf share one place.

All keys have the prefix ``hpc_fabric:``, with a colon, so that no other part of Nova acts on them
(nova/scheduler/filters, request_filter.py):

* ``AggregateInstanceExtraSpecsFilter`` compares flavor keys without a scope, and flavor keys in
  the scope ``aggregate_instance_extra_specs``; an operator may use that scope on purpose;
* ``AggregateMultiTenancyIsolation`` reads ``filter_tenant_id*``, and isolated aggregates read
  ``trait:*``;
* allocation ratios, weighers and limits read keys without a colon;
* ``AggregateImagePropertiesIsolation`` compares each key with an image property of the same name.
  Nova's images cannot have such a property, and the filter logs that, as for every key.

The aggregates never have an availability zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.model import OF_NVLINK, FabricLevel, FabricPlace, Rail, wrong_name

#: The prefix of all metadata keys of nova-hpc.
PREFIX: Final = "hpc_fabric:"
#: The key that marks an aggregate of a fabric map; its value is the version of all keys.
VERSION_KEY: Final = f"{PREFIX}version"
VERSION: Final = "1"
#: Key of the map's name: a cloud with two fabrics has two maps.
MAP_KEY: Final = f"{PREFIX}map"
#: Key of the level that the aggregate is one domain of.
KIND_KEY: Final = f"{PREFIX}kind"
#: Key of the names of the rails that more than half of the leaf's hosts have.
RAILS_KEY: Final = f"{PREFIX}rails"
#: Key of the map's secret, 32 hexadecimal digits, the same in all aggregates of a map. The names
#: that owners of servers can read are derived from it (:mod:`nova_hpc.fabric.pseudonym`).
#: Nova shows the metadata of aggregates only to operators.
SALT_KEY: Final = f"{PREFIX}salt"


def aggregate_key_of(level: FabricLevel) -> str:
    """Return the key of an aggregate's metadata that holds the name of a domain of *level*."""
    return f"{PREFIX}{level.word}"


_KEYS: Final = tuple((level, aggregate_key_of(level)) for level in FabricLevel)
_BY_WORD: Final = {level.word: level for level in FabricLevel}


@attrs.frozen
class PlaceReading:
    """The place of one host on the fabric, read from Nova's host aggregates, with the problems
    found.
    """

    place: FabricPlace
    #: Sentences on values that make no sense; the domains concerned are unknown.
    problems: tuple[str, ...] = ()
    #: Name of the map of these aggregates; "" if there is none, or more than one.
    map: str = ""
    #: The map's secret; "" if no aggregate has one.
    salt: str = ""


def salt_of(metadata: Iterable[Mapping[str, str]]) -> str:
    """Return the secret of a fabric map, from the metadata of its aggregates; "" if none has one.

    The secret turns names of domains into names for one project.

    Two first runs at once may leave two secrets for a moment. Then every reader takes the smallest.
    """
    salts = [mapping.get(SALT_KEY, "") for mapping in metadata]
    return min((salt for salt in salts if _SALT.fullmatch(salt)), default="")


_SALT: Final = re.compile("[0-9a-f]{32}", re.ASCII)


def read_aggregate_place(host: str, metadata: Iterable[Mapping[str, str]]) -> PlaceReading:
    """Read the place of *host* from the metadata of all aggregates that it is in.

    Metadata that make no sense, for example after an edit by hand, count as unknown.
    """
    problems: list[str] = []
    ours = [mapping for mapping in metadata if any(key.startswith(PREFIX) for key in mapping)]
    sound = [mapping for mapping in ours if _is_sound_metadata(mapping, problems)]
    maps = sorted({mapping[MAP_KEY] for mapping in sound})
    if len(maps) > 1:
        # Nothing shows which of the maps is right.
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
    """Whether one aggregate's metadata are valid; adds the reason to *problems* if they are not."""
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
    """Describe an edit by hand of the metadata of a map's aggregate; "" if they are sound."""
    kind = _BY_WORD.get(metadata.get(KIND_KEY, ""))
    if kind is None:
        return f"{KIND_KEY}={metadata.get(KIND_KEY)!r}"
    for key in (MAP_KEY, aggregate_key_of(kind)):
        if key not in metadata:
            return f"no {key}"
    for level, key in _KEYS:
        # A leaf's aggregate has no keys of NVLink domains, and the other way round.
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
