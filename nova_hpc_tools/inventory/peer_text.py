# SPDX-License-Identifier: Apache-2.0
"""The state of peer-to-peer traffic of GPUs with adapters below their switch, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nova_hpc.topology import peer, peer_wish
from nova_hpc.topology.model import Node
from nova_hpc.topology.peer import PeerPair, PeerPath, PeerReason
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc_common.outside.name_lists import join_first

_WHERE: Final = {
    PeerPath.SWITCH: "below the switch",
    PeerPath.ROOT: "through the root complex",
    PeerPath.UNKNOWN: "not known",
}
_WHY: Final = {
    PeerReason.REDIRECT: "ACS redirects all",
    PeerReason.NO_ATS: "ACS redirects untranslated traffic, and one has no ATS",
    PeerReason.ATS: "ACS redirects untranslated traffic, and both have ATS",
    PeerReason.FREE: "ACS redirects nothing",
    PeerReason.UNREADABLE: "only root can read the registers",
}
#: The most pairs that one line names.
_MOST_NAMES: Final = 4
_ATS: Final = {True: ", ATS on", False: ", ATS off now", None: ""}


def format_peer_lines(node: Node, wish: PeerWish = PeerWish.KEEP) -> Iterator[str]:
    """Yield lines about peer-to-peer paths of GPUs and adapters; equal pairs share a line.

    Below each line are the obstacles to *wish*.
    """
    pairs = list(peer.find_peer_pairs(node))
    if not pairs:
        return
    lacks = peer_wish.plan_peer_changes(node, wish).lacks
    yield "Peer-to-peer of GPUs and adapters below one switch" + (
        "" if wish is PeerWish.KEEP else f" ([hpc]peer_to_peer = {wish.value})"
    )
    alike: dict[tuple[str, ...], list[str]] = {}
    for pair in pairs:
        state = "" if peer_wish.is_pair_as_wished(pair, wish) is not False else ", not as wished"
        against = (f"    {lack.address}: {lack.text}" for lack in lacks.get(pair, ()))
        key = (f"{_format_pair_path(pair)}{state}", *against)
        alike.setdefault(key, []).append(_format_pair_names(pair))
    for (path, *against_lines), names in alike.items():
        count = f"{len(names)} pairs: " if len(names) > 1 else ""
        yield f"  {count}{join_first(names, _MOST_NAMES)}: {path}"
        yield from against_lines


def _format_pair_names(pair: PeerPair) -> str:
    others = [address for address in pair.functions if address != pair.adapter]
    what = "virtual function" if len(others) == 1 else "virtual functions"
    if not others:
        return f"{pair.gpu} with {pair.adapter}"
    if len(others) == len(pair.functions):
        return f"{pair.gpu} with {len(others)} {what} of {pair.adapter}"
    return f"{pair.gpu} with {pair.adapter} and {len(others)} {what}"


def _format_pair_path(pair: PeerPair) -> str:
    ats = _ATS[pair.ats_enabled] if pair.why is PeerReason.ATS else ""
    return f"{_WHERE[pair.path]} ({_WHY[pair.why]}{ats})"
