# SPDX-License-Identifier: Apache-2.0
"""The planner: the smallest domain that holds a gang, and the places in it. Pure.

An example. Leaf l1 has hosts n1 and n2 with one free place each, l2 has n3 with four and n4
with two, l3 has n5 with three; all are in block b1. Plans for one leaf:

* 3 members: host n5, whose three places they fill.
* 6 members: leaf l2, four on n3 and two on n4; no host and no other leaf holds six.
* 7 members, ``required``: refused, "leaf l2 holds 6 of 7; block b1 holds 11".
* 7 members, ``preferred``: block b1, six in l2 and one on n1 of l1, so that l3 stays whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.cluster.plan import answers, groups, packing
from nova_hpc.cluster.plan.model import (
    ANYWHERE,
    HOST,
    Gang,
    GangOrder,
    GangPlan,
    GangPolicy,
    GangRefusal,
)
from nova_hpc.cluster.plan.packing import Filled
from nova_hpc.cluster.plan.tree import (
    Cost,
    FreeSpot,
    GangDomain,
    LevelCost,
    Part,
    build_part_tree,
    find_free_spots,
    leaf_of,
    may_belong_to_gang,
    natural_sort_key,
    tally_sizes,
)
from nova_hpc.fabric.model import OF_NVLINK, FabricLevel, FabricMap, FabricPlace

#: The levels above the leaves, the widest first.
_ABOVE: Final = (FabricLevel.CORE, FabricLevel.SPINE, FabricLevel.BLOCK)

#: Maximum of equally good domains that are compared completely.
_MOST_DOMAINS: Final = 64


def plan_gang(fabric: FabricMap, capacity: Mapping[str, int], gang: Gang) -> GangPlan | GangRefusal:
    """Plan the hosts for all members of *gang*, or refuse it.

    :param fabric: the places of the hosts. A host that is not in it has no domain.
    :param capacity: host -> number of members that fit on it now. Other hosts hold none.
    :returns: the same for the same input, whatever the order of the hosts.
    """
    free_spots = find_free_spots(fabric, capacity, gang)
    home = [fabric.place(host) or FabricPlace(host=host) for host in gang.placed]
    total = sum(spot.free for spot in free_spots)
    if total >= gang.members and all(may_belong_to_gang(place, gang) for place in home):
        for level in gang_scopes_of(gang):
            every = domains_at_level(free_spots, level, gang, home)
            fitting = _order_domains(
                (domain for domain in every if holds_gang(domain, gang)), gang.group
            )
            if fitting:
                return _DomainSearch(free_spots, gang, level, home).best(fitting)
    return answers.build_gang_refusal(free_spots, gang, home)


def gang_scopes_of(gang: Gang) -> Iterator[FabricLevel | str]:
    """Yield the levels where the gang can be together, tightest first: HOST, ..., ANYWHERE."""
    if gang.order is GangOrder.PACK or gang.members + sum(gang.placed.values()) == 1:
        yield HOST
    for level in FabricLevel:
        if gang.policy is GangPolicy.PREFERRED or level <= gang.level:
            yield level
    if gang.policy is GangPolicy.PREFERRED:
        yield ANYWHERE


def domains_at_level(
    free_spots: Sequence[FreeSpot],
    level: FabricLevel | str,
    gang: Gang,
    home: Sequence[FabricPlace],
) -> list[GangDomain]:
    """List the domains of *level*, each with its hosts that have free places.

    :param home: places of present members of the gang: only domains with all of them count.
    """
    members: dict[tuple[str, tuple[FabricLevel, str] | None], list[FreeSpot]] = {}
    for spot in free_spots:
        key = _domain_key_of(spot.name, spot, level, gang)
        if key is not None:
            members.setdefault(key, []).append(spot)
    homes = {_domain_key_of(place.host, place, level, gang) for place in home}
    return [
        GangDomain(key[0], tuple(inside), sum(spot.free for spot in inside))
        for key, inside in members.items()
        if homes <= {key}
    ]


def _domain_key_of(
    host: str, where: FreeSpot | FabricPlace, level: FabricLevel | str, gang: Gang
) -> tuple[str, tuple[FabricLevel, str] | None] | None:
    """Return the key of the domain that a host belongs to: its name, and the domain around it.

    None if the host's domain of *level* is unknown. The domain around it is None unless the gang
    has to share a level. An NVLink domain may cross the domain that the gang has to be in. It then
    counts as one domain in each of them.
    """
    if level == ANYWHERE:
        return "", None
    name = where.domain(level) if isinstance(level, FabricLevel) else host
    if name is None:
        return None
    if gang.policy is not GangPolicy.REQUIRED:
        return name, None
    return name, where.enclosing if isinstance(where, FreeSpot) else where.enclosing(gang.level)


def _order_domains(some: Iterable[GangDomain], group: str) -> list[GangDomain]:
    """Sort equal domains: by name, or by a hash of the group's name, so that groups spread."""
    if not group:
        return sorted(some, key=lambda domain: natural_sort_key(domain.name))
    return sorted(
        some, key=lambda domain: hashlib.sha256(f"{group}:{domain.name}".encode()).digest()
    )


