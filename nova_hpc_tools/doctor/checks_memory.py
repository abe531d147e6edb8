# SPDX-License-Identifier: Apache-2.0
"""Faults of a node's memory for segments that servers share. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.placement.segment_shape import MIB
from nova_hpc_tools.site.cures import RESTART_COMPUTE, DoctorCure, place_option
from nova_hpc_tools.site.findings import DoctorFinding

_RESTART: Final = DoctorCure.of(", and ", RESTART_COMPUTE, ".")


@attrs.frozen
class SharedMemoryFacts:
    """The configured shared memory of a node, and the memory behind it."""

    #: NUMA node -> bytes of ``[hpc]shared_memory_mb``.
    pools: Mapping[int, int] = attrs.field(factory=dict, hash=False)
    #: ``[hpc]shared_memory_dir``.
    folder: str = ""
    #: ``[DEFAULT]reserved_host_memory_mb``.
    reserved_mib: int = 0
    #: Size in bytes of the file system that the directory is, or would be, on; None if unknown,
    #: or if the tmpfs has the default size of half of memory.
    room: int | None = None
    #: Its type; None if unknown.
    filesystem: str | None = None
    #: NUMA nodes that the option names and that the host lacks.
    absent: tuple[int, ...] = ()
    #: ``[compute]cpu_dedicated_set`` is set.
    has_dedicated: bool = True


def check_shared_memory(facts: SharedMemoryFacts) -> Iterator[DoctorFinding]:
    """Find faults of the shared memory; a node without such memory has none."""
    total = sum(facts.pools.values())
    for node in facts.absent:
        yield DoctorFinding(
            "shared-absent",
            f"[hpc]shared_memory_mb names NUMA node {node}, which the host has not.",
            DoctorCure.of("Take it out of ", place_option("hpc", "shared_memory_mb"), _RESTART),
        )
    if not total:
        return
    if total > facts.reserved_mib * MIB:
        yield DoctorFinding(
            "shared-reserved",
            f"[hpc]shared_memory_mb gives {total // MIB} MiB, and "
            f"[DEFAULT]reserved_host_memory_mb is {facts.reserved_mib}.",
            DoctorCure.of(
                "Set ",
                place_option("DEFAULT", "reserved_host_memory_mb"),
                f" to {total // MIB} and the host's own needs",
                _RESTART,
            ),
        )
    if facts.filesystem not in (None, "tmpfs"):
        yield DoctorFinding(
            "shared-tmpfs",
            f"{facts.folder} is on {facts.filesystem}, and it has to be on a tmpfs.",
            DoctorCure.of(
                "Set ",
                place_option("hpc", "shared_memory_dir"),
                " to a directory on a tmpfs",
                _RESTART,
            ),
        )
    elif facts.room is not None and facts.room < total:
        yield DoctorFinding(
            "shared-tmpfs",
            f"The tmpfs of {facts.folder} has {facts.room // MIB} MiB, and "
            f"[hpc]shared_memory_mb gives {total // MIB}.",
            f"Mount it with size={total // MIB}M or more, now and in /etc/fstab.",
        )
    if not facts.has_dedicated:
        yield DoctorFinding(
            "shared-cpus",
            "[hpc]shared_memory_mb is set, and [compute]cpu_dedicated_set is not.",
            DoctorCure.of("Set ", place_option("compute", "cpu_dedicated_set"), _RESTART),
        )
