# SPDX-License-Identifier: Apache-2.0
"""Switches and cables turned into a map: which switches are one domain, and at which level.

Each reader of a source with switches delivers a :class:`Graph`. This module finds the domains
for all of them in the same way.

*Which switches are one domain.* Switches that serve the same hosts are one domain; see
:mod:`nova_hpc_tools.fabric.switch_groups`. A switch across several domains (storage, management)
is not a domain. So neither a lost nor a wrong cable changes the domains of other hosts. A domain
that stays undecided is unknown, and a problem.

*The core.* Hosts share a core if cables connect them. With three or more tiers, the switches of
the highest tier connect them. Otherwise any cables do, also those between switches of one tier
(two switches back to back, the groups of a Dragonfly+).

*Which level.* The height above the hosts decides: two tiers of switches are leaf and spine,
three are leaf, spine and core, four have blocks between leaf and spine.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.model import (
    FabricLevel,
    FabricLink,
    FabricMap,
    FabricPlace,
    FabricSwitch,
    Rail,
)
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions, note_placeholders
from nova_hpc_tools.fabric.problems import FabricReading, ProblemCollector
from nova_hpc_tools.fabric.switch_groups import SwitchGroups, group_switches, separate_switches

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
class HostPort:
    """A cable from a host to a switch, with its rail, its rate and its line in the source."""

    host: str
    switch: str
    rail: str | None = None
    rate: str | None = None
    line: int | None = None


@attrs.frozen
class Cables:
    """All cables from one switch to another one that is closer to the core."""

    lower: str
    upper: str
    count: int = 1
    rate: str | None = None
    line: int | None = None


@attrs.frozen
class Graph:
    """The facts of a map source as they were read. All names in it are valid."""

    ports: tuple[HostPort, ...] = ()
    cables: tuple[Cables, ...] = ()
    #: Name -> GUID, also of switches without any cable.
    switches: Mapping[str, str | None] = attrs.field(factory=dict)
    #: Host -> its NVLink domain.
    nvlink: Mapping[str, str] = attrs.field(factory=dict)
    #: Host -> its sub-domain, a part of the NVLink domain.
    sub_domains: Mapping[str, str] = attrs.field(factory=dict)
    #: All hosts of the source, also those without a port here.
    hosts: tuple[str, ...] = ()
    #: Pairs of switches of one tier that are cabled to each other.
    beside: tuple[tuple[str, str], ...] = ()
    #: Whether a host can have ports on several leaf switches of one domain, its rails. If not, a
    #: host on two switches is a contradiction.
    has_rails: bool = False
    #: Whether a cable that is missing, compared with similar switches, is a dead link. This is so
    #: in discovered graphs only: the author of a written map may have left cables out.
    discovered: bool = False

    def without(self, exclusions: Exclusions) -> Graph:
        """Return a copy without the hosts, switches, ports and domains that *exclusions* names."""

        def keeps(*switches: str) -> bool:
            return not any(map(exclusions.leaves_out_switch, switches))

        def keep_domains(domain_of: Mapping[str, str]) -> dict[str, str]:
            return {
                host: name
                for host, name in domain_of.items()
                if not exclusions.is_placeholder(name) and not exclusions.leaves_out_host(host)
            }

        return attrs.evolve(
            self,
            ports=tuple(
                port
                for port in self.ports
                if keeps(port.switch)
                and not exclusions.leaves_out_rail(port.rail)
                and not exclusions.leaves_out_host(port.host)
            ),
            cables=tuple(cables for cables in self.cables if keeps(cables.lower, cables.upper)),
            switches={name: guid for name, guid in self.switches.items() if keeps(name)},
            nvlink=keep_domains(self.nvlink),
            sub_domains=keep_domains(self.sub_domains),
            hosts=tuple(host for host in self.hosts if not exclusions.leaves_out_host(host)),
            beside=tuple(pair for pair in self.beside if keeps(*pair)),
        )


def speed_of_rate(rate: str | None) -> float | None:
    """Convert ibnetdiscover's rate to Gb/s, such as 400.0 for ``4xNDR``; None if unknown."""
    match = _RATE.fullmatch(rate or "")
    if match is None or match[2] not in _LANE:
        return None
    return int(match[1]) * _LANE[match[2]]


