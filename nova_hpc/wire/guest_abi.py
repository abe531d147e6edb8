"""Which tree a server was started with, as it is stored with the server.

A guest's hardware must not change below it, so the version of the rules that
made it is kept, and every later start uses that version.
"""

from __future__ import annotations

import enum
import json
from typing import Final

import attrs

#: The version that new servers get.
CURRENT: Final = 1
#: All versions that this release can make.
KNOWN: Final = (1,)

#: Longest value of instance system metadata, in bytes.
MAX_BYTES: Final = 255


class Mode(enum.Enum):
    """The words of ``hpc:guest_topology``."""

    MIRROR = "mirror"
    NUMA = "numa"
    FLAT = "flat"


class AbiError(ValueError):
    """A stored text that this release must not act on; it says the cure."""


@attrs.frozen
class Abi:
    """The rules that made a guest's tree."""

    mode: Mode
    #: Cliques are shown to GPUs.
    clique: bool = False
    version: int = CURRENT

    def dumps(self) -> str:
        """The text to store, at most MAX_BYTES bytes of ASCII."""
        return json.dumps(
            {"v": self.version, "mode": self.mode.value, "clique": int(self.clique)},
            separators=(",", ":"),
        )


def loads(text: object) -> Abi | None:
    """Read a stored text.

    :returns: None where there is none: a server that was started without.
    :raises AbiError: it is damaged, or of a newer release.
    """
    if text is None:
        return None
    try:
        if not isinstance(text, str) or len(text) > MAX_BYTES:
            raise ValueError
        data = json.loads(text)
        version = data["v"]
        if type(version) is not int:  # true == 1 in Python, but is no version
            raise ValueError
        if version not in KNOWN:
            known = ", ".join(map(str, KNOWN))
            raise AbiError(
                f"The server's virtual hardware is of version {version}, and this release of "
                f"nova-hpc makes {known}: start it with the release that it was started with, "
                "or a newer one."
            )
        return Abi(version=version, mode=Mode(data["mode"]), clique=bool(data["clique"]))
    except AbiError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        raise AbiError(
            "The record of the server's virtual hardware (hpc_guest_abi) is damaged: it must be "
            "repaired before the server can start."
        ) from None
