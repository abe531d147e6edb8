# SPDX-License-Identifier: Apache-2.0
"""Facts about a node's memory for segments that servers share, for ``nova-hpc doctor``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from nova_hpc.tenancy.segments import segment_choice
from nova_hpc_tools.doctor.checks_memory import SharedMemoryFacts


def read_shared_memory_facts(
    root: Path | None, nodes: Collection[int], nova: Any, has_dedicated: bool
) -> SharedMemoryFacts:
    """Read the facts about shared memory; unreadable ones are unknown.

    :param root: the folder with the host's files; None if unknown.
    :param nodes: the host's NUMA nodes.
    :param nova: with groups ``[DEFAULT]`` and ``[hpc]``.
    :param has_dedicated: ``[compute]cpu_dedicated_set`` is set.
    """
    values = tuple(nova.hpc.shared_memory_mb)
    named = {int(value.partition(":")[0]) for value in values if ":" in value}
    filesystem, room = (
        (None, None) if root is None else _read_room(root, nova.hpc.shared_memory_dir)
    )
    return SharedMemoryFacts(
        pools=segment_choice.read_pools(values, nodes),
        folder=nova.hpc.shared_memory_dir,
        reserved_mib=nova.reserved_host_memory_mb,
        room=room,
        filesystem=filesystem,
        absent=tuple(sorted(named - set(nodes))) if nodes else (),
        has_dedicated=has_dedicated,
    )


def _read_room(root: Path, folder: str) -> tuple[str | None, int | None]:
    """Read type and size in bytes of the file system that has a directory, or would have it.

    :returns: None for each of them if it is unknown.
    """
    try:
        lines = (root / "proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None, None
    best: tuple[int, str | None, int | None] = (0, None, None)
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, words = before.split(), after.split()
        if len(fields) < 5 or len(words) < 3:
            continue
        point = fields[4].rstrip("/")
        if f"{folder}/".startswith(f"{point}/") and len(fields[4]) >= best[0]:
            best = len(fields[4]), words[0], _size_option_of(words[2])
    return best[1], best[2]


def _size_option_of(options: str) -> int | None:
    """Return the bytes in ``size=`` of a tmpfs; None without it: half of memory, or no limit.

    The kernel shows the option in KiB, with the suffix ``k``.
    """
    for option in options.split(","):
        name, _, value = option.partition("=")
        if name == "size" and value.endswith("k") and value[:-1].isdecimal():
            return int(value[:-1]) << 10
    return None