def holds_gang(domain: GangDomain, gang: Gang) -> bool:
    """Whether the domain has room for all members that are to be placed."""
    return domain.free >= gang.members


@attrs.frozen
class _PlacedDomain:
    """The best distribution of a gang in one domain: members by host, and its cost."""

    domain: GangDomain
    hosts: Mapping[str, int]
    cost: Cost


@attrs.define
class _DomainSearch:
    """Search of the domains of one level for the best plan of a gang."""

    found: Sequence[FreeSpot]
    gang: Gang
    level: FabricLevel | str
    home: Sequence[FabricPlace]
    shapes: dict[Hashable, int] = attrs.Factory(dict)
    budget: groups.GroupBudget = attrs.Factory(groups.GroupBudget)

    def best(self, fitting: Sequence[GangDomain]) -> GangPlan:
        """Return the best plan among the domains *fitting*.

        Domains with the fewest further leaves come first, then the ones with least free places,
        also around them. Only domains of different shapes are planned, and the cheapest plan wins.
        """
        ranked = [(self._leaves(domain), domain) for domain in fitting]
        least = min(rank for rank, _ in ranked)
        near = [domain for rank, domain in ranked if rank == least]
        room = self._room(near)
        tight = min(room)
        near = [domain for domain, free in zip(near, room, strict=True) if free == tight]
        seen: set[tuple[int, ...]] = set()
        results: list[_PlacedDomain] = []
        for domain in near:
            pieces = self._pieces(domain)
            shape = tuple(sorted(part.shape for pool in pieces for part in pool))
            if shape in seen and not self.home:
                continue
            seen.add(shape)
            if len(results) == _MOST_DOMAINS:
                self.budget.proven = False
                break
            results.append(self._inside(domain, pieces))
        chosen = min(results, key=lambda result: result.cost)
        return answers.build_gang_plan(
            self.gang, self.found, self.home, self.level, chosen.domain.name, chosen.hosts,
            self.budget.proven,
        )  # fmt: skip

    # --- between domains -----------------------------------------------------------

    def _leaves(self, domain: GangDomain) -> int:
        """Return the least number of leaves beyond present members' that the gang needs there."""
        old, new = _by_leaf(domain.spots, self.home)
        missing = self.gang.members - sum(old.values())
        return packing.count_fewest_parts(sorted(new.values(), reverse=True), missing)

    def _room(self, near: Sequence[GangDomain]) -> list[tuple[int, ...]]:
        """Return the free places in a domain and in the wider ones around it, the nearest first."""
        rooms: list[list[int]] = [[domain.free] for domain in near]
        if self.level == ANYWHERE:
            return [tuple(room) for room in rooms]
        first = self.level if isinstance(self.level, FabricLevel) else -1
        for level in (wider for wider in FabricLevel if wider > first):
            free: dict[str, int] = {}
            for spot in self.found:
                name = spot.domain(level)
                if name is not None:
                    free[name] = free.get(name, 0) + spot.free
            for domain, room in zip(near, rooms, strict=True):
                names = {spot.domain(level) for spot in domain.spots}
                (name, *others) = names
                room.append(room[-1] if others or name is None else free[name])
        return [tuple(room) for room in rooms]

    # --- in one domain ---------------------------------------------------------------

    def _pieces(self, domain: GangDomain) -> list[tuple[Part, ...]]:
        """Return trees of the domain's hosts: those in leaves of present members, then the others.

        Only the others if the gang has no member yet.
        """
        old = {leaf_of(place) for place in self.home}
        sides: list[list[FreeSpot]] = [[], []] if old else [[]]
        for spot in domain.spots:
            sides[-1 if leaf_of(spot.place) not in old else 0].append(spot)
        return [build_part_tree(side, self._levels(domain), self.shapes) for side in sides]

    def _above(self, domain: GangDomain) -> list[FabricLevel]:
        """List the levels between the domain and the leaves of its hosts, the widest first."""
        inside = [
            level
            for level in _ABOVE
            if self.level == ANYWHERE
            or (isinstance(self.level, FabricLevel) and level < self.level)
        ]
        return [
            level
            for level in inside
            if any(spot.domain(level) is not None for spot in domain.spots)
        ]

    def _levels(self, domain: GangDomain) -> list[FabricLevel]:
        levels = [*self._above(domain), FabricLevel.LEAF]
        nvlink = FabricLevel.NVLINK_DOMAIN
        if self.level not in (HOST, *OF_NVLINK) and self.gang.order is GangOrder.PACK:
            levels += [nvlink] if any(spot.domain(nvlink) for spot in domain.spots) else []
        return levels

    def _inside(self, domain: GangDomain, pieces: Sequence[tuple[Part, ...]]) -> _PlacedDomain:
        """Choose the best places in a domain: beside the present members, then in other leaves."""
        hosts: dict[str, int] = {}
        costs: list[LevelCost] = []
        left = self.gang.members
        height = len(self._above(domain))
        for parts in pieces:
            portion = min(left, sum(part.free for part in parts))
            if portion:
                filled = self._filled(parts, height, portion)
                hosts |= filled.hosts
                costs += filled.cost
                left -= portion
        return _PlacedDomain(domain, hosts, tuple(costs))

    def _filled(self, parts: Sequence[Part], height: int, wanted: int) -> Filled:
        """Choose the best places in these parts, which are *height* levels above the leaves.

        At each level above the leaves the fewest groups are chosen, and all equally good choices
        are followed down. The members are then dealt to the leaves of each choice.
        """
        frees = sorted(
            (leaf.free for part in parts for leaf in groups.leaves_of(part, height)), reverse=True
        )
        most = packing.count_fewest_parts(frees, wanted)
        pools: list[Sequence[Part]] = [parts]
        costs: list[LevelCost] = []
        for level in range(height, 0, -1):
            choices = [
                choice
                for pool in pools
                for choice in groups.choose_fewest_groups(pool, level, most, wanted, self.budget)
            ]
            cost, tied = _choose_cheapest(choices)
            costs.append(cost)
            if len(tied) > groups.MOST_TIES:
                self.budget.proven = False
            pools = [
                [part for group in choice for part in group.parts]
                for choice in tied[: groups.MOST_TIES]
            ]
        take = packing.pack_places if self.gang.order is GangOrder.PACK else packing.spread_places
        best = min((take(pool, wanted) for pool in pools), key=lambda filling: filling.cost)
        self.budget.proven &= best.proven
        return attrs.evolve(best, cost=(*costs, *best.cost))


def _by_leaf(
    free_spots: Sequence[FreeSpot], home: Sequence[FabricPlace]
) -> tuple[dict[tuple[bool, str], int], dict[tuple[bool, str], int]]:
    """Sum the free places by leaf, in two mappings: of leaves with members, and of others."""
    old = {leaf_of(place) for place in home}
    sides: tuple[dict[tuple[bool, str], int], dict[tuple[bool, str], int]] = ({}, {})
    for spot in free_spots:
        leaf = leaf_of(spot.place)
        side = sides[leaf not in old]
        side[leaf] = side.get(leaf, 0) + spot.free
    return sides


def _choose_cheapest(
    choices: Sequence[tuple[Part, ...]],
) -> tuple[LevelCost, list[tuple[Part, ...]]]:
    """Return the cost of the fewest and smallest groups, and all choices that have this cost."""
    costs = [(len(choice), tally_sizes(group.free for group in choice), 0) for choice in choices]
    least = min(costs)
    return least, [choice for choice, cost in zip(choices, costs, strict=True) if cost == least]
