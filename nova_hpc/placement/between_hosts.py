# SPDX-License-Identifier: Apache-2.0
"""Comparison of hosts: which are equal for a request, and which is best.

On one host closer devices are always better. Between hosts that meet the request, the
remaining devices matter more: a server that accepts devices of one NUMA node should not
break a switch on another host only because that set is closer.

Two hosts have the same answer if they differ only in CPUs or pages that neither the request
nor the cloud's usual flavors could ever use. :func:`reduce_host` makes such hosts equal, so
that one answer serves for all of them. It removes two amounts:

* the surplus over everything that the request and the profile could use at once;
* the remainder after counting in *grains*. A grain is the largest amount of which the
  request and the shapes of the profile take whole multiples. The sum over the host keeps its
  number of grains.

The results of :func:`nova_hpc.placement.choose.choose_device_sets` stay the same. They depend
only on which cell fits on which node, on how many servers and groups of each shape still fit,
and on how much a node lacks for a cell.

An example with the default profile: the request is for two GPUs, ``hpc:affinity=numa``. Host
*a* has four free below one switch and offers two of these: level ``switch``, damage 8. Host *b*
has two below two switches of one root complex: level ``root``, damage 4. On one host the closer
pair would win. Between hosts both levels are within the requested one, so the ranks begin with
(2, 0, 8) and (2, 0, 4), and *b* is better: *a* keeps its four. Suppose a third host where nothing
was chosen, and a multiplier of 1.0. Packing then adds 1.0 to *b*, 0.5 to *a* and 0.0 to the third;
if the users' wishes prefer *a*, it adds 2.5 to *a* and 1.0 to *b*.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import DevicePool, FreeHost, HostNode, Request
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc_common.level import Level

#: Hosts are equally good if their damage differs by less than this part of a device; then
#: closer devices decide.
_PARTS = 25

#: Grains of unknown damage: more than any host can have.
_UNKNOWN: Final = 1 << 62

#: Number of leading parts of a rank that describe the server's devices; the others describe
#: the remaining devices of the host.
_GIVEN: Final = 2

#: More KiB than any host has.
_MEMORY: Final = 1 << 44

#: Weight of one place in the users' wishes, in units of the maximum that packing adds.
_WISH: Final = 2.0


def damage_grain_of(profile: Profile) -> int:
    """Return the step that damage to later servers is rounded to before hosts are compared.

    Damage is the weighted capacity that later servers lose. The result is in the units of a device
    set's score and at least 1.
    """
    return max(1, sum(shape.weight for shape in profile.shapes) // _PARTS)


def free_room_of(nodes: Iterable[HostNode]) -> int:
    """Combine a host's free dedicated CPUs and, after them, its free memory in pages in one number.

    The host with the least is taken among equal hosts, so that CPUs and memory are not used up
    beside GPUs that are free on many hosts at once. An unknown amount counts as zero.
    """
    host_nodes = list(nodes)
    cpus = sum(max(node.dedicated_cpus or 0, 0) for node in host_nodes)
    memory = sum(size * count for node in host_nodes for size, count in (node.pages or {}).items())
    return cpus * _MEMORY + min(max(memory, 0), _MEMORY - 1)


def rank_device_set(
    score: Sequence[int], asked: Level, coarse: int, measured: bool = True, free: int = 0
) -> tuple[int, ...]:
    """Return the sort key of a host among hosts for one server; a smaller tuple is a better host.

    :param score: of the host's device set, as
        :attr:`nova_hpc.placement.model.DeviceSet.score`.
    :param asked: the level that the flavor names.
    :param coarse: see :func:`damage_grain_of`.
    :param measured: whether the damage of the set is known. A set with unknown damage
        comes after all others of its level.
    :param free: of the host, as :func:`free_room_of`.
    :returns: the level if it is wider than requested, NVLink misses, damage; then level,
        distance, spread and leftovers; then the rest of the score, and *free*.
    """
    level, misses, distance, spread, damage, groups, left, *rest = score
    wide = max(level, asked)
    grains = -(-damage // coarse) if measured else _UNKNOWN
    return (wide, misses, grains, level, distance, spread, left, groups, *rest, free)


def packing_scores_of(
    ranks: Sequence[tuple[int, ...] | None],
    multipliers: Sequence[float],
    wishes: Sequence[float],
) -> list[float]:
    """Return the amounts that packing adds to hosts' weights; the users' wishes outweigh them.

    The best rank gets the host's multiplier and the worst zero, like Nova's normalised weights
    (``weights.py:25-53`` of release 34). A host that is better by the wishes is also better by the
    sum, whatever the ranks are. Hosts whose ranks differ only in the last part share half of a
    place: so the other parts keep their distance with any number of hosts.

    :param ranks: of :func:`rank_device_set`; None if nothing was chosen on the host, which
        then comes last.
    :param multipliers: of packing, for each host; a negative one spreads.
    :param wishes: of each host, higher is better; all are equal if there are none.
    :returns: one amount for each host, in the order of *ranks*.
    """
    sorted_ranks = sorted({rank for rank in ranks if rank is not None})
    place: dict[tuple[int, ...], float] = {}
    count = 0
    for _, alike in itertools.groupby(sorted_ranks, key=lambda rank: rank[:-1]):
        members = list(alike)
        place |= {rank: count + number / 2 / len(members) for number, rank in enumerate(members)}
        count += 1
    places = [count if rank is None else place[rank] for rank in ranks]
    first, last = min(places, default=0), max(places, default=0)
    span = last - first or 1
    step = _WISH * max((abs(multiplier) for multiplier in multipliers), default=0.0)
    # Wishes are sums of products: smaller differences are rounding errors.
    rounded = [round(wish, 9) for wish in wishes]
    steps = {wish: step * number for number, wish in enumerate(sorted(set(rounded)))}
    return [
        (last - position) / span * multiplier + steps[wish]
        for position, multiplier, wish in zip(places, multipliers, rounded, strict=True)
    ]


def mix_best_ranks(
    ranks: Sequence[tuple[int, ...] | None],
    wishes: Sequence[float],
    names: Sequence[str],
    among: int,
    seed: str,
) -> list[tuple[int, ...] | None]:
    """Reorder the best *among* hosts by *seed*, by exchanging their ranks.

    Schedulers that decide at the same moment then choose different hosts. Only the hosts
    that the users' wishes prefer are mixed, and of these only hosts whose level and NVLink
    sets are as good as the best one's. All others stay behind them in their order. If more
    than *among* hosts are equal, the seed also decides which of them are mixed.

    :param ranks: of :func:`rank_device_set`; None if nothing was chosen on the host.
    :param wishes: of each host, higher is better.
    :param names: of the hosts, each unique.
    :param among: 1 mixes nothing.
    """
    mixed_ranks = list(ranks)
    top = max((round(wish, 9) for wish in wishes), default=0.0)
    best_wished = {
        index: rank
        for index, rank in enumerate(ranks)
        if rank is not None and round(wishes[index], 9) == top
    }
    if among <= 1 or len(best_wished) <= 1:
        return mixed_ranks
    given = min(best_wished.values())[:_GIVEN]

    def turn(index: int) -> bytes:
        return hashlib.blake2b(f"{seed}/{names[index]}".encode(), digest_size=8).digest()

    alike = [index for index, rank in best_wished.items() if rank[:_GIVEN] == given]
    alike.sort(key=lambda index: (best_wished[index], turn(index)))
    for number, index in enumerate(sorted(alike[:among], key=turn)):
        # Below every possible damage, so in front.
        mixed_ranks[index] = (*given, -1, number)
    return mixed_ranks


@attrs.frozen
class _ResourceUse:
    """The possible uses of one resource of a host: dedicated CPUs, or pages of one size."""

    #: Needs of the guest's cells.
    cells: tuple[int, ...]
    #: The maximum that the cells and later servers of any one shape take together.
    most: int
    #: Every amount that is taken is a multiple of this; 0 if nothing is ever taken.
    grain: int


def reduce_host(request: Request, host: FreeHost, profile: Profile) -> FreeHost:
    """Reduce a host's free CPUs and pages to equally useful amounts, so that more hosts are equal.

    The function is idempotent, and returns the same object if nothing changes. Unknown amounts stay
    unknown. A host that contradicts itself (a node twice) is returned as it is, because the solver
    refuses it.
    """
    if not host.nodes or len({node.id for node in host.nodes}) < len(host.nodes):
        return host
    shapes = _list_possible_shapes(profile.shapes, host.pools)
    # The order of the input must not matter.
    nodes = sorted(host.nodes, key=lambda node: node.id)
    cpus = _build_use(
        (cell.dedicated_cpus for cell in request.cells),
        ((shape.cpus, shape, servers, groups) for shape, servers, groups in shapes),
    )
    counts = _count_in_grains([node.dedicated_cpus for node in nodes], cpus)
    sizes = {cell.page_kib for cell in request.cells} | {shape.page_kib for shape, _, _ in shapes}
    pages: list[dict[int, int]] = [{} for _ in nodes]
    for size in sorted(size for size in sizes if size):
        use = _build_use(
            (-(-cell.memory_kib // size) for cell in request.cells if cell.page_kib == size),
            (
                (-(-shape.memory_kib // size), shape, servers, groups)
                for shape, servers, groups in shapes
                if shape.page_kib == size
            ),
        )
        size_counts = _count_in_grains(
            [None if node.pages is None else node.pages.get(size, 0) for node in nodes], use
        )
        for kept, count in zip(pages, size_counts, strict=True):
            if count:
                kept[size] = count
    made = tuple(
        HostNode(node.id, node.socket, count, None if node.pages is None else kept)
        for node, count, kept in zip(nodes, counts, pages, strict=True)
    )
    return host if _are_same_nodes(made, host.nodes) else attrs.evolve(host, nodes=made)


def _are_same_nodes(first: Sequence[HostNode], second: Sequence[HostNode]) -> bool:
    return all(a == b for a, b in zip(first, second, strict=True))


def _list_possible_shapes(
    shapes: Iterable[FlavorShape], pools: Iterable[DevicePool]
) -> list[tuple[FlavorShape, int, int]]:
    """List shapes that fit the devices at all, with the maximum of their servers and groups."""
    free: dict[str | None, int] = {}
    for pool in pools:
        free[pool.role] = free.get(pool.role, 0) + max(pool.free, 0)
    # A device without a role may count as any of them.
    unknown = free.get(None, 0)
    possible = []
    for shape in shapes:
        if not shape.weight or not shape.counts or shape.groups < 1:
            continue
        groups = min(
            (free.get(role, 0) + unknown) // max(count, 1) for role, count in shape.counts.items()
        )
        if groups and (shape.cpus > 0 or shape.memory_kib > 0):
            possible.append((shape, groups // shape.groups, groups))
    return possible


def _build_use(
    cells: Iterable[int], shapes: Iterable[tuple[int, FlavorShape, int, int]]
) -> _ResourceUse:
    """Collect possible uses of a resource: needs, maximum, and the grain that divides all needs.

    :param cells: needs of the guest's cells.
    :param shapes: need of a server, its shape, and the maximum of its servers and groups.
    """
    needs = tuple(cells)
    most, grain = 0, math.gcd(*needs)
    for need, shape, servers, groups in shapes:
        if need > 0:
            share = -(-need // shape.groups)
            # Enough for one server matters even if no shape's devices are left; below the
            # host, groups count with their share.
            most = max(most, need * max(servers, 1), share * groups)
            grain = math.gcd(grain, share, need)
    return _ResourceUse(needs, most + sum(needs), grain)


def _count_in_grains(free: Sequence[int | None], use: _ResourceUse) -> list[int | None]:
    """Reduce the free amounts of all nodes to whole grains.

    For example, with a grain of 4 nodes with 6 and 7 free CPUs become 6 and 6. Each still has one
    grain by itself, and the host has three.
    """
    if not use.grain:
        # The resource is never used: only an overdrawn node may be reported.
        return [count if count is None or count < 0 else 0 for count in free]
    least = max(use.cells, default=0)
    counts = [None if count is None else min(count, use.most) for count in free]
    # The miss reports in numbers how much a node lacks for a cell.
    whole = [i for i, count in enumerate(counts) if count is not None and count >= max(least, 1)]
    if not whole:
        return counts
    # The sum limits nothing if one node has enough for everything.
    enough = any(counts[i] == use.most for i in whole)
    before = 0 if enough else sum(max(count or 0, 0) for count in counts)
    for i in whole:
        counts[i] = _zero_if_unknown(counts[i]) // use.grain * use.grain
    base = sum(max(count or 0, 0) for count in counts)
    # The remainders of several nodes together may be another grain of the host.
    more, extra = divmod(max(before // use.grain * use.grain - base, 0), len(whole))
    for number, i in enumerate(whole):
        counts[i] = _zero_if_unknown(counts[i]) + more + (number < extra)
    return counts


def _zero_if_unknown(count: int | None) -> int:
    return count or 0
