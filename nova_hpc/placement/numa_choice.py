# SPDX-License-Identifier: Apache-2.0
"""The choice of host NUMA nodes for the guest's cells, once the devices are claimed.

The scheduler uses it before it offers devices, Nova's filter after that, and the node at
the claim. All of them order the choices by this one function of the request, the claimed
devices and the host, and take the first choice that has CPUs and pages. So they agree, and
the cells are beside the devices.

The groups of a request are alike. So only the set of nodes matters, and not which cell is
on which of them. Nodes without claimed devices differ only by their socket.

An example. Nodes 0 and 1 are of socket 0, nodes 2 and 3 of socket 1. A guest with two cells
has claimed two GPUs, a group each: one on node 0, one on node 2. The classes are node 0, node
2, the rest of socket 0 (node 1) and the rest of socket 1 (node 3). The tiers, the best first:

#. (0, 2): each GPU is on a cell's node. Place (0, 0, 0, 0).
#. (0, 3) and (1, 2): one GPU is beside a cell on the other node of its socket. (3, 0, 0, 4).
#. (1, 3): both are. (3, 0, 0, 8).
#. (0, 1) and (2, 3): one GPU has no cell on its socket. (4, 0, 0, 5).

A caller takes the first with CPUs and pages: if node 2 has none, (0, 3), and not (0, 1).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.judge import judge_claimed_devices
from nova_hpc.placement.model import DeviceSet, FreeHost, Request

#: Parts of a score that describe the place of the devices: level, NVLink misses, distance and
#: spread. The others describe the remaining resources of the host.
PLACE: Final = 4

#: Maximum of choices that are judged; no present host has more for one guest. Among more, the
#: choices with most of the claimed devices are judged.
MOST: Final = 128

#: Choices that are counted for that; further ones are ignored.
_COUNTED: Final = 20000


@attrs.frozen
class Tier:
    """Equally good choices of host NUMA nodes for the cells of a guest.

    Each choice takes one of the combinations in *ways*.
    """

    #: The place of the devices; None if the choice does not satisfy the request.
    place: tuple[int, ...] | None
    #: For each way: the number of nodes of each class; see :attr:`Tiers.classes`.
    ways: tuple[tuple[tuple[Hashable, int], ...], ...]


@attrs.frozen(eq=False)
class Tiers:
    """All choices of host NUMA nodes for the guest's cells, grouped into tiers, the best first."""

    request: Request
    host: FreeHost
    claimed: Mapping[str, Sequence[str]]
    #: Equal nodes, by class.
    classes: Mapping[Hashable, tuple[int, ...]]
    #: For a guest with one cell: the only node that has all devices, which is the nearest.
    sure: int | None = None

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], ...]]:
        """The choices of each tier in turn; only consumed tiers are judged."""
        if self.sure is not None:
            yield ((self.sure,),)
        for tier in self.judged():
            choices = tuple(choice for choice in self._choices(tier) if choice != (self.sure,))
            if choices:
                yield choices

    def judged(self) -> tuple[Tier, ...]:
        """Return all tiers of the host, best first, each with the first parts of its best score.

        A tier is a set of equally good choices of NUMA nodes for the guest's cells.
        """
        places: dict[tuple[int, ...] | None, list[tuple[tuple[Hashable, int], ...]]] = {}
        for way in _limit_ways(self.request, self.host, self.classes, self.claimed):
            nodes = _example_of_way(self.classes, way)
            worth = _judge_nodes(self.request, self.host, self.claimed, nodes)
            places.setdefault(worth, []).append(way)
        order = sorted(places, key=lambda worth: (worth is None, worth or ()))
        return tuple(Tier(worth, tuple(places[worth])) for worth in order)

    def _choices(self, tier: Tier) -> Iterator[tuple[int, ...]]:
        for way in tier.ways:
            parts = (itertools.combinations(self.classes[key], count) for key, count in way)
            for chosen in itertools.product(*parts):
                yield tuple(sorted(itertools.chain(*chosen)))


