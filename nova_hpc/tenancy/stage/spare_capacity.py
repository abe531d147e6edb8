# SPDX-License-Identifier: Apache-2.0
"""Memory and CPUs that the host can spare for a service VM, because no server has them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

#: MiB that the host keeps for itself beside a service VM, and what QEMU itself takes.
_SPARE: Final = 128
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s*(\d+) kB$", re.MULTILINE)


class ShortError(Exception):
    """The host cannot spare a service VM now; the text says what it lacks, and the cure."""


def check_spare_memory(meminfo: str, memory_mib: int) -> None:
    """Whether the host has the memory of one more service VM.

    Hugepages are not part of what Linux calls available, so those of servers do not count.

    :param meminfo: the text of ``/proc/meminfo``.
    :raises ShortError: it has not, or does not say.
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
    """The host's CPUs for service VMs.

    :param online: CPUs that are online.
    :param dedicated: ``[compute]cpu_dedicated_set``: never used.
    :param shared: ``[compute]cpu_shared_set``: used where nothing else is left.
    :raises ShortError: all belong to servers.
    """
    spare = frozenset(online) - frozenset(dedicated)
    if not spare:
        raise ShortError(
            "all CPUs of this node are dedicated to servers: leave one out of "
            "[compute]cpu_dedicated_set for the service VM that cleans devices"
        )
    return spare - frozenset(shared) or spare
