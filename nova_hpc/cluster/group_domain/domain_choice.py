# SPDX-License-Identifier: Apache-2.0
"""The domain that a group gets, and the place of the next member in it, by the planner. Pure.

The scheduler and ``nova-hpc explain`` call the same function
(:func:`nova_hpc.cluster.plan.search.plan_gang`), the scheduler with the hosts that Nova offers.
This module adds two conditions of schedulers: domains whose places are kept for other groups,
and members that come one after the other.

An example. On the map *f* leaf l1 has hosts n1 and n2 with one free place each, l2 has n3 with
four and n4 with two, l3 has n5 with three; all are in block b1. A group wants one leaf.

#. It has three members: :meth:`Ground.choose` returns leaf ``f/l3``, 0 levels above the wanted one.
#. Another group's room keeps two places of l3, which the caller finds in Placement. It calls again
   with a *cut* of 1 for l3, and gets leaf ``f/l2``.
#. A group of seven gets None; with *flexible* it gets block ``f/b1``, one level above.
#. One of the members is on n4 and three remain: :meth:`Ground.scores` gives 1.0 to n3
   and n4, and less than 0.5 to all others.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.cluster.group_domain.model import EVERYWHERE, GroupDomain
from nova_hpc.cluster.plan import Gang, GangPlan, GangPolicy, plan_gang
from nova_hpc.cluster.plan.tree import natural_sort_key
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace

#: Enough for any group: the domain of all hosts can never be full.
UNBOUNDED: Final = 10**9
_NONE: Final[Mapping[str, int]] = {}


@attrs.frozen
class FabricSeat:
    """A host's place on the fabric, and the number of servers of the request that fit on it now."""

    place: FabricPlace
    #: The name of the fabric map with this host; "" if no map has it.
    map: str = ""
    fit: int = 0
    #: Level -> its domain, the tightest first; if that is unknown, the narrower one that
    #: certainly lies in it.
    domains: Mapping[FabricLevel, GroupDomain] = attrs.field(init=False, eq=False, repr=False)

    @domains.default
    def _domains(self) -> Mapping[FabricLevel, GroupDomain]:
        domains = {}
        for level in FabricLevel:
            enclosing = self.place.enclosing(level)
            if enclosing is not None:
                sure_level, name = enclosing
                domains[level] = GroupDomain(sure_level.word, f"{self.map}/{name}")
        return domains

    def is_in(self, domain: str) -> bool:
        """Whether the host is in the domain with this UUID, of any level."""
        return domain == EVERYWHERE.uuid or any(
            own_domain.uuid == domain for own_domain in self.domains.values()
        )


