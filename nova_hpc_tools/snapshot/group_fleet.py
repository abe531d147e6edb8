# SPDX-License-Identifier: Apache-2.0
"""All groups' domains of a cloud: what operators see of them, and how leftovers go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import attrs

from nova_hpc.cluster.group_domain.model import Provider, Tree, domain_of
from nova_hpc.cluster.group_domain.records import Records, Servers, Swept, sweep


@attrs.frozen
class Fleet:
    """The trees of all domains."""

    trees: tuple[Tree, ...]

    @classmethod
    def of(cls, providers: Iterable[Provider]) -> Fleet:
        """Pick them out of all providers of a cloud."""
        below: dict[str, list[Provider]] = {}
        for each in providers:
            below.setdefault(each.root, []).append(each)
        roots = [
            (each.name, each.uuid)
            for root, found in below.items()
            for each in found
            if each.uuid == root and domain_of(each.name)
        ]
        return cls(tuple(Tree.of(root, below[root]) for _, root in sorted(roots)))

    @property
    def tickets(self) -> frozenset[str]:
        """Servers with a ticket."""
        return frozenset(ticket for tree in self.trees for ticket in tree.tickets)


@attrs.frozen
class GroupLine:
    """What operators see of one group."""

    #: The server group's UUID.
    group: str
    #: Of its domain: the word of the level, and the name.
    level: str
    domain: str
    #: Members that were announced; 1: none were.
    announced: int
    #: Servers with a ticket that are there.
    members: int
    #: Tickets whose servers are no more; ``reap`` takes them away, or a scheduler that needs
    #: their places.
    leftover: int
    #: ``decided``, or ``undecided``: a room whose scheduler is at it, or has died.
    state: str


def lines(fleet: Fleet, dead: Collection[str]) -> tuple[GroupLine, ...]:
    """One line for each room, by domain and group.

    :param dead: tickets whose servers are no more, as
        :func:`nova_hpc.cluster.group_domain.records.dead` says it.
    """
    found = []
    for tree in fleet.trees:
        domain = domain_of(tree.name)
        if domain is None:
            continue
        for room in tree.rooms:
            tickets = room.record.tickets if room.record else ()
            gone = sum(ticket in dead for ticket in tickets)
            found.append(
                GroupLine(
                    group=room.group,
                    level=domain.level,
                    domain=domain.name,
                    announced=room.members,
                    members=len(tickets) - gone,
                    leftover=gone,
                    state="decided" if room.record else "undecided",
                )
            )
    return tuple(sorted(found, key=lambda line: (line.level, line.domain, line.group)))


@attrs.frozen
class Reaped:
    """What ``nova-hpc fabric reap`` has taken away."""

    swept: Swept = attrs.field(factory=Swept)
    #: Domains that no group has any more; the next one makes them again.
    domains: int = 0
    #: Providers below a domain that are of no kind that is known here; they stay.
    strange: tuple[str, ...] = ()


def reap(records: Callable[[], Records], servers: Servers) -> Reaped:
    """Take away what nobody has any more, in all domains; safe at any time.

    :param records: new ones for each domain, so that each has its time.
    :raises nova_hpc.cluster.group_domain.records.NoAnswerError: Placement or Nova's
        database does not answer; what was done stays done.
    """
    fleet = Fleet.of(records().providers())
    total, domains, strange = Swept(), 0, []
    for tree in fleet.trees:
        own = records()
        total += sweep(own, servers, tree)
        strange += [f"{each.name} ({each.uuid})" for each in tree.strange]
        domains += own.remove(tree.domain)
    return Reaped(total, domains, tuple(strange))
