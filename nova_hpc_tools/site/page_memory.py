# SPDX-License-Identifier: Apache-2.0
"""Whether the hugepages of a NUMA node leave memory for the host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nova_hpc.topology.model import NumaNode
from nova_hpc_tools.wire.node_declaration import page_kib

_GIB: Final = 1 << 20  # in KiB
#: The memory that the host keeps of each NUMA node; of a smaller node it keeps an eighth.
_KEPT_KIB: Final = 2 * _GIB
_KEPT_PART: Final = 8


def explain_excess(numa: NumaNode, declared: Mapping[str, int]) -> str | None:
    """Explain why a NUMA node cannot have its hugepages; None if it can, or if unknown.

    :param declared: size -> pages; pages of other sizes keep their present number.
    """
    if numa.memory_kib is None:
        return None
    pages = {pool.size_kib: pool.total for pool in numa.hugepages}
    pages |= {page_kib(size): count for size, count in declared.items()}
    wanted = sum(size * count for size, count in pages.items())
    kept = min(_KEPT_KIB, numa.memory_kib // _KEPT_PART)
    if wanted <= numa.memory_kib - kept:
        return None
    return (
        f"all hugepages of NUMA node {numa.id} would be {_format_gib(wanted)} of its "
        f"{_format_gib(numa.memory_kib)} of memory, and the host keeps {_format_gib(kept)}"
    )


def _format_gib(kib: int) -> str:
    return f"{kib / _GIB:.1f} GiB"
