"""The reference that the solver is measured against: every possibility, tried.

Shares no code with the solver but the data model and the words for places.
Only for hosts of a few devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from nova_hpc.placement.model import Cell, Host, HostNode, Policy, Pool, Request
from nova_hpc.topology.level import Level, common_level, distance

#: One group's devices: (want key, pool) each.
Members = tuple[tuple[str, Pool], ...]


@attrs.frozen
class Best:
    """The best that exists: the widest level and, at it, the longest path."""

    level: Level
    distance: int


def best(request: Request, host: Host) -> Best | None:
    """Try every choice of devices and every mapping of cells."""
    found: list[Best] = []
    mappings = list(_mappings(request.cells, host.nodes))
    cache: dict[object, Level] = {}
    seen: set[object] = set()
    for groups in _choices(request, host):
        same = tuple(sorted(tuple(sorted(pool.id for _, pool in group)) for group in groups))
        if same in seen:
            continue
        seen.add(same)
        level = _best_level(request, groups, mappings, cache)
        if level is not None and allowed(request, level):
            far = max(_far(group) for group in groups)
            found.append(Best(level, far))
    return min(found, key=lambda one: (one.level, one.distance), default=None)


def allowed(request: Request, level: Level) -> bool:
    return request.policy is Policy.PREFERRED or level <= request.level


def aligned(request: Request, host: Host, claimed: Mapping[str, Sequence[str]]) -> bool:
    """Whether exactly the claimed devices can be divided up as requested."""
    pools = {pool.id: pool for pool in host.pools}
    for pool in host.pools:
        if pool.unit is not None and any(
            pools[i].unit == pool.unit for ids in claimed.values() for i in ids
        ):
            taken = sum(list(ids).count(pool.id) for ids in claimed.values())
            if taken != pool.free:
                return False
    only = attrs.evolve(
        host,
        pools=tuple(
            attrs.evolve(pools[one], id=f"{key}/{one}/{n}", free=1, serves={key}, unit=None)
            for key, ids in claimed.items()
            for n, one in enumerate(ids)
        ),
        nodes=tuple(attrs.evolve(node, dedicated_cpus=None, pages=None) for node in host.nodes),
    )
    return best(request, only) is not None


def _choices(request: Request, host: Host) -> Iterator[list[Members]]:
    """Every way to fill the groups; units whole or not at all."""

    def fill(number: int, free: dict[str, int]) -> Iterator[list[Members]]:
        if number == len(request.groups):
            if all(
                free[pool.id] == 0
                for pool in host.pools
                if pool.unit in {other.unit for other in host.pools if free[other.id] < other.free}
                and pool.unit is not None
            ):
                yield []
            return
        counts = request.groups[number].counts
        for group in members(list(counts.items()), free):
            left = dict(free)
            for _, pool in group:
                left[pool.id] -= 1
            for rest in fill(number + 1, left):
                yield [group, *rest]

    def members(needs: list[tuple[str, int]], free: dict[str, int]) -> Iterator[Members]:
        if not needs:
            yield ()
            return
        key, count = needs[0]
        devices = [p for p in host.pools if key in p.serves for _ in range(free[p.id])]
        for chosen in set(itertools.combinations([p.id for p in devices], count)):
            left = dict(free)
            for one in chosen:
                left[one] -= 1
            mine = tuple((key, pools[one]) for one in chosen)
            for rest in members(needs[1:], left):
                yield (*mine, *rest)

    pools = {pool.id: pool for pool in host.pools}
    yield from fill(0, {pool.id: max(pool.free, 0) for pool in host.pools})


def _mappings(cells: Sequence[Cell], nodes: Sequence[HostNode]) -> Iterator[dict[int, HostNode]]:
    for chosen in itertools.permutations(nodes, len(cells)):
        if all(_fits(cell, node) for cell, node in zip(cells, chosen, strict=True)):
            yield {cell.id: node for cell, node in zip(cells, chosen, strict=True)}


def _fits(cell: Cell, node: HostNode) -> bool:
    if cell.host_node is not None:
        return cell.host_node == node.id
    if node.dedicated_cpus is not None and cell.dedicated_cpus > node.dedicated_cpus:
        return False
    if cell.page_kib is None or node.pages is None:
        return True
    return node.pages.get(cell.page_kib, 0) * cell.page_kib >= cell.memory_kib


def _best_level(
    request: Request,
    groups: Sequence[Members],
    mappings: Sequence[dict[int, HostNode]],
    cache: dict[object, Level],
) -> Level | None:
    """The best widest level, over all mappings and balanced assignments."""
    if not request.cells:
        return max(_level(group, None, cache) for group in groups)
    found = []
    ids = [cell.id for cell in request.cells]
    for mapping in mappings:
        for assignment in itertools.product(ids, repeat=len(groups)):
            shares = [assignment.count(one) for one in ids]
            if max(shares) - min(shares) > 1:
                continue
            if request.on_cells and not all(
                pool.location.numa == mapping[cell].id
                for group, cell in zip(groups, assignment, strict=True)
                for _, pool in group
            ):
                continue
            found.append(
                max(
                    _level(group, mapping[cell], cache)
                    for group, cell in zip(groups, assignment, strict=True)
                )
            )
    return min(found, default=None)


def _level(group: Members, node: HostNode | None, cache: dict[object, Level]) -> Level:
    key = (tuple(pool.id for _, pool in group), None if node is None else node.id)
    if key not in cache:
        level = common_level(pool.location for _, pool in group)
        if node is not None:
            for _, pool in group:
                if pool.location.numa == node.id:
                    continue
                same = node.socket is not None and pool.location.socket == node.socket
                level = max(level, Level.SOCKET if same else Level.HOST)
        cache[key] = level
    return cache[key]


def _far(group: Members) -> int:
    places = [pool.location for _, pool in group]
    pairs = itertools.combinations(places, 2)
    return max((int(distance(one, other)) for one, other in pairs), default=0)
