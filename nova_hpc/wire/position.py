# SPDX-License-Identifier: Apache-2.0
"""Where a server is on the fabric, as its owner may know it.

Names of domains are made for one project: two projects see different names for one
leaf, and no name says anything about hosts or their order. It is for information: nobody
decides anything by it, since the owner of the server may change it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.wire.documents import POSITION
from nova_hpc.wire.version import WireError, shown

#: The item of the server's metadata.
KEY: Final = "hpc_position"
#: Kinds of domains, the widest first; flavors name them in ``hpc:fabric``.
LEVELS: Final = ("spine", "block", "leaf", "nvlink_domain")
_LONGEST_NAME: Final = 40


@attrs.frozen
class Position:
    """The names of the domains that a server is in, by their level; unknown ones are missing."""

    domains: Mapping[str, str] = attrs.Factory(dict)

    def dumps(self) -> str:
        """The text of the item."""
        named = {level: self.domains[level] for level in LEVELS if level in self.domains}
        return json.dumps({**POSITION.head(), **named}, separators=(",", ":"))


def loads(text: object) -> Position:
    """Read a position.

    :raises WireError: it is broken, or of a later release.
    """
    data = POSITION.load(text)
    found = {}
    for level in LEVELS:
        name = data.get(level)
        if name is None:
            continue
        good = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
        if not good:
            raise POSITION.broken(f"has {level}: {shown(name)}")
        found[level] = name
    return Position(found)


def of(metadata: Mapping[str, str]) -> Position:
    """The position that a server's metadata says; an empty one where it says none.

    What cannot be read is unknown, which an empty position says as well.
    """
    try:
        return loads(metadata[KEY]) if KEY in metadata else Position()
    except WireError:
        return Position()
