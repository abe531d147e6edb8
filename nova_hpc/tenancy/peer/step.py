# SPDX-License-Identifier: Apache-2.0
"""The step that sets peer-to-peer below switches to the operator's choice.

It belongs to the node and not to a server. It sets the ports when the service starts, and
again when a periodic check finds a wrong one, for example after a reset of
the switch. A slow pair is no reason to refuse a server: a port that
cannot be set is reported, and no device is withheld.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import attrs

from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.peer.acs_registers import PeerOutcome
from nova_hpc.tenancy.peer.acs_registers import apply_peer_wish as apply_here
from nova_hpc.tenancy.step import NodeView, TenancyStep, WithheldDevices
from nova_hpc.topology import peer, peer_wish
from nova_hpc.topology.peer_wish import PeerWish


@attrs.frozen
class PeerToPeerStep(TenancyStep):
    """Tenancy step that sets the switch ports of one node for peer-to-peer traffic."""

    name: ClassVar[str] = "peer-to-peer"

    root: Path
    wish: PeerWish
    #: Sets them if this process lacks the rights. May raise any exception.
    apply: Callable[[Path, PeerWish], PeerOutcome] = apply_here

    def begin(self, view: NodeView) -> tuple[str, ...]:
        """Set ports that differ from the operator's choice, and report those that cannot be set."""
        # Without root this process sees no registers: then the helper, which sets them, checks.
        return self._make() if any(peer.find_peer_pairs(view.node)) else ()

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Set ports again that no longer match the operator's choice; withhold no device."""
        unread = any(pair.path is peer.PeerPath.UNKNOWN for pair in peer.find_peer_pairs(view.node))
        if not unread and not peer_wish.plan_peer_changes(view.node, self.wish).changes:
            return WithheldDevices()
        return WithheldDevices(notes=self._make())

    def _make(self) -> tuple[str, ...]:
        try:
            outcome = self.apply(self.root, self.wish)
        except Exception as error:  # the privileged helper has ended, or does not start
            return (
                f"[hpc]peer_to_peer = {self.wish.value} is not made: {type(error).__name__}: "
                f"{error}",
            )
        return (
            *(f"ACS of {port} is set as [hpc]peer_to_peer wishes" for port in outcome.made),
            *(f"[hpc]peer_to_peer: {reason}" for reason in outcome.failed.values()),
            *(f"[hpc]peer_to_peer: {lack}" for lack in outcome.lacks),
        )
