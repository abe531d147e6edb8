# SPDX-License-Identifier: Apache-2.0
"""A server's place on the fabric, for its owner.

Names of domains are made for one project (:mod:`nova_hpc.fabric.pseudonym`): two projects
see different names for one leaf, and the names reveal nothing about hosts or their order. It is
for information: no decision depends on it, because the owner of the server may change it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc_common.wire.version import (
    LONGEST_METADATA,
    WireDocument,
    WireError,
    show_json_value,
    write_compact_json,
)

POSITION: Final = WireDocument(
    name="position",
    lives="metadata['hpc_position'] of the server",
    writer="nova_hpc_common.wire.position:Position.dumps",
    readers=("nova_hpc_common.wire.position:read_position",),
    key="v",
    limit=LONGEST_METADATA,
)

#: The item of the server's metadata.
KEY: Final = "hpc_position"
#: Kinds of domains, the widest first; flavors name them in ``hpc:fabric``.
LEVELS: Final = ("core", "spine", "block", "leaf", "nvlink_domain", "sub_domain")
#: Nodes write ``l-93c2e41b07``. The owner may write anything, and it goes into host files.
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,38}[A-Za-z0-9])?", re.ASCII)
_MOST_RAILS: Final = 64


@attrs.frozen
class Position:
    """The place of a server on the fabric: the project's name of each domain, by level.

    :ivar rails: names of its adapters' rails; their order has no meaning.
    """

    domains: Mapping[str, str] = attrs.Factory(dict)
    rails: tuple[str, ...] = ()

    def dumps(self) -> str:
        """Format the position as text for the server's metadata.

        If rails do not fit, a core above three other tiers is omitted first, then all rails.
        """
        named = {level: self.domains[level] for level in LEVELS if level in self.domains}
        rails = {"rails": list(self.rails)} if self.rails else {}
        texts = [_compact_position({**named, **rails})]
        if rails and named.keys() >= {"spine", "block", "leaf"}:
            texts.append(_compact_position({**named, **rails}, without="core"))
        texts.append(_compact_position(named))
        fitting = (text for text in texts if POSITION.limit is None or len(text) <= POSITION.limit)
        return next(fitting, texts[-1])


def _compact_position(fields: Mapping[str, Any], without: str = "") -> str:
    body = {**POSITION.head(), **{key: fields[key] for key in fields if key != without}}
    return write_compact_json(body)


def read_position(text: object) -> Position:
    """Parse a server's position.

    :raises WireError: it is broken, or of a later release.
    """
    data = POSITION.load(text)
    domains = {}
    for level in LEVELS:
        name = data.get(level)
        if name is None:
            continue
        if not is_position_name(name):
            raise POSITION.broken(f"has {level}: {show_json_value(name)}")
        domains[level] = name
    rails = data.get("rails", [])
    if (
        not isinstance(rails, list)
        or len(rails) > _MOST_RAILS
        or not all(map(is_position_name, rails))
    ):
        raise POSITION.broken(f"has rails: {show_json_value(rails)}")
    return Position(domains, tuple(rails))


def is_position_name(name: object) -> bool:
    """Whether a node may have given a domain or a rail this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def position_of_metadata(metadata: Mapping[str, str]) -> Position:
    """Parse the position in a server's metadata; an empty one if it has none.

    An unreadable position is unknown, which an empty one stands for as well.
    """
    try:
        return read_position(metadata[KEY]) if KEY in metadata else Position()
    except WireError:
        return Position()
