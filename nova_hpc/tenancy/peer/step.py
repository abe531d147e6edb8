# SPDX-License-Identifier: Apache-2.0
"""The step that makes peer-to-peer below switches as the operator wishes it.

It belongs to the node and not to a server: ports are set when the service starts, and
again when a look from time to time finds one that is not as wished, as after a reset of
the switch. A pair that is slower than it could be is no reason to refuse a server: what
could not be set is said, and nothing is withheld.
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
    """Sets the ports of one node."""

    name: ClassVar[str] = "peer-to-peer"

    root: Path
    wish: PeerWish
    #: Sets them where this process may not. Raises whatever it wants.
    apply: Callable[[Path, PeerWish], PeerOutcome] = apply_here

    def begin(self, view: NodeView) -> tuple[str, ...]:
        """Set what is not as wished, and say what cannot be."""
        # Who is not root sees no registers: then the one who sets them looks.
        return self._make() if any(peer.find_peer_pairs(view.node)) else ()

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Set again what is not as wished any more; nothing is withheld."""
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
