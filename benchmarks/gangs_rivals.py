# SPDX-License-Identifier: Apache-2.0
"""Other ways to place gangs, for comparison with the planner, and the cost of a placement.

``first_fit`` does the same as a simple script: it takes the first domain by name with room, and
its hosts by name. ``kueue`` follows the default algorithm of Kueue's topology-aware scheduling
(BestFit; kubernetes-sigs/kueue, keps/2724-topology-aware-scheduling and
pkg/cache/scheduler/tas_flavor_snapshot.go). At the requested level it takes the domain with the
least sufficient room. If there is none, it goes one level up (``preferred``), and at last takes
several domains. Then it goes down level by level, with the parts of all chosen domains together:
those with most room first, and as the last one that with the least sufficient room. Slices,
leaders and node affinity are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.cluster.plan import Gang, GangPlan, GangPolicy, plan_gang
from nova_hpc.fabric.model import FabricLevel, FabricMap

Hosts = Mapping[str, int]
Placer = Callable[[FabricMap, Mapping[str, int], Gang], Hosts | None]

#: The levels that the benchmark's fabrics have, the widest first; the host is below them.
LEVELS: Final = (FabricLevel.CORE, FabricLevel.SPINE, FabricLevel.BLOCK, FabricLevel.LEAF)


def ours(fabric: FabricMap, free: Mapping[str, int], gang: Gang) -> Hosts | None:
    """The planner."""
    answer = plan_gang(fabric, free, gang)
    return answer.hosts if isinstance(answer, GangPlan) else None


def first_fit(fabric: FabricMap, free: Mapping[str, int], gang: Gang) -> Hosts | None:
    """The first domain by name with room, its hosts by name."""
    for level in _tried(fabric, gang):
        for members in fabric.domains(level).values():
            room = [host for host in members if free.get(host)]
            if sum(free[host] for host in room) >= gang.members:
                return _dealt(room, free, gang.members)
    return None


def _tried(fabric: FabricMap, gang: Gang) -> list[FabricLevel]:
    """The levels of the map to try: the requested one, and with ``preferred`` those above it."""
    highest = FabricLevel.CORE if gang.policy is GangPolicy.PREFERRED else gang.level
    return [
        level for level in FabricLevel if gang.level <= level <= highest and fabric.domains(level)
    ]


def _dealt(hosts: Sequence[str], free: Mapping[str, int], members: int) -> Hosts:
    found = {}
    for host in hosts:
        if members:
            found[host] = min(free[host], members)
            members -= found[host]
    return found


@attrs.define(eq=False)
class _Domain:
    """A domain of Kueue's tree, and the number of its taken places."""

    name: tuple[str, ...]
    room: int = 0
    parts: list[_Domain] = attrs.Factory(list)
    taken: int = 0


def kueue(fabric: FabricMap, free: Mapping[str, int], gang: Gang) -> Hosts | None:
    """The hosts by Kueue's BestFit; None without room, or if the map lacks the requested level."""
    levels = [level for level in LEVELS if fabric.domains(level)]
    if gang.level not in levels:
        return None
    rows = _tree(fabric, free, levels)
    row = levels.index(gang.level)
    chosen: list[_Domain] = []
    while not chosen:
        order = _sorted(rows[row])
        if order and order[0].room >= gang.members:
            chosen = [_tightest(order, gang.members)]
        elif gang.policy is GangPolicy.REQUIRED:
            return None
        elif row:
            row -= 1
        elif sum(each.room for each in order) >= gang.members:
            chosen = order
        else:
            return None
    chosen = _least(chosen, gang.members)
    while chosen[0].parts:
        chosen = _least(
            _sorted([part for each in chosen for part in each.parts if part.room]), gang.members
        )
    return {each.name[-1]: each.taken for each in chosen}


def _tree(
    fabric: FabricMap, free: Mapping[str, int], levels: Sequence[FabricLevel]
) -> list[list[_Domain]]:
    """The domains of each level, the widest level first, and the hosts at the end."""
    known: dict[tuple[str, ...], _Domain] = {}
    rows: list[list[_Domain]] = [[] for _ in (*levels, None)]
    for place in fabric.places:
        room = free.get(place.host, 0)
        if not room:
            continue
        name: tuple[str, ...] = ()
        above: _Domain | None = None
        for row, word in enumerate([*(place.domain(level) or "" for level in levels), place.host]):
            name = (*name, word)
            if name not in known:
                known[name] = _Domain(name)
                rows[row].append(known[name])
                if above is not None:
                    above.parts.append(known[name])
            above = known[name]
            above.room += room
    return rows


def _sorted(domains: Sequence[_Domain]) -> list[_Domain]:
    """The domains with most room first, then by name."""
    return sorted(domains, key=lambda each: (-each.room, each.name))


def _tightest(order: Sequence[_Domain], members: int) -> _Domain:
    """The domain with the least sufficient room; the first of several."""
    return min((each for each in order if each.room >= members), key=lambda each: each.room)


def _least(order: Sequence[_Domain], members: int) -> list[_Domain]:
    """The domains with most room, and as the last one that with the least sufficient room."""
    found: list[_Domain] = []
    left = list(order)
    while members:
        each = left[0]
        if each.room >= members:
            each = _tightest(left, members)
        left.remove(each)
        each.taken = min(each.room, members)
        members -= each.taken
        found.append(each)
    return found


PLACERS: Final[Mapping[str, Placer]] = {"planner": ours, "first fit": first_fit, "Kueue": kueue}


def leaves(fabric: FabricMap, hosts: Hosts) -> int:
    """The number of leaves that a gang uses."""
    return len({fabric.place(host).leaf for host in hosts})  # type: ignore[union-attr]


def links(fabric: FabricMap, hosts: Hosts) -> int:
    """The number of links between switches that a gang uses if each half sends to the other.

    For a domain (leaf, block, spine) with x of n members, min(x, n - x) links up carry
    the traffic between its members and the others at full speed.
    """
    total = sum(hosts.values())
    crossed = 0
    for level in LEVELS:
        inside: dict[str | None, int] = {}
        for host, members in hosts.items():
            place = fabric.place(host)
            name = None if place is None else place.domain(level)
            if name is not None:
                inside[name] = inside.get(name, 0) + members
        crossed += sum(min(members, total - members) for members in inside.values())
    return crossed
