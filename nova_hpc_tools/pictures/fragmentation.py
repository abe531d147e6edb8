# SPDX-License-Identifier: Apache-2.0
"""The sets that fragmentation leaves in a cloud, as a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from nova_hpc_common.level import Level
from nova_hpc_tools.pictures.model import HostTile, Largest

#: Sizes of sets that are counted, as far as some host has so many.
_SIZES: Final = (1, 2, 4, 8, 16, 32)


@attrs.frozen
class FitTable:
    """A table of the device sets of one role that still fit, with a row for each level."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tabulate_node_sets(largest: Largest, empty: bool) -> tuple[FitTable, ...]:
    """Build the table of the largest device sets of one node, by role and level; () for none.

    :param empty: True for a node whose servers are unknown.
    """
    if not largest:
        return ()
    head = ("role", *(level.word for level in Level))
    rows = tuple(
        (role, *(str(levels[level]) for level in Level)) for role, levels in largest.items()
    )
    title = "Largest set of one server" + (" while the node is empty" if empty else " now")
    return (FitTable(title, head, rows),)


def tabulate_cloud_sets(hosts: Sequence[HostTile]) -> Iterator[FitTable]:
    """Yield a table for each role: by level the largest device set, and the hosts for each size."""
    open_hosts = [host for host in hosts if not host.out]
    for role in sorted({role for host in open_hosts for role in host.largest}):
        sizes: dict[Level, Counter[int]] = {level: Counter() for level in Level}
        for host in open_hosts:
            for level, number in host.largest.get(role, {}).items():
                sizes[level][number] += 1
        most = max((number for counts in sizes.values() for number in counts), default=0)
        steps = [size for size in _SIZES if size <= max(most, 1)]
        yield FitTable(
            f"{role}: sets that still fit",
            ("level", "largest", *(f"hosts with {size}" for size in steps)),
            tuple(
                (
                    level.word,
                    str(max(counts, default=0)),
                    *(
                        str(sum(count for number, count in counts.items() if number >= size))
                        for size in steps
                    ),
                )
                for level, counts in sizes.items()
            ),
        )
