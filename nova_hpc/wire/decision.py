# SPDX-License-Identifier: Apache-2.0
"""What was decided for a server, as it is stored with the server.

The devices themselves are Nova's PCI records and are not repeated here.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from nova_hpc.placement.model import Policy
from nova_hpc.topology.level import Level
from nova_hpc.wire.documents import DECISION
from nova_hpc.wire.version import WireError

#: The key in the server's ``system_metadata``.
KEY: Final = "hpc_decision"


@attrs.frozen
class Decision:
    """What the flavor asked for, and what the server got."""

    asked: Level
    policy: Policy
    reached: Level
    #: Of the pairs of a GPU and an adapter below one switch: those whose traffic
    #: leaves it, and all. None: none does, as far as it is known.
    redirected: tuple[int, int] | None = None

    def dumps(self) -> str:
        """The text to store: ASCII, within the limit of :data:`DECISION`."""
        found: dict[str, object] = {
            DECISION.key: DECISION.version,
            "asked": self.asked.word,
            "policy": self.policy.value,
            "reached": self.reached.word,
        }
        if self.redirected is not None:
            found["redirected"] = list(self.redirected)
        return json.dumps(found, separators=(",", ":"))


def loads(text: object) -> Decision | None:
    """Read a stored decision.

    :returns: None where there is nothing that this release understands: no
        text, damaged text, or a text of a newer version.
    """
    try:
        data = DECISION.load(text)
        return Decision(
            asked=Level.from_word(data["asked"]),
            policy=Policy(data["policy"]),
            reached=Level.from_word(data["reached"]),
            redirected=_pair(data.get("redirected")),
        )
    except (WireError, KeyError, TypeError, ValueError):
        return None


def _pair(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value):
        some, total = value
        if 0 < some <= total < 1 << 32:
            return some, total
    raise ValueError("no such pairs")
