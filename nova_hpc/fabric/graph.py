# SPDX-License-Identifier: Apache-2.0
"""Switches and cables turned into a map: which switches are one domain, and at which level.

All readers whose source has switches deliver a :class:`Graph`; what a domain is, is worked
out here for all of them alike.

*Which switches are one domain.* Hosts with several rails are on as many leaf switches, and
a pod has several spine switches over the same leaves. Two switches belong together when
more than half of what hangs on the one that has less hangs on the other, too. So a lost or
a wrong cable changes nothing for the others: the host goes where most of its ports are, and
the port that is elsewhere is named. What has no majority is unknown. A domain is called
like the first of its switches in the order of the names.

*Which level.* By the height above the hosts: two tiers of switches are leaf and spine,
three are leaf, spine and core, four have blocks between leaf and spine.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricLevel, FabricMap, Link, Place, Rail, Switch, wrong_name
from nova_hpc.fabric.problems import Found, Reading

_L = FabricLevel
#: Number of tiers -> the level of each, from the hosts on.
_LEVELS: Final = {
    1: (_L.LEAF,),
    2: (_L.LEAF, _L.SPINE),
    3: (_L.LEAF, _L.SPINE, _L.CORE),
    4: (_L.LEAF, _L.BLOCK, _L.SPINE, _L.CORE),
}
_RATE: Final = re.compile(r"(\d+)x([A-Z]+\d*)")
#: Gb/s of one lane.
_LANE: Final = {
    "SDR": 2.5,
    "DDR": 5,
    "QDR": 10,
    "FDR10": 10.3,
    "FDR": 14,
    "EDR": 25,
    "HDR": 50,
    "NDR": 100,
    "XDR": 200,
}


@attrs.frozen
class Port:
    """A host's cable to a switch."""

    host: str
    switch: str
    rail: str | None = None
    rate: str | None = None
    line: int | None = None


@attrs.frozen
class Cables:
    """All cables from one switch to one nearer to the core."""

    lower: str
    upper: str
    count: int = 1
    rate: str | None = None
    line: int | None = None


@attrs.frozen
class Graph:
    """What a source says, before anything is made of it. All names are good ones."""

    ports: tuple[Port, ...] = ()
    cables: tuple[Cables, ...] = ()
    #: Name -> GUID, also of switches without any cable.
    switches: Mapping[str, str | None] = attrs.field(factory=dict)
    #: Host -> its NVLink domain.
    nvlink: Mapping[str, str] = attrs.field(factory=dict)
    #: Hosts that are known, on whatever switch.
    hosts: tuple[str, ...] = ()
    #: Whether a cable that its like have and that is missing is a dead one: true for what
    #: was discovered, not for what somebody wrote.
    discovered: bool = False


def speed(rate: str | None) -> float | None:
    """Gb/s of a rate as ibnetdiscover writes it, e.g. 400.0 for ``4xNDR``; None: unknown."""
    match = _RATE.fullmatch(rate or "")
    if match is None or match[2] not in _LANE:
        return None
    return int(match[1]) * _LANE[match[2]]


