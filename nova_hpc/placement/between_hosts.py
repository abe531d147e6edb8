"""Which of several hosts is best for a server, by the scores of their device sets.

On one host closer devices are always better. Between hosts that give what was
asked for, it matters more what is left for others: a server that may be spread
over a NUMA node should not break a switch on another host for being closer.
"""

from __future__ import annotations

from collections.abc import Sequence

from nova_hpc.placement.profile import Profile
from nova_hpc.topology.level import Level

#: Hosts whose damage differs by less than this part of a device are equally
#: good: then closer devices are worth more.
_PARTS = 25


def grain(profile: Profile) -> int:
    """Damage that makes no difference, in the units of a score."""
    return max(1, sum(shape.weight for shape in profile.shapes) // _PARTS)


def rank(score: Sequence[int], asked: Level, coarse: int) -> tuple[int, ...]:
    """The place of a host among others, smaller is better.

    :param score: of the device set that the host would give, as
        :attr:`nova_hpc.placement.model.DeviceSet.score`.
    :param asked: the level that the flavor names.
    :param coarse: see :func:`grain`.
    :returns: the level if it is wider than asked, NVLink misses, damage; then level,
        distance, spread and leftovers; then the rest of the score.
    """
    level, misses, distance, spread, damage, groups, left, *rest = score
    wide = max(level, asked)
    return (wide, misses, -(-damage // coarse), level, distance, spread, left, groups, *rest)
