# SPDX-License-Identifier: Apache-2.0
"""The reference that the solver is measured against: every possibility, tried.

Shares no code with the solver but the data model and the words for places.
Only for hosts of a few devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import attrs

from nova_hpc.placement.model import DevicePool, FreeHost, HostNode, Nvlink, Request, WantedCell
from nova_hpc.placement.profile import DEFAULT, FlavorShape, Profile
from nova_hpc_common.level import AffinityPolicy, Level, common_level, distance_between

#: One group's devices: (want key, pool) each.
Members = tuple[tuple[str, DevicePool], ...]
Score = tuple[int, ...]


@attrs.frozen
class Best:
    """The best that exists."""

    level: Level
    distance: int
    score: Score


def best(request: Request, host: FreeHost, profile: Profile = DEFAULT) -> Best | None:
    """Try every choice of devices, every mapping of cells and every assignment."""
    least = _least(request, host, _Worth(request, host, profile))
    return None if least is None else Best(Level(least[0]), least[2], least)


def _least(
    request: Request, host: FreeHost, worth: _Worth, any_will_do: bool = False
) -> Score | None:
    least: Score | None = None
    for groups in _choices(request, host):
        misses = worth.misses(groups)
        if misses and request.nvlink is Nvlink.REQUIRED:
            continue
        far = max(_far(group) for group in groups)
        used: dict[str, int] = {}
        counted: dict[str, int] = {}
        for key, pool in itertools.chain(*groups):
            used[pool.id] = used.get(pool.id, 0) + 1
            if key in worth.countable:
                counted[pool.id] = counted.get(pool.id, 0) + 1
        if request.apart and max(used.values()) > 1:
            continue
        for nodes, ranks in worth.seatings(groups):
            level = max(max(rank - 1, 0) for rank in ranks)
            if not allowed(request, Level(level)):
                continue
            head = (level, misses, far, sum(ranks))
            if least is not None and head > least[:4]:
                continue
            score = (*head, *worth.costs(used, counted, nodes))
            if any_will_do:
                return score
            if least is None or score < least:
                least = score
    return least


def allowed(request: Request, level: Level) -> bool:
    return request.policy is AffinityPolicy.PREFERRED or level <= request.level


def aligned(request: Request, host: FreeHost, claimed: Mapping[str, Sequence[str]]) -> bool:
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
            attrs.evolve(
                pools[one], id=f"{key}/{one}/{ids[:n].count(one)}", free=1, serves={key}, unit=None
            )
            for key, ids in claimed.items()
            for n, one in enumerate(ids)
        ),
        nodes=tuple(attrs.evolve(node, dedicated_cpus=None, pages=None) for node in host.nodes),
        nvlink=(),
    )
    linked = {one for members in host.nvlink for one in members}
    new_id = {one: f"{key}/{one}/0" for key, ids in claimed.items() for one in ids}
    worth = _Worth(request, only, Profile())
    worth.nvlink_wants = {key for pool in host.pools if pool.id in linked for key in pool.serves}
    worth.legal = {
        frozenset(new_id[one] for one in members)
        for members in host.nvlink
        if all(pools[one].free == 1 and one in new_id for one in members)
    }
    return _least(request, only, worth, any_will_do=True) is not None


class _Worth:
    """What a choice costs, by the definitions in the documentation."""

    def __init__(self, request: Request, host: FreeHost, profile: Profile) -> None:
        self.request, self.host = request, host
        spoiled = {
            p.unit for p in host.pools if p.unit is not None and (not p.serves or not p.free)
        }
        self.usable = [p for p in host.pools if p.serves and p.free and p.unit not in spoiled]
        names = {want.key: want.name for want in request.wants}
        plenty: set[str] = set()
        for _ in names:
            for pool in self.usable:
                if pool.free > 1 or pool.serves & plenty:
                    plenty |= pool.serves
        self.countable = set(names) - plenty
        self.role = {
            p.id: p.role or min((names[key] for key in p.serves), default=None) for p in host.pools
        }
        named = {role for shape in profile.shapes for role in shape.counts}
        if named & {self.role[p.id] for p in host.pools if p.free}:
            self.shapes = list(profile.shapes)
        else:
            roles = {self.role[p.id] for p in self.usable if p.serves & self.countable}
            self.shapes = [
                FlavorShape({role: n}) for role in sorted(roles) for n in (1, 2, 4, 8, 16)
            ]
        self.domains: list[tuple[Level, int | None, list[DevicePool]]] = []
        for level in Level:
            parts: dict[tuple[str, ...], list[DevicePool]] = {}
            for pool in host.pools:
                key = pool.location.domain(level)
                if key is not None:
                    parts.setdefault(key, []).append(pool)
            for key, pools in parts.items():
                self.domains.append((level, int(key[1]) if key[0] == "numa" else None, pools))
        linked = {one for members in host.nvlink for one in members}
        by_id = {pool.id: pool for pool in host.pools}
        self.nvlink_wants = {key for p in host.pools if p.id in linked for key in p.serves}
        self.legal = {m for m in host.nvlink if all(by_id[one].free == 1 for one in m)}
        self._costs: dict[object, tuple[int, int, int, int, int, int]] = {}
        self._levels: dict[object, int] = {}
        self._values: dict[object, tuple[int, int]] = {}
        self.mappings = list(_mappings(request.cells, host.nodes))

    def misses(self, groups: Sequence[Members]) -> int:
        if self.request.nvlink is Nvlink.NONE:
            return 0
        linked = [[p.id for key, p in g if key in self.nvlink_wants] for g in groups]
        return sum(frozenset(ids) not in self.legal or len(set(ids)) != len(ids) for ids in linked)

    def seatings(
        self, groups: Sequence[Members]
    ) -> Iterator[tuple[dict[int, HostNode], list[int]]]:
        """Every mapping of cells, with the rank of every group."""
        request = self.request
        if not request.cells:
            yield {}, [self._rank(group, None) for group in groups]
            return
        ids = [cell.id for cell in request.cells]
        for mapping in self.mappings:
            for assignment in itertools.product(ids, repeat=len(groups)):
                shares = [assignment.count(one) for one in ids]
                if max(shares) - min(shares) > 1:
                    continue
                pairs = list(zip(groups, assignment, strict=True))
                if request.on_cells and not all(
                    pool.location.numa == mapping[cell].id
                    for group, cell in pairs
                    for _, pool in group
                ):
                    continue
                yield mapping, [self._rank(group, mapping[cell]) for group, cell in pairs]

    def _rank(self, group: Members, node: HostNode | None) -> int:
        """0: one switch between all, 1: under one switch, 2: root, 3: NUMA, 4: socket, 5: host."""
        key = (tuple(pool.id for _, pool in group), None if node is None else node.id)
        if key not in self._levels:
            level = common_level(pool.location for _, pool in group)
            rank = level + 1 if level is not Level.SWITCH or _far(group) else 0
            if node is not None:
                for _, pool in group:
                    if pool.location.numa != node.id:
                        same = node.socket is not None and pool.location.socket == node.socket
                        rank = max(rank, 4 if same else 5)
            self._levels[key] = rank
        return self._levels[key]

    def costs(
        self,
        used: Mapping[str, int],
        counted: Mapping[str, int],
        seats: Mapping[int, HostNode],
    ) -> tuple[int, int, int, int, int, int]:
        """Damage, groups lost, devices left in touched domains, crowding, spare, aliases."""
        key = (
            tuple(sorted(used.items())),
            tuple(sorted(counted.items())),
            tuple(sorted((cell, node.id) for cell, node in seats.items())),
        )
        if key not in self._costs:
            left = 0
            for level, _, pools in self.domains:
                if level in (Level.SWITCH, Level.ROOT, Level.NUMA) and any(
                    counted.get(p.id) for p in pools
                ):
                    left += sum(
                        p.free - counted.get(p.id, 0)
                        for p in pools
                        if p in self.usable and p.serves & self.countable
                    )
            before, after = self._value({}, {}), self._value(used, seats)
            crowd = sum(count * count for count in used.values())
            spare = sum(p.free for p in self.usable) - sum(used.values())
            aliases = sum(p.aliases * used.get(p.id, 0) for p in self.host.pools)
            lost = (before[0] - after[0], before[1] - after[1])
            self._costs[key] = (*lost, left, crowd, spare, aliases)
        return self._costs[key]

    def _value(self, used: Mapping[str, int], seats: Mapping[int, HostNode]) -> tuple[int, int]:
        """Devices that later servers can use, and those in whole groups for them."""
        cells = {cell.id: cell for cell in self.request.cells}
        on = {node.id: cells[cell] for cell, node in seats.items()}
        key = (tuple(sorted(used.items())), tuple(sorted((n, c.id) for n, c in on.items())))
        if key in self._values:
            return self._values[key]
        usable = total = 0
        for level, numa, pools in self.domains:
            for shape in self.shapes:
                if level > shape.level:
                    continue
                times = shape.groups if level is Level.HOST else 1
                have = {
                    role: sum(p.free - used.get(p.id, 0) for p in pools if self.role[p.id] == role)
                    for role in shape.counts
                }
                rooms = [have[role] // (count * times) for role, count in shape.counts.items()]
                size = sum(shape.counts.values())
                if level is shape.level and min(rooms) and self._holds(shape, bool(used), on):
                    parts = [Fraction(have[role], count) for role, count in shape.counts.items()]
                    usable += shape.weight * math.floor(size * min(parts))
                if level is Level.NUMA:
                    inside = [n for n in self.host.nodes if n.id == numa]
                    rooms += _rooms(shape, inside, on, shape.groups)
                if level is Level.HOST:
                    rooms += _rooms(shape, self.host.nodes, on, 1)
                total += shape.weight * size * times * min(rooms)
        self._values[key] = (usable, total)
        return self._values[key]

    def _holds(self, shape: FlavorShape, placed: bool, on: Mapping[int, WantedCell]) -> bool:
        """Whether there is enough of everything for one server, wherever it is.

        Of what the request takes, wants whose devices have one role are counted.
        """
        taken: dict[str | None, int] = {}
        names = {want.name for want in self.request.wants}
        for name in names if placed else ():
            wants = [want for want in self.request.wants if want.name == name]
            keys = {want.key for want in wants}
            roles = {self.role[p.id] for p in self.usable if p.serves & keys}
            if len(roles) == 1:
                role = roles.pop()
                taken[role] = taken.get(role, 0) + sum(want.count for want in wants)
        return all(
            sum(p.free for p in self.host.pools if self.role[p.id] == role) - taken.get(role, 0)
            >= count * shape.groups
            for role, count in shape.counts.items()
        ) and all(_rooms(shape, self.host.nodes, on, 1))


def _rooms(
    shape: FlavorShape, nodes: Sequence[HostNode], on: Mapping[int, WantedCell], groups: int
) -> Iterator[int]:
    """For how many (groups of the) servers there are CPUs, and pages."""
    if shape.cpus and nodes and None not in {node.dedicated_cpus for node in nodes}:
        free = sum(n.dedicated_cpus - (on[n.id].dedicated_cpus if n.id in on else 0) for n in nodes)
        yield max(free, 0) // -(-shape.cpus // groups)
    if shape.page_kib and shape.memory_kib and not any(node.pages is None for node in nodes):
        free = 0
        for node in nodes:
            free += node.pages.get(shape.page_kib, 0)
            if node.id in on and on[node.id].page_kib == shape.page_kib:
                free -= -(-on[node.id].memory_kib // shape.page_kib)
        need = -(-shape.memory_kib // shape.page_kib)
        if nodes:
            yield max(free, 0) // -(-need // groups)


def _choices(request: Request, host: FreeHost) -> Iterator[list[Members]]:
    """Every way to fill the groups, which are alike; units whole or not at all."""

    def fill(number: int, free: dict[str, int], last: object) -> Iterator[list[Members]]:
        if number == len(request.groups):
            touched = {pool.unit for pool in host.pools if free[pool.id] < pool.free}
            if all(
                free[pool.id] == 0
                for pool in host.pools
                if pool.unit in touched and pool.unit is not None
            ) and not any(
                p.free < 1 and p.unit in touched and p.unit is not None for p in host.pools
            ):
                yield []
            return
        counts = sorted(request.groups[number].counts.items())
        for group in members(counts, free):
            name = [(key, pool.id) for key, pool in group]
            if last is not None and name < last:
                continue
            left = dict(free)
            for _, pool in group:
                left[pool.id] -= 1
            for rest in fill(number + 1, left, name):
                yield [group, *rest]

    def members(needs: list[tuple[str, int]], free: dict[str, int]) -> Iterator[Members]:
        if not needs:
            yield ()
            return
        key, count = needs[0]
        devices = [p for p in host.pools if key in p.serves for _ in range(free[p.id])]
        for chosen in sorted(set(itertools.combinations([p.id for p in devices], count))):
            left = dict(free)
            for one in chosen:
                left[one] -= 1
            mine = tuple((key, pools[one]) for one in chosen)
            for rest in members(needs[1:], left):
                yield (*mine, *rest)

    pools = {pool.id: pool for pool in host.pools}
    yield from fill(0, {pool.id: max(pool.free, 0) for pool in host.pools}, None)


def _mappings(
    cells: Sequence[WantedCell], nodes: Sequence[HostNode]
) -> Iterator[dict[int, HostNode]]:
    for chosen in itertools.permutations(nodes, len(cells)):
        if all(_fits(cell, node) for cell, node in zip(cells, chosen, strict=True)):
            yield {cell.id: node for cell, node in zip(cells, chosen, strict=True)}


def _fits(cell: WantedCell, node: HostNode) -> bool:
    if cell.host_node is not None:
        return cell.host_node == node.id
    if node.dedicated_cpus is not None and cell.dedicated_cpus > node.dedicated_cpus:
        return False
    if cell.page_kib is None or node.pages is None:
        return True
    return node.pages.get(cell.page_kib, 0) * cell.page_kib >= cell.memory_kib


def _far(group: Members) -> int:
    places = [pool.location for _, pool in group]
    pairs = itertools.combinations(places, 2)
    return max((int(distance_between(one, other)) for one, other in pairs), default=0)