def build(graph: Graph, found: Found, name: str, source: str) -> Reading:
    """The map that *graph* means; what contradicts itself is added to *found*."""
    tiers = _tiers(graph, found)
    levels = _LEVELS[max(1, min(len(tiers), max(_LEVELS)))]
    if len(tiers) > len(levels):
        found.wrong(
            f"it has {len(tiers)} tiers of switches; the {len(levels)} next to the hosts are read"
        )
    # Per tier: switch -> domain, then domain or host below -> domain.
    above: list[dict[str, str]] = []
    serves: list[dict[str, str]] = []
    below: dict[str, list[str]] = {}
    ports: dict[tuple[str, str], Port] = {}
    for port in graph.ports:
        below.setdefault(port.host, []).append(port.switch)
        ports.setdefault((port.host, port.switch), port)
    parents = _parents(graph)
    rank = {switch: number for number, tier in enumerate(tiers) for switch in tier}
    for number, level in enumerate(levels):
        tier = tiers[number] if number < len(tiers) else frozenset()
        users = {
            user: [switch for switch in switches if switch in tier]
            for user, switches in below.items()
        }
        domain_of = _together(users)
        serves.append(domain_of)
        above.append(_settle(users, domain_of, level, ports, found))
        # Who asks on the next tier: the domains of this one, and who found none here.
        following = {
            user: [
                upper
                for switch in switches
                for upper in (
                    [switch] if rank.get(switch, -1) > number else parents.get(switch, ())
                )
            ]
            for user, switches in below.items()
            if user not in above[-1]
        }
        for switch, domain in domain_of.items():
            key = _key(number, domain)
            following.setdefault(key, []).extend(parents.get(switch, ()))
        below = {user: switches for user, switches in following.items() if switches}
    places = _places(graph, levels, above)
    switches = [
        Switch(switch, level, serves[number].get(switch), graph.switches.get(switch))
        for number, level in enumerate(levels)
        if number < len(tiers)
        for switch in tiers[number]
    ]
    kept = {switch.name for switch in switches}
    links = [link for link in _links(graph, tiers) if {link.lower, link.upper} <= kept]
    fabric = FabricMap(places, switches, links, name, source)
    for text in fabric.contradictions():
        found.wrong(text)
    for text in fabric.crossings():
        found.note(text)
    return found.reading(fabric)


def _key(tier: int, domain: str) -> str:
    # No host has such a name (it could not be printed).
    return f"\0{tier}\0{domain}"


def _name(user: str) -> str:
    return user.rpartition("\0")[2]


def _parents(graph: Graph) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = {}
    for cables in graph.cables:
        if cables.count:
            parents.setdefault(cables.lower, []).append(cables.upper)
    return parents


def _tiers(graph: Graph, found: Found) -> list[frozenset[str]]:
    """The switches by their height above the hosts; what lies in a circle is left out."""
    children: dict[str, set[str]] = {}
    uppers = _parents(graph)
    for lower, above in uppers.items():
        for upper in above:
            children.setdefault(upper, set()).add(lower)
    everything = {port.switch for port in graph.ports} | set(children) | set(uppers)
    waiting = {switch: len(children.get(switch, ())) for switch in everything}
    height = {switch: 0 for switch, count in waiting.items() if not count}
    ready = sorted(height)
    while ready:
        switch = ready.pop()
        for upper in set(uppers.get(switch, ())):
            height[upper] = max(height.get(upper, 0), height[switch] + 1)
            waiting[upper] -= 1
            if not waiting[upper]:
                ready.append(upper)
    circle = sorted(switch for switch, count in waiting.items() if count)
    if circle:
        lines = [
            each.line
            for each in graph.cables
            if each.lower in circle and each.upper in circle and each.line
        ]
        said = ", ".join(circle[:5]) + (" and more" if len(circle) > 5 else "")
        found.wrong(f"switches are above each other in a circle: {said}", min(lines, default=None))
    for switch in circle:
        height.pop(switch, None)
    top = max(height.values(), default=-1)
    return [
        frozenset(switch for switch, at in height.items() if at == number)
        for number in range(top + 1)
    ]