@attrs.frozen(eq=False, slots=False)
class Ground:
    """The hosts of one scheduling request, from which the domain of a server group is chosen."""

    seats: tuple[FabricSeat, ...]

    @functools.cached_property
    def hosts(self) -> Mapping[str, int]:
        """UUID of a domain of any level -> number of its hosts that can take a server."""
        host_counts: collections.Counter[str] = collections.Counter()
        for seat in self.seats:
            if seat.fit:
                host_counts.update(
                    {EVERYWHERE.uuid, *(domain.uuid for domain in seat.domains.values())}
                )
        return host_counts

    def free(self, level: FabricLevel) -> Mapping[GroupDomain, int]:
        """Count the servers that fit now into each domain of *level*.

        :returns: domain -> number of servers; domains without a seat are left out.
        """
        free_places: collections.Counter[GroupDomain] = collections.Counter()
        for seat in self.seats:
            if level in seat.domains:
                free_places[seat.domains[level]] += seat.fit
        return free_places

    def free_in(self, domain: GroupDomain) -> int:
        """Count the servers that fit into *domain* now; UNBOUNDED if it means all hosts."""
        if domain == EVERYWHERE:
            return UNBOUNDED
        return sum(seat.fit for seat in self.seats if seat.is_in(domain.uuid))

    # -- the planner's words ---------------------------------------------------

    @functools.cached_property
    def fabric(self) -> FabricMap:
        """The hosts as a fabric map for the planner, with the domain names of their own map.

        Two maps may have domains of one name. If there are several maps, UUIDs are the names.
        """
        several = len({seat.map for seat in self.seats if seat.domains}) > 1
        places: dict[str, FabricPlace] = {}
        for seat in self.seats:
            place = seat.place
            if several:
                uuids = {
                    level.word: domain.uuid
                    for level, domain in seat.domains.items()
                    if place.domain(level) is not None
                }
                place = FabricPlace(place.host, rails=place.rails, **uuids)
            # A host of Nova may be in the list once for each of its nodes.
            places[place.host] = place
        return FabricMap(places=tuple(places.values()))

    @functools.cached_property
    def _named(self) -> Mapping[tuple[FabricLevel, str], GroupDomain]:
        domains: dict[tuple[FabricLevel, str], GroupDomain] = {}
        for seat in self.seats:
            place = self.fabric.place(seat.place.host) or seat.place
            for level, domain in seat.domains.items():
                name = place.domain(level)
                if name is not None:
                    domains[level, name] = domain
        return domains

    def named(self, domain: GroupDomain) -> tuple[FabricLevel, str] | None:
        """Return the planner's name of *domain*: its level and its name in the fabric.

        None if no host is in it, or if it means all hosts.
        """
        keys = (key for key, candidate in self._named.items() if candidate == domain)
        return next(keys, None)

    def capacity(self, cut: Mapping[str, int] = _NONE) -> dict[str, int]:
        """Count the servers that fit on each host.

        :param cut: UUID of a domain -> maximum of servers that fit into it. It is unknown which
            of its hosts lose their places, so the last ones by name do.
        :returns: host -> number of servers; 0 for a host whose places are all cut.
        """
        capacity: collections.Counter[str] = collections.Counter()
        for seat in self.seats:
            capacity[seat.place.host] += seat.fit
        for domain, most in cut.items():
            inside = {seat.place.host for seat in self.seats if seat.is_in(domain)}
            excess = sum(capacity[host] for host in inside) - most
            for host in sorted(inside, key=natural_sort_key, reverse=True):
                lost = max(0, min(capacity[host], excess))
                capacity[host] -= lost
                excess -= lost
        return dict(capacity)

    # -- the questions -----------------------------------------------------------

    def choose(
        self,
        level: FabricLevel,
        members: int,
        group: str,
        flexible: bool = False,
        before: str | None = None,
        cut: Mapping[str, int] = _NONE,
    ) -> tuple[int, GroupDomain] | None:
        """Choose the domain for a server group: how many levels above the wanted one it is, and the
        domain.

        It is the one that holds the whole plan of ``nova-hpc explain --group GROUP``. Equal
        domains come in an order that the group decides. Otherwise groups that are created at the
        same moment would all prefer the same one.

        :param flexible: whether a wider domain is acceptable, and at last any hosts.
        :param before: UUID of the domain that the group had before; it comes first.
        :param cut: UUIDs of domains -> the number of places that are left in them.
        :returns: None if no domain holds the group.
        """
        levels = [wider for wider in FabricLevel if wider >= level] if flexible else [level]
        if before is not None and before not in cut:
            for step, tried_level in enumerate(levels):
                for domain, free in self.free(tried_level).items():
                    if domain.uuid == before and free >= members:
                        return step, domain
        gang = Gang(
            members=members,
            level=level,
            policy=GangPolicy.PREFERRED if flexible else GangPolicy.REQUIRED,
            group=group,
        )
        answer = plan_gang(self.fabric, self.capacity(cut), gang)
        if isinstance(answer, GangPlan):
            for step, tried_level in enumerate(levels):
                enclosing = answer.enclosing(tried_level)
                if enclosing is not None:
                    return step, self._named[enclosing]
        if flexible and EVERYWHERE.uuid not in cut:
            # Members without a place now may still find one later.
            return len(levels), EVERYWHERE
        return None

    def scores(self, used: Mapping[str, int], left: int, group: str) -> dict[str, float]:
        """Score each host for the group's next member, from 1.0 for the best down to more than 0.

        The planner places all remaining members beside the present ones. Its leaves (and NVLink
        domains) come first. Hosts of one leaf get equal scores, because the other weighers decide
        between them.

        :param used: host -> present members. Hosts that are not in the seats do
            not count.
        :param left: remaining members, the next one included.
        :returns: host -> score; hosts on which no server fits are left out.
        """
        capacity = {host: fit for host, fit in self.capacity().items() if fit > 0}
        parts = {host: self._part(host) for host in capacity}
        if len(set(parts.values())) <= 1:
            return dict.fromkeys(parts, 1.0)
        placed = {host: number for host, number in used.items() if self.fabric.place(host)}
        members = max(1, min(left, sum(capacity.values())))
        gang = Gang(members=members, policy=GangPolicy.PREFERRED, placed=placed, group=group)
        answer = plan_gang(self.fabric, capacity, gang)
        planned: collections.Counter[tuple[str, str]] = collections.Counter()
        for host, number in answer.hosts.items() if isinstance(answer, GangPlan) else ():
            planned[parts[host]] += number
        leaves = {leaf for leaf, _ in planned}
        placed_counts: collections.Counter[tuple[str, str]] = collections.Counter()
        for host, number in placed.items():
            placed_counts[self._part(host)] += number

        def rank(part: tuple[str, str]) -> tuple[Any, ...]:
            names = natural_sort_key(part[0]), natural_sort_key(part[1])
            return (
                part not in planned,
                part[0] not in leaves,
                -placed_counts[part],
                -planned[part],
                names,
            )

        order = _score_ranked_parts(sorted(set(parts.values()), key=rank))
        return {host: order[part] for host, part in parts.items()}

    def _part(self, host: str) -> tuple[str, str]:
        """Return the key of the hosts that are equally good as *host* for a member of a gang.

        The key is a pair: the leaf, or the host if its leaf is unknown; the NVLink domain and its
        part, "" if it has none. The planner puts a gang into one part of an NVLink domain if it
        fits, so members that come one after the other must find this part again.
        """
        place = self.fabric.place(host) or FabricPlace(host=host)
        leaf = f"leaf {place.leaf}" if place.leaf is not None else f"host {host}"
        return leaf, " ".join(filter(None, (place.nvlink_domain, place.sub_domain)))


def _score_ranked_parts(order: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Return part -> score by the parts' order: 1.0, then 0.5, and evenly down to more than 0."""
    parts = list(order)
    rest = len(parts)
    return {
        part: 1.0 if number == 0 else 0.5 * (rest - number) / rest
        for number, part in enumerate(parts)
    }
