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
from typing import Any, Final

import attrs

from nova_hpc.fabric.model import (
    FabricLevel,
    FabricLink,
    FabricMap,
    FabricPlace,
    FabricSwitch,
    wrong_name,
)
from nova_hpc.wire import strict
from nova_hpc.wire.strict import WrongError
from nova_hpc_common.wire.version import WireError, show_json_value
from nova_hpc_tools.wire.documents import FABRIC_MAP

_LONGEST: Final = 1000


def build_fabric_document(fabric: FabricMap) -> dict[str, Any]:
    """Return the fabric map as a JSON object; unknown values are left out."""
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
    """Format the fabric map as JSON text with one line per host, switch and link."""
    document = build_fabric_document(fabric)
    lists = {key: document.pop(key) for key in ("hosts", "switches", "links")}
    head = json.dumps(document)[:-1]
    parts = []
    for key, entries in lists.items():
        body = "".join(f"\n  {json.dumps(entry)}," for entry in entries).removesuffix(",")
        parts.append(f',\n "{key}": [{body}]')
    return f"{head}{''.join(parts)}}}\n"


def read_fabric_map(text: object) -> FabricMap:
    """Parse a fabric map in nova-hpc's JSON form.

    :raises WireError: it is broken, or only a later release reads it; no part of it counts.
    """
    document = strict.read_document(FABRIC_MAP, text, _CONVERTER, _MapDocument, _SINGULAR)
    try:
        fabric = FabricMap(
            document.hosts, document.switches, document.links, document.name, document.source or ""
        )
    except ValueError as error:
        raise FABRIC_MAP.broken(f"is wrong: {error}") from error
    for wrong in fabric.contradictions():
        raise FABRIC_MAP.broken(f"contradicts itself: {wrong}")
    return fabric


def _stated_fields_of(value: Any) -> dict[str, Any]:
    """Return name -> value of the fields of an object that are set."""
    stated = attrs.asdict(
        value, filter=lambda _, field_value: field_value is not None and field_value != ()
    )
    if isinstance(value, FabricLink) and not value.dead:
        del stated["dead"]
    return stated


@attrs.frozen
class _MapDocument:
    """The fabric map with the fields of its JSON document."""

    hosts: tuple[FabricPlace, ...] = ()
    switches: tuple[FabricSwitch, ...] = ()
    links: tuple[FabricLink, ...] = ()
    name: str = "fabric"
    source: str | None = None


def _check_name(value: Any, _: Any) -> str:
    wrong = wrong_name(value)
    if wrong is not None:
        raise WireError(wrong if isinstance(value, str) else show_json_value(value))
    return str(value)


def _text_or_none(value: Any, _: Any) -> str | None:
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST:
        raise WrongError(f"is {show_json_value(value)}, not a printable text")
    return value or None


_SINGULAR: Final = {"hosts": "host", "switches": "switch", "links": "link"}
_CONVERTER: Final = strict.make_strict_converter(
    {
        **dict.fromkeys(("host", "name", "lower", "upper"), (str, _check_name)),
        **dict.fromkeys((level.word for level in FabricLevel), (str, _text_or_none)),
        **dict.fromkeys(("source", "switch", "rate", "domain", "guid"), (str, _text_or_none)),
        "level": (FabricLevel, lambda value, _: FabricLevel.from_word(str(value))),
    },
    defaults=True,
    growing=True,
)