def _together(users: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Switch -> the domain that it is part of, by who uses which switches.

    :param users: host, or domain of the tier below -> its switches.
    """
    used: dict[str, set[str]] = {}
    for user, switches in users.items():
        for switch in switches:
            used.setdefault(switch, set()).add(user)
    # Switches with the very same users are one; few kinds are left to compare.
    kinds: dict[frozenset[str], list[str]] = {}
    for switch, those in used.items():
        kinds.setdefault(frozenset(those), []).append(switch)
    sets = list(kinds)
    of_user: dict[str, list[int]] = {}
    for number, kind in enumerate(sets):
        for user in kind:
            of_user.setdefault(user, []).append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for numbers in of_user.values():
        shared.update(itertools.combinations(numbers, 2))
    leader = list(range(len(sets)))

    def lead(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    for (one, other), count in shared.items():
        if 2 * count > min(len(sets[one]), len(sets[other])):
            leader[lead(one)] = lead(other)
    names: dict[int, str] = {}
    for number, kind in enumerate(sets):
        top = lead(number)
        names[top] = min(*kinds[kind], names.get(top, kinds[kind][0]))
    return {
        switch: names[lead(number)] for number, kind in enumerate(sets) for switch in kinds[kind]
    }


def _settle(
    users: Mapping[str, list[str]],
    domain_of: Mapping[str, str],
    level: FabricLevel,
    ports: Mapping[tuple[str, str], Port],
    found: Found,
) -> dict[str, str]:
    """User -> the domain where most of its ports are."""
    settled: dict[str, str] = {}
    for user, switches in users.items():
        votes = Counter(domain_of[switch] for switch in switches)
        if not votes:
            continue
        (best, most), *others = votes.most_common()
        used = [ports[user, switch] for switch in switches if (user, switch) in ports]
        if others and others[0][1] == most:
            who = f"host {user!r}" if used else f"the domain {_name(user)!r}"
            found.wrong(
                f"{who} is as much in one {level.word} as in another: {', '.join(sorted(votes))}",
                min((port.line for port in used if port.line), default=None),
            )
            continue
        settled[user] = best
        for port in used:
            if domain_of[port.switch] != best:
                rail = f"port {port.rail}" if port.rail else "a port"
                found.note(
                    f"{rail} of host {user!r} goes to {port.switch}, most others to the "
                    f"{level.word} {best}: is the cable in the wrong place?",
                    port.line,
                )
    return settled


def _places(
    graph: Graph, levels: tuple[FabricLevel, ...], above: list[dict[str, str]]
) -> list[Place]:
    rails: dict[str, list[Rail]] = {}
    for port in graph.ports:
        if port.rail is not None:
            rails.setdefault(port.host, []).append(Rail(port.rail, port.switch, port.rate))
    hosts = {port.host for port in graph.ports} | set(graph.nvlink) | set(graph.hosts)
    places = []
    for host in sorted(hosts):
        domains: dict[str, str] = {}
        at = host
        for number, level in enumerate(levels):
            domain = above[number].get(at)
            if domain is not None:
                domains[level.word] = domain
                at = _key(number, domain)
        places.append(
            Place(
                host,
                nvlink_domain=graph.nvlink.get(host),
                rails=tuple(sorted(rails.get(host, ()), key=lambda rail: rail.name)),
                **domains,
            )
        )
    return places


def _links(graph: Graph, tiers: list[frozenset[str]]) -> list[Link]:
    """What connects the switches, and what is missing there."""
    pairs: dict[tuple[str, str], list[Cables]] = {}
    for cables in graph.cables:
        pairs.setdefault((cables.lower, cables.upper), []).append(cables)
    expected: dict[tuple[str, str], int] = {}
    if graph.discovered:
        for lower_tier, upper_tier in itertools.pairwise(tiers):
            counts = {
                pair: sum(each.count for each in those)
                for pair, those in pairs.items()
                if pair[0] in lower_tier and pair[1] in upper_tier
            }
            if not counts:
                continue
            usual = Counter(counts.values()).most_common(1)[0][0]
            # A plane: spines over the same leaf switches. Each leaf of it has them all.
            users: dict[str, list[str]] = {}
            for lower, upper in counts:
                users.setdefault(lower, []).append(upper)
            plane_of = _together(users)
            planes: dict[str, list[str]] = {}
            for switch, plane in plane_of.items():
                planes.setdefault(plane, []).append(switch)
            for lower, uppers in users.items():
                votes = Counter(plane_of[upper] for upper in uppers)
                for upper in planes[votes.most_common(1)[0][0]]:
                    expected[lower, upper] = usual
    links = []
    for lower, upper in {**pairs, **expected}:
        those = pairs.get((lower, upper), [])
        count = sum(each.count for each in those)
        rates = sorted(
            {each.rate for each in those if each.rate}, key=lambda rate: speed(rate) or 0
        )
        missing = max(0, expected.get((lower, upper), 0) - count)
        links.append(Link(lower, upper, count, missing, rates[0] if rates else None))
    return links


def good_name(name: object, what: str, found: Found, line: int | None) -> bool:
    """Whether *name* can be a name; a problem is added to *found* where not."""
    wrong = wrong_name(name)
    if wrong is not None:
        found.wrong(f"{what}: {wrong}", line)
    return wrong is None
