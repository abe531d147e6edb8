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

from nova_hpc.tenancy.owners import Owners
from nova_hpc.tenancy.peer.write import Outcome
from nova_hpc.tenancy.peer.write import apply as apply_here
from nova_hpc.tenancy.step import Step, Tenant, View, Withheld
from nova_hpc.topology import peer, peer_wish
from nova_hpc.topology.peer_wish import Wish


@attrs.frozen
class PeerToPeer(Step):
    """Sets the ports of one node."""

    name: ClassVar[str] = "peer-to-peer"

    root: Path
    wish: Wish
    #: Sets them where this process may not. Raises whatever it wants.
    apply: Callable[[Path, Wish], Outcome] = apply_here

    def begin(self, view: View) -> tuple[str, ...]:
        """Set what is not as wished, and say what cannot be."""
        # Who is not root sees no registers: then the one who sets them looks.
        return self._make() if any(peer.pairs(view.node)) else ()

    def before_start(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Nothing: it belongs to the node."""
        return ()

    def before_restart(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Nothing: it belongs to the node."""
        return ()

    def after_end(self, server: str, look: Callable[[], View], owners: Owners) -> tuple[str, ...]:
        """Nothing: it belongs to the node."""
        return ()

    def withhold(self, view: View, owners: Owners) -> Withheld:
        """Set again what is not as wished any more; nothing is withheld."""
        unread = any(each.path is peer.Peer.UNKNOWN for each in peer.pairs(view.node))
        if not unread and not peer_wish.plan(view.node, self.wish).changes:
            return Withheld()
        return Withheld(notes=self._make())

    def _make(self) -> tuple[str, ...]:
        try:
            found = self.apply(self.root, self.wish)
        except Exception as error:  # the privileged helper has ended, or does not start
            return (
                f"[hpc]peer_to_peer = {self.wish.value} is not made: {type(error).__name__}: "
                f"{error}",
            )
        return (
            *(f"ACS of {each} is set as [hpc]peer_to_peer wishes" for each in found.made),
            *(f"[hpc]peer_to_peer: {why}" for why in found.failed.values()),
            *(f"[hpc]peer_to_peer: {each}" for each in found.lacks),
        )