def place_of_set(devices: DeviceSet) -> tuple[int, ...]:
    """Return the first parts of a device set's score, which compare choices of NUMA nodes.

    A smaller tuple is better.
    """
    return devices.score[:PLACE]


def fix_request_cells(request: Request, cells: Mapping[int, int]) -> Request:
    """Return a copy of *request* with each guest cell bound to one host NUMA node.

    :param cells: guest cell -> host node
    """
    return attrs.evolve(
        request,
        cells=tuple(attrs.evolve(cell, host_node=cells.get(cell.id)) for cell in request.cells),
    )


def order_node_tiers(
    request: Request, host: FreeHost, claimed: Mapping[str, Sequence[str]]
) -> Tiers:
    """Order the choices of host NUMA nodes for the cells of *request*.

    :param host: its nodes, and the claimed devices; its free CPUs and pages are
        not used.
    :param claimed: as for :func:`nova_hpc.placement.judge.judge_claimed_devices`.
    :returns: every choice; choices that do not satisfy the request come last, and the check
        before the guest starts then gives the reason.
    """
    used = {pool.location.numa for pool in host.pools}
    classes: dict[Hashable, list[int]] = {}
    for node in sorted(host.nodes, key=lambda node: node.id):
        key: Hashable = ("node", node.id) if node.id in used else ("socket", str(node.socket))
        classes.setdefault(key, []).append(node.id)
    (only, *others) = used or {None}
    sure = None
    if len(request.cells) == 1 and not others and ("node", only) in classes:
        sure = only
    classes_ = {key: tuple(nodes) for key, nodes in classes.items()}
    return Tiers(request, host, claimed, classes_, sure)


def _judge_nodes(
    request: Request, host: FreeHost, claimed: Mapping[str, Sequence[str]], nodes: Sequence[int]
) -> tuple[int, ...] | None:
    """Score the claimed devices with the cells on these nodes; None if the choice is refused."""
    ids = (cell.id for cell in request.cells)
    answer = judge_claimed_devices(
        fix_request_cells(request, dict(zip(ids, nodes, strict=True))), host, claimed
    )
    return place_of_set(answer.sets[0]) if answer.sets else None


def _limit_ways(
    request: Request,
    host: FreeHost,
    classes: Mapping[Hashable, Sequence[int]],
    claimed: Mapping[str, Sequence[str]],
) -> list[tuple[tuple[Hashable, int], ...]]:
    """List the ways to choose nodes for all cells, as far as they are judged.

    If there are too many, the ways with most claimed devices on their nodes are kept.

    :returns: each way as pairs of a class of equal nodes and its number of cells.
    """
    ways = list(
        itertools.islice(_iterate_ways(list(classes.items()), len(request.cells)), _COUNTED)
    )
    if len(ways) <= MOST:
        return ways
    near = {pool.id: pool.location.numa for pool in host.pools}
    devices: dict[object, int] = {}
    for ids in claimed.values():
        for pool_id in ids:
            devices["node", near.get(pool_id)] = devices.get(("node", near.get(pool_id)), 0) + 1
    return heapq.nsmallest(MOST, ways, key=lambda way: -sum(devices.get(key, 0) for key, _ in way))


def _iterate_ways(
    classes: Sequence[tuple[Hashable, Sequence[int]]], count: int
) -> Iterator[tuple[tuple[Hashable, int], ...]]:
    if not count:
        yield ()
        return
    if sum(len(nodes) for _, nodes in classes) < count:
        return
    (key, nodes), *rest = classes
    for taken in range(min(count, len(nodes)), -1, -1):
        for others in _iterate_ways(rest, count - taken):
            yield ((key, taken), *others) if taken else others


def _example_of_way(
    classes: Mapping[Hashable, Sequence[int]], way: Sequence[tuple[Hashable, int]]
) -> list[int]:
    return sorted(itertools.chain(*(classes[key][:count] for key, count in way)))
