# SPDX-License-Identifier: Apache-2.0
"""Set ports of PCIe switches for a service that is not root: by oslo.privsep.

In the same daemon as :mod:`virt_driver_patches.privileged`, so that one entry
of rootwrap serves both. A word goes in and nothing else: what is written is computed
on the other side.
"""

from __future__ import annotations

from pathlib import Path

from nova_hpc.tenancy.peer import write
from nova_hpc.tenancy.peer.write import Outcome
from nova_hpc.topology.peer_wish import Wish
from virt_driver_patches.privileged import default


@default.entrypoint
def _apply(root: str, wish: str) -> tuple[list[str], dict[str, str], list[str]]:
    found = write.apply(Path(root), Wish(wish))
    return list(found.made), dict(found.failed), list(found.lacks)


def apply(root: Path, wish: Wish) -> Outcome:
    """As :func:`nova_hpc.tenancy.peer.write.apply`; raises where the helper does not answer."""
    made, failed, lacks = _apply(str(root), wish.value)
    return Outcome(tuple(made), dict(failed), tuple(lacks))
