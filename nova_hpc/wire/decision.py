# SPDX-License-Identifier: Apache-2.0
"""What was decided for a server, as it is stored with the server.

The devices themselves are Nova's PCI records and are not repeated here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.placement.model import Policy
from nova_hpc.topology.level import Level
from nova_hpc.topology.peer import Why
from nova_hpc.topology.peer_wish import Wish
from nova_hpc.wire.documents import DECISION
from nova_hpc.wire.version import WireError

#: The key in the server's ``system_metadata``.
KEY: Final = "hpc_decision"

_NUMBERS: Final = re.compile(r"(\d{1,4})-(\d{1,4})", re.ASCII)


@attrs.frozen
class Decision:
    """What the flavor asked for, and what the server got."""

    asked: Level
    policy: Policy
    reached: Level
    #: Of the pairs of a GPU and an adapter below one switch: those whose traffic
    #: leaves it, and all. None: none does, as far as it is known.
    redirected: tuple[int, int] | None = None
    #: The pairs themselves: numbers of a GPU and an adapter among the server's devices in
    #: the order of addresses, and what decides (see nova_hpc.topology.peer.Why). Those that
    #: are not known are left out, and all where there are too many for the record.
    peers: tuple[tuple[int, int, Why], ...] = ()
    #: What the operator wished of them then (``[hpc]peer_to_peer``); left out where there is
    #: no room, as KEEP.
    wish: Wish = Wish.KEEP

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
        if self.peers:
            _add(found, "peers", _by_why(self.peers))
        if self.wish is not Wish.KEEP:
            _add(found, "wish", self.wish.value)
        return _text(found)


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
            peers=_peers(data.get("peers", {})),
            wish=_wish(data.get("wish", Wish.KEEP.value)),
        )
    except (WireError, KeyError, TypeError, ValueError):
        return None


def _text(found: dict[str, object]) -> str:
    return json.dumps(found, separators=(",", ":"))


def _add(found: dict[str, object], key: str, value: object) -> None:
    """Add what there is room for."""
    if DECISION.limit is None or len(_text({**found, key: value})) <= DECISION.limit:
        found[key] = value


def _wish(value: object) -> Wish:
    if not isinstance(value, str):
        raise TypeError("no such wish")
    # A later release may know more of them.
    return next((each for each in Wish if each.value == value), Wish.KEEP)


def _by_why(peers: Iterable[tuple[int, int, Why]]) -> dict[str, str]:
    """What decides -> ``0-2,1-3``: the pairs of which it holds."""
    found: dict[str, list[str]] = {}
    for gpu, adapter, why in peers:
        found.setdefault(why.value, []).append(f"{gpu}-{adapter}")
    return {why: ",".join(pairs) for why, pairs in found.items()}


def _peers(value: object) -> tuple[tuple[int, int, Why], ...]:
    if not isinstance(value, dict):
        raise TypeError("no such pairs")
    found = []
    known = {each.value: each for each in Why}
    for why, text in value.items():
        for each in str(text).split(","):
            match = _NUMBERS.fullmatch(each)
            if match is None:
                raise ValueError("no such pairs")
            if why in known:  # a later release may have more to say
                found.append((int(match[1]), int(match[2]), known[why]))
    return tuple(sorted(found, key=lambda each: each[:2]))


def _pair(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value):
        some, total = value
        if 0 < some <= total < 1 << 32:
            return some, total
    raise ValueError("no such pairs")
