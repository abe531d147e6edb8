# SPDX-License-Identifier: Apache-2.0
"""The planner's reference: looks at every way to deal the members, and orders all of them.

Written from docs/source/contributor/gang-planner.rst alone; it shares no code with the
planner but the data model, and no idea either: it searches nothing, it compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nova_hpc.cluster.plan import Gang, GangOrder, GangPolicy
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace

SUB_DOMAIN, NVLINK, LEAF, BLOCK, SPINE, CORE = FabricLevel
#: The rank of all hosts together: 0 is a host, then the levels.
_ANYWHERE = len(FabricLevel) + 1
ABOVE = (CORE, SPINE, BLOCK)
Dealt = dict[str, int]


def best(fabric: FabricMap, capacity: Mapping[str, int], gang: Gang) -> tuple[Any, ...] | None:
    """What the best plan is worth; None: there is no plan."""
    question = Question(fabric, capacity, gang)
    return min((question.worth(each) for each in question.ways()), default=None)


class Question:
    """One fabric, one capacity, one gang that has no members yet."""

    def __init__(self, fabric: FabricMap, capacity: Mapping[str, int], gang: Gang) -> None:
        self.gang = gang
        self.place = {host: fabric.place(host) or FabricPlace(host=host) for host in capacity}
        self.free = {host: self._free(host, number) for host, number in capacity.items()}
        self.free = {host: number for host, number in self.free.items() if number > 0}

    def _free(self, host: str, number: int) -> int:
        place = self.place[host]
        if self.gang.within and place.domain(self.gang.within[0]) != self.gang.within[1]:
            return 0
        if self.gang.policy is GangPolicy.REQUIRED and place.enclosing(self.gang.level) is None:
            return 0
        if len(place.rails) < self.gang.rails:
            return 0
        return min(number, self.gang.max_per_host or number)

    def ways(self) -> Iterator[Dealt]:
        """Every way to deal the members that the policy allows."""
        for way in self._deal(list(self.free), self.gang.members):
            asked = {self.place[host].enclosing(self.gang.level) for host in way}
            if self.gang.policy is GangPolicy.PREFERRED or len(asked) == 1:
                yield way

    def _deal(self, hosts: list[str], members: int) -> Iterator[Dealt]:
        if not members:
            yield {}
        elif hosts:
            for number in range(min(members, self.free[hosts[0]]) + 1):
                for rest in self._deal(hosts[1:], members - number):
                    yield {hosts[0]: number, **rest} if number else rest

    def worth(self, way: Dealt) -> tuple[Any, ...]:
        """What a way is worth; the smaller is better."""
        rank, inside = self._domain(way)
        leaves = self._groups(way, [LEAF])
        parts: list[Any] = [rank, len(leaves), *self._room(rank, inside)]
        above = [level for level in ABOVE if level + 1 < rank]
        above = [level for level in above if any(self.place[host].domain(level) for host in inside)]
        for number in range(1, len(above) + 1):
            groups = self._groups(way, above[:number])
            parts.append((len(groups), self._sizes(groups, above[:number], inside)))
        path = [*above, LEAF]
        leaves = self._groups(way, path)
        parts.append((len(leaves), self._sizes(leaves, path, inside)))
        if self.gang.order is GangOrder.PACK:
            parts.append(self._partly(way, leaves, path, inside))
            if rank > NVLINK + 1 and any(self.place[host].domain(NVLINK) for host in inside):
                path.append(NVLINK)
                sets = self._groups(way, path)
                parts.append((len(sets), self._sizes(sets, path, inside)))
                parts.append(self._partly(way, sets, path, inside))
        else:
            parts.append(sorted(way.values(), reverse=True))
        parts.append((len(way), sorted((self.free[host] for host in way), reverse=True)))
        if self.gang.order is GangOrder.PACK:
            parts.append(sum(way[host] < self.free[host] for host in way))
        return tuple(parts)

    def _domain(self, way: Dealt) -> tuple[int, list[str]]:
        """The smallest domain with all members: its rank, and its hosts with free places."""
        alone = self.gang.order is GangOrder.PACK or self.gang.members == 1
        if len(way) == 1 and alone:
            return 0, list(way)
        for level in FabricLevel:
            names = {self.place[host].domain(level) for host in way}
            if len(names) == 1 and None not in names:
                if self.gang.policy is GangPolicy.REQUIRED and level > self.gang.level:
                    continue
                return level + 1, [each for each in self.free if self._with(each, way, level)]
        return _ANYWHERE, list(self.free)

    def _with(self, host: str, way: Dealt, level: FabricLevel) -> bool:
        one, other = self.place[next(iter(way))], self.place[host]
        if one.domain(level) != other.domain(level):
            return False
        wanted = self.gang.level
        return self.gang.policy is not GangPolicy.REQUIRED or (
            one.enclosing(wanted) == other.enclosing(wanted)
        )

    def _room(self, rank: int, inside: list[str]) -> Iterator[int]:
        """Free places of the domain, and of those around it."""
        room = sum(self.free[host] for host in inside)
        yield room
        for level in FabricLevel:
            if level + 1 > rank and rank < _ANYWHERE:
                names = {self.place[host].domain(level) for host in inside}
                if len(names) == 1 and None not in names:
                    around = [host for host in self.free if self.place[host].domain(level) in names]
                    room = sum(self.free[host] for host in around)
                yield room

    def _groups(self, hosts: Any, path: list[FabricLevel]) -> set[Any]:
        return {self._group(host, path) for host in hosts}

    def _group(self, host: str, path: list[FabricLevel]) -> tuple[Any, ...]:
        """The domain of the path's last level that a host is in, inside those before it."""
        below = [each for each in (*ABOVE, LEAF, NVLINK) if each < path[-1]]
        names: list[Any] = []
        for number, level in enumerate(path):
            # Unknown: a domain of its own for what is known next, at last for the host.
            rest = [*path[number:], *(each for each in below if each not in path)]
            known = [(each, self.place[host].domain(each)) for each in rest if each >= LEAF]
            known = [each for each in known if each[1] is not None]
            if level is NVLINK:
                known = [(NVLINK, self.place[host].nvlink_domain)]
                known = [each for each in known if each[1] is not None]
            names.append(known[0] if known else ("host", host))
        return tuple(names)

    def _sizes(self, groups: set[Any], path: list[FabricLevel], inside: list[str]) -> list[int]:
        """The free places of these domains, the largest first."""
        found = dict.fromkeys(groups, 0)
        for host in inside:
            group = self._group(host, path)
            if group in found:
                found[group] += self.free[host]
        return sorted(found.values(), reverse=True)

    def _partly(
        self, way: Dealt, groups: set[Any], path: list[FabricLevel], inside: list[str]
    ) -> int:
        """How many of these domains are not used up."""
        left = dict.fromkeys(groups, 0)
        for host in inside:
            group = self._group(host, path)
            if group in left:
                left[group] += self.free[host] - way.get(host, 0)
        return sum(value > 0 for value in left.values())
