# SPDX-License-Identifier: Apache-2.0
"""The domains of all groups of a cloud: lines for operators, and the removal of leftovers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import attrs

from nova_hpc.cluster.group_domain.model import DomainTree, GroupProvider, domain_of
from nova_hpc.cluster.group_domain.records import (
    NovaServers,
    ProviderRecords,
    SweptProviders,
    sweep_domain_tree,
)


@attrs.frozen
class DomainFleet:
    """The records in Placement of all fabric domains, with their server groups and tickets."""

    trees: tuple[DomainTree, ...]

    @classmethod
    def of(cls, providers: Iterable[GroupProvider]) -> DomainFleet:
        """Select the trees of domains from all providers of a cloud."""
        below: dict[str, list[GroupProvider]] = {}
        for provider in providers:
            below.setdefault(provider.root, []).append(provider)
        roots = [
            (provider.name, provider.uuid)
            for root, tree_providers in below.items()
            for provider in tree_providers
            if provider.uuid == root and domain_of(provider.name)
        ]
        return cls(tuple(DomainTree.of(root, below[root]) for _, root in sorted(roots)))

    @property
    def tickets(self) -> frozenset[str]:
        """UUIDs of the servers with a ticket in any domain."""
        return frozenset(ticket for tree in self.trees for ticket in tree.tickets)


@attrs.frozen
class GroupLine:
    """A server group with its fabric domain and numbers of members, as operators see it."""

    #: The server group's UUID.
    group: str
    #: Level and name of its domain.
    level: str
    domain: str
    #: The number of announced members; 1 if none were announced.
    announced: int
    #: The number of existing servers with a ticket.
    members: int
    #: The number of tickets of deleted servers. ``reap`` removes them, and so does a scheduler
    #: that needs their places.
    leftover: int
    #: ``decided``, or ``undecided`` for a room whose scheduler is still choosing, or has died.
    state: str


def list_group_lines(fleet: DomainFleet, dead: Collection[str]) -> tuple[GroupLine, ...]:
    """List one line for each room (a group's reservation in a domain), sorted by domain and group.

    :param dead: tickets of deleted servers, from
        :func:`nova_hpc.cluster.group_domain.records.find_dead_tickets`.
    """
    group_lines = []
    for tree in fleet.trees:
        domain = domain_of(tree.name)
        if domain is None:
            continue
        for room in tree.rooms:
            tickets = room.record.tickets if room.record else ()
            gone = sum(ticket in dead for ticket in tickets)
            group_lines.append(
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
    return tuple(sorted(group_lines, key=lambda line: (line.level, line.domain, line.group)))


@attrs.frozen
class Reaped:
    """The providers that ``nova-hpc fabric reap`` has removed."""

    swept: SweptProviders = attrs.field(factory=SweptProviders)
    #: The number of removed domains without groups; the next group creates them again.
    domains: int = 0
    #: Providers below a domain whose kind is unknown to this release; they are kept.
    strange: tuple[str, ...] = ()


def reap_all_domains(records: Callable[[], ProviderRecords], servers: NovaServers) -> Reaped:
    """Remove the records of deleted servers and empty groups in all domains; safe at any time.

    :param records: returns new records; called for each domain, so that each has its own time
        limit.
    :raises nova_hpc.cluster.group_domain.records.PlacementSilentError: Placement or Nova's
        database does not answer; removals so far are kept.
    """
    fleet = DomainFleet.of(records().providers())
    total, domains, strange = SweptProviders(), 0, []
    for tree in fleet.trees:
        own = records()
        total += sweep_domain_tree(own, servers, tree)
        strange += [f"{provider.name} ({provider.uuid})" for provider in tree.strange]
        domains += own.remove(tree.domain)
    return Reaped(total, domains, tuple(strange))