def build_map_from_graph(
    graph: Graph,
    collector: ProblemCollector,
    name: str,
    source: str,
    exclusions: Exclusions = NOTHING,
) -> FabricReading:
    """Build a fabric map from *graph*. Contradictions become problems in *collector*.

    The tiers are processed from the hosts upwards. The users of the first tier are hosts; the
    users of each next tier are the domains of the tier below, and hosts or domains that have no
    domain there.
    """
    note_placeholders(_hosts_by_domain(graph), exclusions, collector)
    graph = graph.without(exclusions)
    tiers = _sort_into_tiers(graph, collector)
    levels = _LEVELS[max(1, min(len(tiers), max(_LEVELS)))]
    if len(tiers) > len(levels):
        collector.wrong(
            f"it has {len(tiers)} tiers of switches; the {len(levels)} next to the hosts are read"
        )
    # Per tier: user (host or key of a domain below) -> its domain, and switch -> its domain.
    above: list[dict[str, str]] = []
    serves: list[Mapping[str, str]] = []
    below: dict[str, list[str]] = {}
    ports: dict[tuple[str, str], HostPort] = {}
    for port in graph.ports:
        below.setdefault(port.host, []).append(port.switch)
        ports.setdefault((port.host, port.switch), port)
    parents = _parents_of_switches(graph)
    rank = {switch: number for number, tier in enumerate(tiers) for switch in tier}
    for number, level in enumerate(levels):
        tier = tiers[number] if number < len(tiers) else frozenset()
        users = {
            user: [switch for switch in switches if switch in tier]
            for user, switches in below.items()
        }
        together = number > 0 or graph.has_rails
        groups = group_switches(users) if together else separate_switches(users)
        domain_of = groups.domain_of
        serves.append(domain_of)
        above.append(_settle_domains(users, groups, level, ports, collector))
        # Users of the next tier: the domains of this one, and users that have no domain here.
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
            key = _key_of_domain(number, domain)
            following.setdefault(key, []).extend(parents.get(switch, ()))
        below = {user: switches for user, switches in following.items() if switches}
    places = _name_cores(_place_hosts(graph, levels, above), graph, rank)
    switches = [
        FabricSwitch(switch, level, serves[number].get(switch), graph.switches.get(switch))
        for number, level in enumerate(levels)
        if number < len(tiers)
        for switch in tiers[number]
    ]
    kept = {switch.name for switch in switches}
    leaves = frozenset(above[0].values()) if above else frozenset()
    no_leaves = {switch for switch, domain in serves[0].items() if domain not in leaves}
    links = [
        link for link in _build_links(graph, tiers, no_leaves) if {link.lower, link.upper} <= kept
    ]
    return collector.checked_reading(FabricMap(places, switches, links, name, source))


def _key_of_domain(tier: int, domain: str) -> str:
    # No host has such a name (it could not be printed).
    return f"\0{tier}\0{domain}"


def _name_in_key(user: str) -> str:
    return user.rpartition("\0")[2]


def _parents_of_switches(graph: Graph) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = {}
    for cables in graph.cables:
        if cables.count:
            parents.setdefault(cables.lower, []).append(cables.upper)
    return parents


def _sort_into_tiers(graph: Graph, collector: ProblemCollector) -> list[frozenset[str]]:
    """Sort the switches by their height above the hosts, without those in a circle of cables.

    :returns: one set for each tier, the lowest first.
    """
    children: dict[str, set[str]] = {}
    uppers = _parents_of_switches(graph)
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
            cables.line
            for cables in graph.cables
            if cables.lower in circle and cables.upper in circle and cables.line
        ]
        names = ", ".join(circle[:5]) + (" and more" if len(circle) > 5 else "")
        collector.wrong(
            f"switches are above each other in a circle: {names}", min(lines, default=None)
        )
    for switch in circle:
        height.pop(switch, None)
    top = max(height.values(), default=-1)
    return [
        frozenset(switch for switch, at in height.items() if at == number)
        for number in range(top + 1)
    ]


def _settle_domains(
    users: Mapping[str, list[str]],
    groups: SwitchGroups,
    level: FabricLevel,
    ports: Mapping[tuple[str, str], HostPort],
    collector: ProblemCollector,
) -> dict[str, str]:
    """Choose the domain of each user (a host or lower domain) from its switches.

    :returns: user -> domain; users without a domain are missing.
    """
    for disagreeing in groups.disagreeing:
        collector.wrong(
            f"some of the switches {join_first(disagreeing, 5)} serve nearly the same, "
            f"others do not: "
            f"none of them are taken for one {level.word}"
        )
    settled: dict[str, str] = {}
    gave_way: dict[str, set[str]] = {}
    for user, switches in users.items():
        choice = groups.choose_domain(switches)
        if choice is None:
            continue
        for wider, narrower in choice.gave_way.items():
            gave_way.setdefault(wider, set()).add(narrower)
        used = [ports[user, switch] for switch in switches if (user, switch) in ports]
        if choice.domain is None:
            who = f"host {user!r}" if used else f"the domain {_name_in_key(user)!r}"
            collector.wrong(
                f"{who} is as much in one {level.word} as in another: {', '.join(choice.tied)}",
                min((port.line for port in used if port.line), default=None),
            )
            continue
        settled[user] = choice.domain
        for port in used:
            if groups.domain_of[port.switch] in choice.outvoted:
                rail = f"port {port.rail}" if port.rail else "a port"
                collector.note(
                    f"{rail} of host {user!r} goes to {port.switch}, most others to the "
                    f"{level.word} {choice.domain}: is the cable in the wrong place?",
                    port.line,
                )
    for wider, inside in sorted(gave_way.items()):
        others = sorted(switch for switch, domain in groups.domain_of.items() if domain == wider)
        verb, it, they = ("es", "", "they count") if len(others) > 1 else ("", "s", "it counts")
        collector.note(
            f"switch{verb} {join_first(others, 5)} also serve{it} hosts of the "
            f"{level.noun(len(inside))} {join_first(sorted(inside), 5)}, so {they} for no "
            f"{level.word} there (a network for storage or management? --ignore-switches leaves "
            "it out)"
        )
    return settled


