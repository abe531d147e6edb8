# SPDX-License-Identifier: Apache-2.0
"""A node's processors as ``/proc/cpuinfo`` names them."""

from __future__ import annotations

import re
from typing import Final

from nova_hpc.topology.files import FileError, FileTree

_BITS: Final = re.compile(r"^address sizes\s*:\s*(\d{1,2}) bits physical", re.ASCII | re.MULTILINE)


def physical_address_bits(tree: FileTree) -> int | None:
    """Read the width of the physical addresses of the processors, in bits (x86).

    A guest's processors cannot have more bits. None if unknown.
    """
    try:
        match = _BITS.search(tree.text("/proc/cpuinfo") or "")
    except FileError:
        return None
    return int(match[1]) if match else None
