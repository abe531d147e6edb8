# SPDX-License-Identifier: Apache-2.0
"""Set ports of PCIe switches for a service that is not root: by oslo.privsep.

In the same daemon as :mod:`virt_driver_patches.privileged`, so that one entry
of rootwrap serves both. Nothing goes in: what is wished the daemon reads in its own
configuration, and what is written is computed there.
"""

from __future__ import annotations

from pathlib import Path

from nova_hpc.tenancy.peer import acs_registers
from nova_hpc.tenancy.peer.acs_registers import PeerOutcome
from nova_hpc.topology.peer_wish import PeerWish
from virt_driver_patches.privileged import SettingsError, default, read_helper_settings


@default.entrypoint
def _apply_wish_in_helper() -> tuple[str, list[str], dict[str, str], list[str]]:
    own = read_helper_settings()
    outcome = acs_registers.apply_peer_wish(own.root, PeerWish(own.peer_to_peer))
    return own.peer_to_peer, list(outcome.made), dict(outcome.failed), list(outcome.lacks)


def apply_wish_by_helper(root: Path, wish: PeerWish) -> PeerOutcome:
    """As :func:`nova_hpc.tenancy.peer.acs_registers.apply_peer_wish`; an error without answer.

    :param root: the daemon's own; it is not told.
    """
    word, made, failed, lacks = _apply_wish_in_helper()
    if word != wish.value:
        raise SettingsError(
            f"the privileged helper goes by [hpc]peer_to_peer = {word}, and this service by "
            f"{wish.value}: restart nova-compute"
        )
    return PeerOutcome(tuple(made), dict(failed), tuple(lacks))
