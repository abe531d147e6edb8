# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer of each GPU with each adapter below its switch, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nova_hpc.topology import peer, peer_wish
from nova_hpc.topology.model import Node
from nova_hpc.topology.peer import Pair, Peer, Why
from nova_hpc.topology.peer_wish import Wish

_WHERE: Final = {
    Peer.SWITCH: "below the switch",
    Peer.ROOT: "through the root complex",
    Peer.UNKNOWN: "not known",
}
_WHY: Final = {
    Why.REDIRECT: "ACS redirects all",
    Why.NO_ATS: "ACS redirects what is not translated, and one has no ATS",
    Why.ATS: "ACS redirects what is not translated, and both have ATS",
    Why.FREE: "ACS redirects nothing",
    Why.UNREADABLE: "only root can read the registers",
}
_ATS: Final = {True: ", ATS on", False: ", ATS off now", None: ""}


def lines(node: Node, wish: Wish = Wish.KEEP) -> Iterator[str]:
    """One line a pair, and below it what stands against *wish*; nothing without pairs."""
    pairs = list(peer.pairs(node))
    if not pairs:
        return
    lacks = peer_wish.plan(node, wish).lacks
    yield "Peer-to-peer of GPUs and adapters below one switch" + (
        "" if wish is Wish.KEEP else f" ([hpc]peer_to_peer = {wish.value})"
    )
    for pair in pairs:
        state = "" if peer_wish.fulfilled(pair, wish) is not False else ", not as wished"
        yield f"  {_names(pair)}: {_said(pair)}{state}"
        for lack in lacks.get(pair, ()):
            yield f"    {lack.address}: {lack.text}"


def _names(pair: Pair) -> str:
    others = [each for each in pair.functions if each != pair.adapter]
    what = "virtual function" if len(others) == 1 else "virtual functions"
    if not others:
        return f"{pair.gpu} with {pair.adapter}"
    if len(others) == len(pair.functions):
        return f"{pair.gpu} with {len(others)} {what} of {pair.adapter}"
    return f"{pair.gpu} with {pair.adapter} and {len(others)} {what}"


def _said(pair: Pair) -> str:
    ats = _ATS[pair.ats_enabled] if pair.why is Why.ATS else ""
    return f"{_WHERE[pair.path]} ({_WHY[pair.why]}{ats})"
