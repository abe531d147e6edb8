"""What the bounded choice takes for damage: sizes 2, 4, 8 and 16, by counts.

A domain with *n* free devices can still hold ``n // s`` groups of *s* devices.
This is the damage module's measure for one fixed profile, simple enough for a
table that knows nothing but a number of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import Item, Rank

SIZES: Final = (2, 4, 8, 16)

#: The domains that are worth keeping whole.
RANKS: Final = (Rank.SWITCH, Rank.ROOT, Rank.NUMA, Rank.HOST)

#: (sum of the ranks of the groups, damage, devices left over in the domains
#: that were touched, crowding of adapters that give several functions)
Cost = tuple[int, int, int, int]

ZERO: Final[Cost] = (0, 0, 0, 0)


def plus(one: Cost, other: Cost) -> Cost:
    """Sum of two costs."""
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


def loss(free: int, taken: int) -> int:
    """Damage to one domain with *free* devices when *taken* of them go."""
    return sum(size * (free // size - max(free - taken, 0) // size) for size in SIZES)


def countable(demand: Demand, items: Iterable[Item]) -> tuple[int, ...]:
    """Indices of the names that are served by devices given one by one."""
    plenty = 0
    for item in items:
        if item.free > 1:
            plenty |= item.kind
    return tuple(i for i in range(len(demand.names)) if not plenty >> i & 1)


def planned(
    demand: Demand, counted: Iterable[int], caps: Mapping[int, int], groups: int, rank: Rank
) -> Cost:
    """Cost, in one domain with these capacities, of placing *groups* in it."""
    if not groups or rank not in RANKS:
        return ZERO
    damage = left = 0
    for index in counted:
        free = demand.serving(caps, index)
        taken = min(groups * demand.per_group[index], free)
        damage += loss(free, taken)
        left += free - taken
    # Devices left over on the host are the same for every choice on it.
    return (0, damage, left if rank is not Rank.HOST else 0, 0)


def crowding(demand: Demand, counted: Iterable[int], items: Iterable[Item], groups: int) -> Cost:
    """Cost of several functions of one adapter in one server.

    The sum of the squares of how many functions each adapter gives, if they
    are spread evenly over the adapters among *items*.
    """
    total = 0
    for index in set(range(len(demand.names))) - set(counted):
        adapters = sum(1 for item in items if item.kind >> index & 1)
        if adapters:
            each, more = divmod(groups * demand.per_group[index], adapters)
            total += adapters * each * each + more * (2 * each + 1)
    return (0, 0, 0, total)
