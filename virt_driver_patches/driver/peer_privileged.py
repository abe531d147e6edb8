# SPDX-License-Identifier: Apache-2.0
"""Set ports of PCIe switches for a service that is not root: by oslo.privsep.

In the same daemon as :mod:`virt_driver_patches.privileged`, so that one entry
of rootwrap serves both. Nothing goes in: what is wished the daemon reads in its own
configuration, and what is written is computed there.
"""

from __future__ import annotations

from pathlib import Path

from nova_hpc.tenancy.peer import write
from nova_hpc.tenancy.peer.write import Outcome
from nova_hpc.topology.peer_wish import Wish
from virt_driver_patches.privileged import SettingsError, default, settings


@default.entrypoint
def _apply() -> tuple[str, list[str], dict[str, str], list[str]]:
    own = settings()
    found = write.apply(own.root, Wish(own.peer_to_peer))
    return own.peer_to_peer, list(found.made), dict(found.failed), list(found.lacks)


def apply(root: Path, wish: Wish) -> Outcome:
    """As :func:`nova_hpc.tenancy.peer.write.apply`; raises where the helper does not answer.

    :param root: the daemon's own; it is not told.
    """
    word, made, failed, lacks = _apply()
    if word != wish.value:
        raise SettingsError(
            f"the privileged helper goes by [hpc]peer_to_peer = {word}, and this service by "
            f"{wish.value}: restart nova-compute"
        )
    return Outcome(tuple(made), dict(failed), tuple(lacks))
