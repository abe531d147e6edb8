# SPDX-License-Identifier: Apache-2.0
"""A fabric map as a JSON document with a version.

::

    {"schema": "nova-hpc/fabric-map", "version": 1, "name": "fabric", "source": "...",
     "hosts": [{"host": "n1", "leaf": "l1", "spine": "s1",
                "rails": [{"name": "mlx5_0", "switch": "l1", "rate": "4xNDR"}]}],
     "switches": [{"name": "l1", "level": "leaf", "domain": "l1", "guid": "..."}],
     "links": [{"lower": "l1", "upper": "s1", "count": 2, "dead": 1, "rate": "4xNDR"}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import attrs

from nova_hpc.fabric.model import (
    FabricLevel,
    FabricLink,
    FabricMap,
    FabricPlace,
    FabricSwitch,
    Rail,
    wrong_name,
)
from nova_hpc.wire.documents import FABRIC_MAP
from nova_hpc.wire.version import WireError, show_json_value

_MOST_CABLES: Final = 1_000_000
_LONGEST: Final = 1000
_Made = TypeVar("_Made")


def build_fabric_document(fabric: FabricMap) -> dict[str, Any]:
    """The document as plain objects; what is not known is left out."""
    return {
        **FABRIC_MAP.head(),
        "name": fabric.name,
        "source": fabric.source,
        "hosts": [_stated_fields_of(place) for place in fabric.places],
        "switches": [
            {**_stated_fields_of(switch), "level": switch.level.word} for switch in fabric.switches
        ],
        "links": [_stated_fields_of(link) for link in fabric.links],
    }


def write_fabric_map(fabric: FabricMap) -> str:
    """The document as text: one line each host, switch and link; ends with a newline."""
    document = build_fabric_document(fabric)
    lists = {key: document.pop(key) for key in ("hosts", "switches", "links")}
    head = json.dumps(document)[:-1]
    parts = []
    for key, entries in lists.items():
        body = "".join(f"\n  {json.dumps(entry)}," for entry in entries).removesuffix(",")
        parts.append(f',\n "{key}": [{body}]')
    return f"{head}{''.join(parts)}}}\n"


def read_fabric_map(text: object) -> FabricMap:
    """Read the document.

    :raises WireError: it is broken, or only a later release reads it; nothing of it counts.
    """
    document = FABRIC_MAP.load(text)
    try:
        fabric = FabricMap(
            places=[_read_place(entry) for entry in _entries_of_list(document, "hosts")],
            switches=[_read_switch(entry) for entry in _entries_of_list(document, "switches")],
            links=[_read_cables(entry) for entry in _entries_of_list(document, "links")],
            name=document.get("name", "fabric"),
            source=_read_optional_text(document, "source", "") or "",
        )
    except ValueError as error:
        raise FABRIC_MAP.broken(f"is wrong: {error}") from error
    for wrong in fabric.contradictions():
        raise FABRIC_MAP.broken(f"contradicts itself: {wrong}")
    return fabric


def _stated_fields_of(value: Any) -> dict[str, Any]:
    """The fields of an object that are set."""
    stated = attrs.asdict(
        value, filter=lambda _, field_value: field_value is not None and field_value != ()
    )
    if isinstance(value, FabricLink) and not value.dead:
        del stated["dead"]
    return stated


def _entries_of_list(document: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise WireError(f"{key} is {show_json_value(entries)}, not a list")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise WireError(f"{key}: number {number} is {show_json_value(entry)}, not an object")
        yield entry


def _read_place(entry: dict[str, Any]) -> FabricPlace:
    host = _read_name(entry, "host")
    domains = {level.word: _read_optional_text(entry, level.word) for level in FabricLevel}
    rails = tuple(
        Rail(
            _read_name(rail, "name"),
            _read_optional_text(rail, "switch"),
            _read_optional_text(rail, "rate"),
        )
        for rail in _entries_of_list(entry, "rails")
    )
    return _make_or_refuse(lambda: FabricPlace(host, rails=rails, **domains), f"host {host!r}")


def _read_switch(entry: dict[str, Any]) -> FabricSwitch:
    name = _read_name(entry, "name")
    level = _make_or_refuse(
        lambda: FabricLevel.from_word(str(entry.get("level"))), f"switch {name!r}: level"
    )
    return FabricSwitch(
        name, level, _read_optional_text(entry, "domain"), _read_optional_text(entry, "guid")
    )


def _read_cables(entry: dict[str, Any]) -> FabricLink:
    return FabricLink(
        _read_name(entry, "lower"),
        _read_name(entry, "upper"),
        _read_cable_count(entry, "count", 1),
        _read_cable_count(entry, "dead", 0),
        _read_optional_text(entry, "rate"),
    )


def _make_or_refuse(make: Callable[[], _Made], what: str) -> _Made:
    try:
        return make()
    except ValueError as error:
        raise WireError(f"{what}: {error}") from error


def _read_name(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    wrong = wrong_name(value)
    if wrong is not None:
        raise WireError(f"{key}: {wrong if isinstance(value, str) else show_json_value(value)}")
    return str(value)


def _read_optional_text(entry: dict[str, Any], key: str, absent: str | None = None) -> str | None:
    value = entry.get(key, absent)
    if value is None or value == "":
        return absent
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST:
        raise WireError(f"{key} is {show_json_value(value)}, not a printable text")
    return value


def _read_cable_count(entry: dict[str, Any], key: str, absent: int) -> int:
    value = entry.get(key, absent)
    if type(value) is not int or not 0 <= value <= _MOST_CABLES:
        raise WireError(f"{key} is {show_json_value(value)}, not a number of cables")
    return value
