# SPDX-License-Identifier: Apache-2.0
"""Flavor keys about a server group, which services judge and clients show."""

from __future__ import annotations

import re
from typing import Final

#: How near the members of a server group are; these two keys need no device.
FABRIC: Final = "hpc:fabric"
FABRIC_POLICY: Final = "hpc:fabric_policy"
#: MiB of memory that the server shares with members of its server group on its host; these
#: two keys need no device either.
SHARED_MEMORY: Final = "hpc:shared_memory"
SHARED_MEMORY_POLICY: Final = "hpc:shared_memory_policy"

#: The MiB of :data:`SHARED_MEMORY`: an even number within these limits.
SHARED_LEAST, SHARED_MOST = 2, 4096
_SHARED_TEXT: Final = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


def parse_shared_mib(value: str) -> int | None:
    """Parse a value of :data:`SHARED_MEMORY`; None if no node accepts it."""
    mib = int(value) if _SHARED_TEXT.fullmatch(value) else 0
    return mib if mib % 2 == 0 and SHARED_LEAST <= mib <= SHARED_MOST else None