def _place_hosts(
    graph: Graph, levels: tuple[FabricLevel, ...], above: list[dict[str, str]]
) -> list[FabricPlace]:
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
                at = _key_of_domain(number, domain)
        places.append(
            FabricPlace(
                host,
                nvlink_domain=graph.nvlink.get(host),
                sub_domain=graph.sub_domains.get(host),
                rails=tuple(sorted(rails.get(host, ()), key=lambda rail: rail.name)),
                **domains,
            )
        )
    return places


def _build_links(
    graph: Graph, tiers: list[frozenset[str]], no_leaves: Container[str]
) -> list[FabricLink]:
    """Build the links between the switches, with the number of their missing cables.

    A discovered graph misses cables if a link has fewer than the usual number of its two tiers.

    :param no_leaves: switches of the lowest tier that are not leaves (storage, management) and are
        cabled in another way.
    """
    pairs: dict[tuple[str, str], list[Cables]] = {}
    for cables in graph.cables:
        pairs.setdefault((cables.lower, cables.upper), []).append(cables)
    expected: dict[tuple[str, str], int] = {}
    if graph.discovered:
        for lower_tier, upper_tier in itertools.pairwise(tiers):
            counts = {
                pair: sum(cables.count for cables in those)
                for pair, those in pairs.items()
                if pair[0] in lower_tier and pair[1] in upper_tier and pair[0] not in no_leaves
            }
            if not counts:
                continue
            usual = Counter(counts.values()).most_common(1)[0][0]
            # A plane is the spines over the same leaf switches. Each leaf of it has a link to each.
            users: dict[str, list[str]] = {}
            for lower, upper in counts:
                users.setdefault(lower, []).append(upper)
            plane_of = group_switches(users).domain_of
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
        count = sum(cables.count for cables in those)
        rates = sorted(
            {cables.rate for cables in those if cables.rate},
            key=lambda rate: speed_of_rate(rate) or 0,
        )
        missing = max(0, expected.get((lower, upper), 0) - count)
        links.append(FabricLink(lower, upper, count, missing, rates[0] if rates else None))
    return links


def _name_cores(
    places: list[FabricPlace], graph: Graph, rank: Mapping[str, int]
) -> list[FabricPlace]:
    """Give each host without a core the name of the fabric that its switches are connected to.

    :param rank: switch -> its tier, from 0.
    """
    fabrics = _connected_switches(graph)
    tier_cores = {place.core for place in places if place.core is not None}
    core_of: dict[str, str] = {}
    for switches in fabrics:
        inside = tier_cores & switches
        if len(inside) > 1 or (len(switches) == 1 and len(fabrics) > 1):
            continue  # two cores, or a switch without cables, whose fabric is unknown
        top = max(rank.get(switch, 0) for switch in switches)
        name = min(inside or {switch for switch in switches if rank.get(switch, 0) == top})
        core_of.update(dict.fromkeys(switches, name))
    ports: dict[str, set[str]] = {}
    for port in graph.ports:
        ports.setdefault(port.host, set()).add(port.switch)
    named_places = []
    for place in places:
        domain = next((name for name in (place.leaf, place.block, place.spine) if name), None)
        at = {domain} if domain else ports.get(place.host, set())
        cores = {core_of.get(switch) for switch in at}
        core = cores.pop() if place.core is None and len(cores) == 1 else place.core
        named_places.append(attrs.evolve(place, core=core))
    return named_places


def _connected_switches(graph: Graph) -> list[frozenset[str]]:
    """Return the sets of switches that cables connect, in the order of their first names."""
    beside: dict[str, set[str]] = {name: set() for name in graph.switches}
    for port in graph.ports:
        beside.setdefault(port.switch, set())
    pairs = [(cables.lower, cables.upper) for cables in graph.cables if cables.count]
    for first, neighbour in (*pairs, *graph.beside):
        beside.setdefault(first, set()).add(neighbour)
        beside.setdefault(neighbour, set()).add(first)
    fabrics = []
    left = dict.fromkeys(sorted(beside))
    while left:
        switches = [next(iter(left))]
        del left[switches[0]]
        for switch in switches:  # grows while it is walked
            for neighbour in beside[switch]:
                if neighbour in left:
                    del left[neighbour]
                    switches.append(neighbour)
        fabrics.append(frozenset(switches))
    return fabrics


def _hosts_by_domain(graph: Graph) -> dict[str, set[str]]:
    """Return name of a leaf switch or NVLink domain -> its hosts."""
    hosts_by_name: dict[str, set[str]] = {}
    for port in graph.ports:
        hosts_by_name.setdefault(port.switch, set()).add(port.host)
    for host, domain in graph.nvlink.items():
        hosts_by_name.setdefault(domain, set()).add(host)
    return hosts_by_name
