# SPDX-License-Identifier: Apache-2.0
"""The names of places for the owners of servers.

A user may learn which of his servers share a leaf, and no more. The operator's name of the leaf,
its hosts and other projects on it stay hidden. So each name is a keyed hash (HMAC, RFC 2104, with
SHA-256) of the project, the map, the level and the operator's name. The key is the map's salt, in
aggregates that only operators can read: a user cannot try out names without it. One project always
has the same name for one leaf, two projects have different ones, and hashes have no order.

A name shows 40 bits of the hash. Among 1,000 domains of a level, two have the same name with
a probability of 5e-7. They would look like one domain, and no decision depends on these names.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricLevel, FabricPlace

#: Levels with names for owners, the widest first.
LEVELS: Final = (
    FabricLevel.CORE,
    FabricLevel.SPINE,
    FabricLevel.BLOCK,
    FabricLevel.LEAF,
    FabricLevel.NVLINK_DOMAIN,
    FabricLevel.SUB_DOMAIN,
)
#: Word of a level -> first letter of its names, if it is not the word's own.
_LETTERS: Final = {FabricLevel.SUB_DOMAIN.word: "d"}
_RAIL: Final = "rail"
#: Digits of a name: 40 bits.
_DIGITS: Final = 10


@attrs.frozen
class Names:
    """Pseudonyms for the domains of a fabric map, different for each project.

    :ivar salt: of the map, 32 hexadecimal digits.
    :ivar map: name of the map.
    :ivar project: id of the project, as Nova has it.
    """

    salt: str = attrs.field(repr=False)
    map: str
    project: str

    def domains(self, place: FabricPlace) -> dict[str, str]:
        """Return level -> the project's pseudonym of the domain; unknown domains are missing."""
        domains = ((level, place.domain(level)) for level in LEVELS)
        return {level.word: self._name(level.word, name) for level, name in domains if name}

    def rails(self, place: FabricPlace) -> dict[str, str]:
        """Return the host's name of a rail -> the project's pseudonym, the same on all leaves."""
        return {rail.name: self._name(_RAIL, rail.name) for rail in place.rails}

    def _name(self, kind: str, name: str) -> str:
        # Names are printable, so a zero byte cannot occur in one: the parts stay apart.
        text = "\0".join((self.project, self.map, kind, name))
        digest = hmac.new(bytes.fromhex(self.salt), text.encode(), hashlib.sha256).hexdigest()
        return f"{_LETTERS.get(kind, kind[0])}-{digest[:_DIGITS]}"
