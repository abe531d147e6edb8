"""What a cloud usually sells: the servers that later placements must still fit.

A profile is the yardstick of damage: of two device sets that serve a request
equally well, the better one is that which leaves more room for these shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.topology.level import Level


def _plain(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


@attrs.frozen
class Shape:
    """One flavor, as later requests would ask for it."""

    #: role -> devices in one group
    counts: Mapping[str, int] = attrs.field(converter=_plain, hash=False)
    #: How many such groups the server has.
    groups: int = 1
    #: The widest level that its groups accept.
    level: Level = Level.HOST
    #: Relative frequency; only the proportions matter.
    weight: int = 1
    #: Dedicated CPUs of the whole server; 0: not limited by them.
    cpus: int = 0
    #: Memory of the whole server in KiB of hugepages of *page_kib*; 0: not limited.
    memory_kib: int = 0
    page_kib: int | None = None


@attrs.frozen
class Profile:
    """The shapes of a cloud, with their frequencies."""

    shapes: tuple[Shape, ...] = ()


#: Where nothing is known: one, two, four, eight and sixteen GPUs, each worth
#: its size, so that a lost group of eight weighs as much as four lost pairs.
DEFAULT: Final = Profile(tuple(Shape({"gpu": size}, level=Level.HOST) for size in (1, 2, 4, 8, 16)))
