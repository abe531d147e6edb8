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

from nova_hpc.fabric.model import FabricLevel, FabricMap, Link, Place, Rail, Switch, wrong_name
from nova_hpc.wire.documents import FABRIC_MAP
from nova_hpc.wire.version import WireError, shown

_MOST_CABLES: Final = 1_000_000
_LONGEST: Final = 1000
_Made = TypeVar("_Made")


def build(fabric: FabricMap) -> dict[str, Any]:
    """The document as plain objects; what is not known is left out."""
    return {
        **FABRIC_MAP.head(),
        "name": fabric.name,
        "source": fabric.source,
        "hosts": [_said(place) for place in fabric.places],
        "switches": [{**_said(switch), "level": switch.level.word} for switch in fabric.switches],
        "links": [_said(link) for link in fabric.links],
    }


def dumps(fabric: FabricMap) -> str:
    """The document as text: one line each host, switch and link; ends with a newline."""
    document = build(fabric)
    lists = {key: document.pop(key) for key in ("hosts", "switches", "links")}
    head = json.dumps(document)[:-1]
    parts = []
    for key, entries in lists.items():
        body = "".join(f"\n  {json.dumps(entry)}," for entry in entries).removesuffix(",")
        parts.append(f',\n "{key}": [{body}]')
    return f"{head}{''.join(parts)}}}\n"


def loads(text: object) -> FabricMap:
    """Read the document.

    :raises WireError: it is broken, or only a later release reads it; nothing of it counts.
    """
    document = FABRIC_MAP.load(text)
    try:
        fabric = FabricMap(
            places=[_place(entry) for entry in _list(document, "hosts")],
            switches=[_switch(entry) for entry in _list(document, "switches")],
            links=[_link(entry) for entry in _list(document, "links")],
            name=document.get("name", "fabric"),
            source=_text(document, "source", "") or "",
        )
    except ValueError as error:
        raise FABRIC_MAP.broken(f"is wrong: {error}") from error
    for wrong in fabric.contradictions():
        raise FABRIC_MAP.broken(f"contradicts itself: {wrong}")
    return fabric


def _said(value: Any) -> dict[str, Any]:
    """What an object says, without what it says nothing of."""
    found = attrs.asdict(value, filter=lambda _, each: each is not None and each != ())
    if isinstance(value, Link) and not value.dead:
        del found["dead"]
    return found


def _list(document: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise WireError(f"{key} is {shown(entries)}, not a list")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise WireError(f"{key}: number {number} is {shown(entry)}, not an object")
        yield entry


def _place(entry: dict[str, Any]) -> Place:
    host = _name(entry, "host")
    domains = {level.word: _text(entry, level.word) for level in FabricLevel}
    rails = tuple(
        Rail(_name(rail, "name"), _text(rail, "switch"), _text(rail, "rate"))
        for rail in _list(entry, "rails")
    )
    return _made(lambda: Place(host, rails=rails, **domains), f"host {host!r}")


def _switch(entry: dict[str, Any]) -> Switch:
    name = _name(entry, "name")
    level = _made(lambda: FabricLevel.from_word(str(entry.get("level"))), f"switch {name!r}: level")
    return Switch(name, level, _text(entry, "domain"), _text(entry, "guid"))


def _link(entry: dict[str, Any]) -> Link:
    return Link(
        _name(entry, "lower"),
        _name(entry, "upper"),
        _number(entry, "count", 1),
        _number(entry, "dead", 0),
        _text(entry, "rate"),
    )


def _made(make: Callable[[], _Made], what: str) -> _Made:
    try:
        return make()
    except ValueError as error:
        raise WireError(f"{what}: {error}") from error


def _name(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    wrong = wrong_name(value)
    if wrong is not None:
        raise WireError(f"{key}: {wrong if isinstance(value, str) else shown(value)}")
    return str(value)


def _text(entry: dict[str, Any], key: str, absent: str | None = None) -> str | None:
    value = entry.get(key, absent)
    if value is None or value == "":
        return absent
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST:
        raise WireError(f"{key} is {shown(value)}, not a printable text")
    return value


def _number(entry: dict[str, Any], key: str, absent: int) -> int:
    value = entry.get(key, absent)
    if type(value) is not int or not 0 <= value <= _MOST_CABLES:
        raise WireError(f"{key} is {shown(value)}, not a number of cables")
    return value
