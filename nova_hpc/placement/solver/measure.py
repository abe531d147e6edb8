# SPDX-License-Identifier: Apache-2.0
"""The worth of a finished choice: its level, its distance and its score.

Computed from the devices alone, by the definitions and not by the search, so
that tests can compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import HostNode, Nvlink
from nova_hpc.placement.profile import Limits
from nova_hpc.placement.solver.domains import TIDY, Item, Key, Members, Rank, node_region
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.spanning import LinkedSets
from nova_hpc_common.level import Distance, Level

#: The longest path in a domain of each rank.
DISTANCES: Final = (
    Distance.PIX, Distance.PXB, Distance.PHB, Distance.NODE, Distance.SYS, Distance.SYS,
)  # fmt: skip


@attrs.frozen
class Measured:
    """The level, the distance and the score of a choice of devices."""

    level: Level
    distance: Distance
    score: tuple[int, ...]


def measure_choice(
    problem: SearchProblem,
    links: LinkedSets,
    groups: Sequence[tuple[Members, int | None]],
    cells: Mapping[int, int],
) -> Measured:
    """Measure groups of devices, each with its guest cell.

    The parts of the score, the most important first:

    1. the widest level of a group with its cell;
    2. groups that are not exactly a legal NVLink set, if NVLink is requested;
    3. the longest distance inside a group;
    4. the spread: the sum of the ranks of all groups with their cells;
    5. the damage, and the groups that later servers lose (see :mod:`nova_hpc.placement.profile`);
    6. devices left over in touched domains;
    7. crowding: the sum of the squared numbers of devices taken from each pool;
    8. free devices that remain;
    9. aliases that the taken devices could serve.
    """
    nodes = {node.id: node for node in problem.site.nodes}
    widest, far, spread, misses = Rank.PIX, Rank.PIX, 0, 0
    wanted = problem.request.nvlink is not Nvlink.NONE
    legal = {frozenset(item.id for item in items) for items in links.sets}
    used: dict[str, int] = {}
    tidy_taken: dict[str, int] = {}
    for built, cell in groups:
        rank = _common_rank(built)
        far = max(far, rank)
        if cell is not None:
            node = nodes[cells[cell]]
            for part in built:
                rank = max(rank, _rank_added_by_node(part.item, node))
        widest = max(widest, rank)
        spread += rank
        linked = [part.item.id for part in built if part.index in links.names]
        if wanted and (frozenset(linked) not in legal or len(set(linked)) != len(linked)):
            misses += 1
        for part in built:
            used[part.item.id] = used.get(part.item.id, 0) + 1
            if part.index in problem.countable:
                tidy_taken[part.item.id] = tidy_taken.get(part.item.id, 0) + 1
    crowd = sum(count * count for count in used.values())
    spare = sum(item.free for item in problem.site.items) - sum(used.values())
    score = (
        int(widest.level),
        misses,
        int(DISTANCES[far]),
        spread,
        *_measure_damage(problem, used, cells),
        _count_left_over(problem, tidy_taken),
        crowd,
        spare,
        sum(part.item.aliases for built, _ in groups for part in built),
    )
    return Measured(widest.level, DISTANCES[far], score)


def _common_rank(built: Members) -> Rank:
    first = built[0].item
    if len(built) == 1:
        return Rank.PIX
    return max(first.rank_to(part.item) for part in built[1:])


def _rank_added_by_node(item: Item, node: HostNode) -> Rank:
    """Return the rank at which a device and a guest cell on this node share a domain."""
    if item.region(Rank.NUMA) == node_region(node, Rank.NUMA):
        return Rank.PIX  # the cell is no farther than the other devices
    if item.region(Rank.SOCKET) == node_region(node, Rank.SOCKET):
        return Rank.SOCKET
    return Rank.HOST


def _measure_damage(
    problem: SearchProblem, used: Mapping[str, int], cells: Mapping[int, int]
) -> tuple[int, int]:
    """Count devices that later servers cannot use any more, and groups of them that are lost.

    Each real domain is measured before and after, and the differences are added up.

    :param used: pool id -> number of devices that the choice takes.
    :param cells: guest cell -> NUMA node.
    """
    profile = problem.profile
    if not profile.shapes:
        return 0, 0
    labels = len(profile.labels)
    free: dict[tuple[Level, Key], list[int]] = {}
    left: dict[tuple[Level, Key], list[int]] = {}
    for item in (*problem.site.items, *problem.site.rest):
        label = problem.label[item.id]
        if label < 0:
            continue
        for level in Level:
            key = item.keys[Rank.of(level)]
            if key[0] != level.word:
                continue
            have = free.setdefault((level, key), [0] * labels)
            after = left.setdefault((level, key), [0] * labels)
            have[label] += item.free
            after[label] += item.free - used.get(item.id, 0)
    nodes = {("numa", str(node.id)): node for node in problem.site.nodes}
    cell_on = {cells[cell.id]: cell for cell in problem.request.cells}
    open_before, open_after = problem.open
    unusable = lost = 0
    for (level, key), have in free.items():
        unusable += profile.usable(level, have, open_before)
        unusable -= profile.usable(level, left[level, key], open_after)
        before: Limits | None = None
        after_: Limits | None = None
        if profile.limited and level is Level.NUMA and key in nodes:
            node = nodes[key[0], key[1]]
            before = profile.limits_of(node)
            after_ = profile.limits_of(node, cell_on.get(node.id))
        elif level is Level.HOST:
            before, after_ = problem.host_limits
        lost += profile.count(level, have, before)
        lost -= profile.count(level, left[level, key], after_)
    return unusable, lost


def _count_left_over(problem: SearchProblem, taken: Mapping[str, int]) -> int:
    """Count the devices left over in the small domains that the choice touches."""
    mask = sum(1 << i for i in problem.countable)
    left: dict[tuple[Rank, Key], int] = {}
    touched = set()
    for item in problem.site.items:
        for rank in TIDY:
            key = item.keys[rank]
            if key[0] == rank.level.word and item.kind & mask:
                left[rank, key] = left.get((rank, key), 0) + item.free
                if taken.get(item.id):
                    left[rank, key] -= taken[item.id]
                    touched.add((rank, key))
    return sum(left[where] for where in touched)
