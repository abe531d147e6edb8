# SPDX-License-Identifier: Apache-2.0
"""The tree that a server was started with, as it is stored with the server.

A guest's hardware must not change below it, so the version of the rules that
made it is kept, and every later start uses that version.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from nova_hpc.wire.version import (
    LONGEST_METADATA,
    LaterError,
    WireDocument,
    WireError,
    write_compact_json,
)

GUEST_ABI: Final = WireDocument(
    name="guest ABI",
    lives="system_metadata['hpc_guest_abi'] of the server",
    writer="nova_hpc.wire.guest_abi:Abi.dumps",
    readers=("nova_hpc.wire.guest_abi:read_guest_abi",),
    # 2: a flat guest has room for the memory of its devices.
    version=2,
    reads=(1, 2),
    key="v",
    limit=LONGEST_METADATA,
)

#: The key in the server's ``system_metadata``.
KEY: Final = "hpc_guest_abi"


class TopologyMode(enum.Enum):
    """The words of ``hpc:guest_topology``."""

    MIRROR = "mirror"
    NUMA = "numa"
    FLAT = "flat"


class AbiError(WireError):
    """A stored text that this release must not act on; it says the cure."""


@attrs.frozen
class Abi:
    """The rules that made a guest's tree."""

    mode: TopologyMode
    #: Cliques are shown to GPUs.
    clique: bool = False
    version: int = GUEST_ABI.version

    def dumps(self) -> str:
        """The text to store: ASCII, within the limit of :data:`GUEST_ABI`."""
        return write_compact_json(
            {GUEST_ABI.key: self.version, "mode": self.mode.value, "clique": int(self.clique)}
        )


def read_guest_abi(text: object) -> Abi | None:
    """Read a stored text.

    :returns: None where there is none: a server that was started without.
    :raises AbiError: it is damaged, or of a newer release.
    """
    if text is None:
        return None
    try:
        data = GUEST_ABI.load(text)
        return Abi(
            version=data[GUEST_ABI.key],
            mode=TopologyMode(data["mode"]),
            clique=bool(data["clique"]),
        )
    except LaterError as error:
        raise AbiError(
            f"The server's virtual hardware is of version {error.version}, and this release of "
            f"nova-hpc makes {', '.join(map(str, GUEST_ABI.reads))}: start it with the release "
            "that it was started with, or a newer one."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise AbiError(
            f"The record of the server's virtual hardware ({KEY}) is damaged: it must be "
            "repaired before the server can start."
        ) from None
