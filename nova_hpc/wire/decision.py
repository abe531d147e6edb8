# SPDX-License-Identifier: Apache-2.0
"""The decision for a server, as it is stored with the server.

The devices themselves are Nova's PCI records and are not repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.topology.peer import PeerReason
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc_common.level import AffinityPolicy, Level
from nova_hpc_common.wire.version import (
    LONGEST_METADATA,
    WireDocument,
    WireError,
    write_compact_json,
)

DECISION: Final = WireDocument(
    name="decision",
    lives="system_metadata['hpc_decision'] of the server",
    writer="nova_hpc.wire.decision:Decision.dumps",
    readers=("nova_hpc.wire.decision:read_decision",),
    key="v",
    limit=LONGEST_METADATA,
)

#: The key in the server's ``system_metadata``.
KEY: Final = "hpc_decision"

_NUMBERS: Final = re.compile(r"(\d{1,4})-(\d{1,4})", re.ASCII)


@attrs.frozen
class Decision:
    """The placement decision for a server: the requested level, and the level that it got."""

    asked: Level
    policy: AffinityPolicy
    reached: Level
    #: Among the pairs of a GPU and an adapter below one switch: those whose traffic leaves
    #: it, and all pairs. None if no known pair's traffic does.
    redirected: tuple[int, int] | None = None
    #: The pairs themselves: numbers of a GPU and an adapter among the server's devices in the
    #: order of addresses, and the reason (see nova_hpc.topology.peer.PeerReason). Unknown pairs
    #: are left out, and all pairs if there are too many for the record.
    peers: tuple[tuple[int, int, PeerReason], ...] = ()
    #: The operator's setting for them then (``[hpc]peer_to_peer``); omitted if the text would
    #: be too long, and read as KEEP.
    wish: PeerWish = PeerWish.KEEP

    def dumps(self) -> str:
        """Format the decision for Nova's database: ASCII, within the limit of :data:`DECISION`."""
        body: dict[str, object] = {
            DECISION.key: DECISION.version,
            "asked": self.asked.word,
            "policy": self.policy.value,
            "reached": self.reached.word,
        }
        if self.redirected is not None:
            body["redirected"] = list(self.redirected)
        if self.peers:
            _add_if_it_fits(body, "peers", _pairs_by_reason(self.peers))
        if self.wish is not PeerWish.KEEP:
            _add_if_it_fits(body, "wish", self.wish.value)
        return write_compact_json(body)


def read_decision(text: object) -> Decision | None:
    """Parse a stored placement decision.

    :returns: None if there is nothing that this release can read: no
        text, damaged text, or a text of a newer version.
    """
    try:
        data = DECISION.load(text)
        return Decision(
            asked=Level.from_word(data["asked"]),
            policy=AffinityPolicy(data["policy"]),
            reached=Level.from_word(data["reached"]),
            redirected=_read_redirected(data.get("redirected")),
            peers=_read_peer_pairs(data.get("peers", {})),
            wish=_read_peer_wish(data.get("wish", PeerWish.KEEP.value)),
        )
    except (WireError, KeyError, TypeError, ValueError):
        return None


def _add_if_it_fits(body: dict[str, object], key: str, value: object) -> None:
    """Add the value if there is room for it."""
    if DECISION.limit is None or len(write_compact_json({**body, key: value})) <= DECISION.limit:
        body[key] = value


def _read_peer_wish(value: object) -> PeerWish:
    if not isinstance(value, str):
        raise TypeError("no such wish")
    # A later release may have more settings.
    return next((wish for wish in PeerWish if wish.value == value), PeerWish.KEEP)


def _pairs_by_reason(peers: Iterable[tuple[int, int, PeerReason]]) -> dict[str, str]:
    """Group pairs of GPU and adapter numbers by reason: reason -> text such as ``0-2,1-3``."""
    by_reason: dict[str, list[str]] = {}
    for gpu, adapter, reason in peers:
        by_reason.setdefault(reason.value, []).append(f"{gpu}-{adapter}")
    return {reason: ",".join(pairs) for reason, pairs in by_reason.items()}


def _read_peer_pairs(value: object) -> tuple[tuple[int, int, PeerReason], ...]:
    if not isinstance(value, dict):
        raise TypeError("no such pairs")
    peers = []
    reasons = {reason.value: reason for reason in PeerReason}
    for word, text in value.items():
        for numbers in str(text).split(","):
            match = _NUMBERS.fullmatch(numbers)
            if match is None:
                raise ValueError("no such pairs")
            if word in reasons:  # a later release may have more reasons
                peers.append((int(match[1]), int(match[2]), reasons[word]))
    return tuple(sorted(peers, key=lambda pair: pair[:2]))


def _read_redirected(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value):
        some, total = value
        if 0 < some <= total < 1 << 32:
            return some, total
    raise ValueError("no such pairs")
