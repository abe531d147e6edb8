# SPDX-License-Identifier: Apache-2.0
"""Memory and CPUs of the host that no server has, for a service VM. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

#: MiB of memory that must remain beside a service VM, including QEMU's own.
_SPARE: Final = 128
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s*(\d+) kB$", re.MULTILINE)


class ShortError(Exception):
    """The host cannot spare a service VM now; the text names the lack and the cure."""


def check_spare_memory(meminfo: str, memory_mib: int) -> None:
    """Check that the host has the memory of one more service VM.

    Linux does not count hugepages as available, so the servers' hugepages are excluded.

    :param meminfo: the text of ``/proc/meminfo``.
    :raises ShortError: it has too little, or the text does not contain it.
    """
    match = _AVAILABLE.search(meminfo)
    if match is None:
        raise ShortError("/proc/meminfo of this node does not say how much memory is available")
    available = int(match[1]) // 1024
    if available < memory_mib + _SPARE:
        raise ShortError(
            f"the node has {available} MiB of memory left for itself, and the service VM that "
            f"cleans devices needs {memory_mib} and {_SPARE} more: raise "
            "[DEFAULT]reserved_host_memory_mb, or lower [hpc]clean_vm_memory"
        )


def spare_cpus_of(
    online: Collection[int], dedicated: Collection[int], shared: Collection[int]
) -> frozenset[int]:
    """Return the host's CPUs for service VMs.

    :param online: CPUs that are online.
    :param dedicated: ``[compute]cpu_dedicated_set``: never used.
    :param shared: ``[compute]cpu_shared_set``: used only if no other CPU is left.
    :raises ShortError: all belong to servers.
    """
    spare = frozenset(online) - frozenset(dedicated)
    if not spare:
        raise ShortError(
            "all CPUs of this node are dedicated to servers: leave one out of "
            "[compute]cpu_dedicated_set for the service VM that cleans devices"
        )
    return spare - frozenset(shared) or spare
