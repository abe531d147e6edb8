# SPDX-License-Identifier: Apache-2.0
"""Steps that give a member of a server group its domain, with any number of schedulers.

A member reads or writes the group's record, takes its ticket, and answers. Every step may be
the last one of this process, and may meet another scheduler or a reaper at the same place. The
result of a step is either used by the next member or swept, and nothing is ever changed in
place.
"""

from __future__ import annotations

import threading
import uuid
import zlib
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from nova_hpc.cluster.group_domain.domain_choice import Ground
from nova_hpc.cluster.group_domain.model import (
    ANY_SIZE,
    RECORD_PREFIX,
    TICKET_PREFIX,
    DomainTree,
    GroupDomain,
    GroupProvider,
    RoomVerdict,
    Size,
    judge_new_room,
    room_name,
)
from nova_hpc.cluster.group_domain.records import (
    Made,
    NovaServers,
    PlacementSilentError,
    ProviderRecords,
    find_dead_tickets,
    sweep_domain_tree,
)
from nova_hpc.fabric.model import FabricLevel

#: How often all domains are tried while only rooms that are not settled are in the way.
_PASSES: Final = 8
#: How often a scheduler with the first room checks again whether the others have gone.
_LOOKS: Final = 4
#: How often a member may find that a provider for it has just gone.
_ROUNDS: Final = 50

#: One decision at a time for each group in this process: the others only read it.
_LOCKS: Final = tuple(threading.Lock() for _ in range(64))


@attrs.frozen
class Ask:
    """The request for a new member of a server group: its server, its group and its size."""

    server: str
    group: str
    #: Announced number of members of the group; 1 without an announcement.
    members: int = 1
    #: Whether no member of the group has a host in Nova's records.
    alone: bool = False
    #: Whether the member goes elsewhere if the domain has no host for it.
    flexible: bool = False


@attrs.frozen
class JoinOffer:
    """The hosts and room that the scheduler has found for a member, at one moment."""

    #: The hosts that can take it.
    ground: Ground
    #: Level of the domain that the group wants.
    level: FabricLevel
    #: Size of the counted servers.
    size: Size = ANY_SIZE
    #: UUIDs of the hosts with room -> servers that were counted as being on them.
    seen: Mapping[str, Collection[str]] = attrs.field(factory=dict)


@attrs.frozen
class Joined:
    """The member has joined: its ticket is in Placement.

    A ticket is a provider with the server's UUID below the record of its group.
    """

    #: UUID of the domain.
    domain: str
    #: Whether it was taken now; otherwise the member already had it.
    new: bool = True
    #: How many levels above the wanted one the group's present domain is; None if it was
    #: decided before.
    step: int | None = None


@attrs.frozen
class DomainMiss:
    """The fabric domain that nearly had room for the group, and its numbers of servers."""

    domain: GroupDomain
    free: int
    promised: int

    @property
    def left(self) -> int:
        """Number of servers that still fit, without the places promised to other groups."""
        return max(0, self.free - self.promised)


@attrs.frozen
class Refused:
    """Result for a new member of a server group if Nova cannot place it in a fabric domain.

    No domain has room for the group, or no candidate host in the group's domain can take the
    member.
    """

    #: UUID of the group's domain, which was decided before; None if it has none.
    domain: str | None = None
    #: The nearest miss if it has none; None if no host is in any domain of the level.
    nearest: DomainMiss | None = None


@attrs.define
class GroupDomains:
    """Assigns fabric domains to server groups, with records in Placement. One object for each
    member.
    """

    records: ProviderRecords
    servers: NovaServers
    _stale: set[str] = attrs.field(factory=set, init=False)
    _places: dict[str, frozenset[str]] = attrs.field(factory=dict, init=False)

    def where(self, server: str) -> str | None:
        """Return the UUID of *server*'s domain, even of a deleted group; None without a ticket."""
        ticket = self.records.ticket(server)
        return ticket.root if ticket else None

    def join(self, ask: Ask, offer: JoinOffer) -> Joined | Refused:
        """Create the member's ticket in the domain of its group.

        A group without a record gets one first. An old record without members is deleted and
        written again. Then the ticket is created below the record, with the server's UUID. If
        another process removes the record in between, all of this is repeated.

        :raises PlacementSilentError: Placement or Nova's database does not answer.
        """
        before: str | None = None
        step: int | None = None
        retired = False
        for number in range(_ROUNDS):
            record = self.records.record(ask.group)
            if record is None:
                with _LOCKS[zlib.crc32(ask.group.encode()) % len(_LOCKS)]:
                    record = self.records.record(ask.group)
                    if record is None:
                        decision = self._decide(ask, offer, before)
                        if isinstance(decision, Refused):
                            return decision
                        if decision is None:
                            continue
                        record, step = decision
            elif not retired and (ask.alone or not offer.ground.hosts.get(record.root)):
                # A record without members is decided again, because its domain may be full by now.
                retired = True
                if self._retire(record, not offer.ground.hosts.get(record.root)):
                    before = record.root
                    continue
            if not ask.flexible and not offer.ground.hosts.get(record.root):
                ticket = self.records.ticket(ask.server)
                return Refused(ticket.root if ticket else record.root)
            made = self.records.make(TICKET_PREFIX + ask.server, ask.server, record.uuid)
            if made is Made.MADE:
                return Joined(record.root, step=step)
            ticket = self.records.ticket(ask.server) if made is Made.TAKEN else None
            if ticket is not None:
                return Joined(ticket.root, new=False)
            # The record or the ticket went: a reaper has removed it.
            self.records.pause(min(number, 3))
        raise PlacementSilentError(
            f"the records of server group {ask.group} in Placement do not settle"
        )

    def look(self, ask: Ask, offer: JoinOffer) -> tuple[GroupDomain, int] | Refused:
        """Choose a domain for servers of one request without a group, and its level step.

        It respects the places that are kept for groups, and keeps none.
        """
        hunt = _Hunt(ask, offer)
        while (chosen := hunt.next()) is not None:
            step, domain = chosen
            outcome = self._room_for(ask, offer, domain, offer.ground.free_in(domain))
            if isinstance(outcome, DomainTree):
                return domain, step
            hunt.missed(chosen, outcome)
        return Refused(nearest=hunt.nearest or _find_emptiest_domain(offer))

    def leave(self, server: str) -> None:
        """Delete a ticket that was created now, because the member finds no host.

        The record goes with it, if it was the last ticket.
        """
        ticket = self.records.ticket(server)
        if ticket is None or not self.records.remove(server) or ticket.parent is None:
            return
        for room in self.records.tree(ticket.root).rooms:
            if room.record is not None and room.record.uuid == ticket.parent:
                if not room.record.tickets and self.records.remove(room.record.uuid):
                    self.records.remove(room.uuid)
                return

    # -- an old record -------------------------------------------------------

    def _retire(self, record: GroupProvider, empty_too: bool) -> bool:
        """Delete a group's record, its tickets and its room if all its members are gone.

        Dead tickets are deleted even if the record stays.

        :param empty_too: also delete a record without tickets: it never had a member, or is about
            to get its first.
        :returns: True if the record is deleted; False if it stays, because a member is alive,
            *empty_too*
            forbids it, or Placement refuses.
        """
        tree = self.records.tree(record.root)
        for room in tree.rooms:
            if room.record is None or room.record.uuid != record.uuid:
                continue
            tickets = room.record.tickets
            if not tickets and not empty_too:
                return False
            gone = find_dead_tickets(self.records, self.servers, tickets)
            for ticket in sorted(gone):
                self.records.remove(ticket)
            if len(gone) < len(tickets) or not self.records.remove(record.uuid):
                return False
            self.records.remove(room.uuid)
            return True
        # It is in no room: its room was removed by hand, or has just gone.
        return self.records.remove(record.uuid)

    # -- a new record --------------------------------------------------------

    def _decide(
        self, ask: Ask, offer: JoinOffer, before: str | None
    ) -> tuple[GroupProvider, int] | Refused | None:
        """Write the group's record.

        The planner returns one domain after the other until a room holds. If only unsettled
        rooms are in the way, all domains are tried again after a pause, because these rooms may
        go. As long as they may, a wider domain is accepted only in the last pass.

        :returns: it, and its step of the ladder; None if another scheduler was first.
        """
        hunt = _Hunt(ask, offer, before)
        for number in range(_PASSES):
            hunt.begin()
            while (chosen := hunt.next(patient=number < _PASSES - 1)) is not None:
                step, domain = chosen
                outcome = self._try(ask, offer, domain, offer.ground.free_in(domain))
                if isinstance(outcome, GroupProvider):
                    return outcome, step
                if outcome is None:
                    return None
                hunt.missed(chosen, outcome)
            if hunt.contended is None:
                break
            # The rooms that are still unused by then are removed.
            self.records.pause(number + 2)
        return Refused(nearest=hunt.nearest or _find_emptiest_domain(offer))

    def _try(
        self, ask: Ask, offer: JoinOffer, domain: GroupDomain, free: int
    ) -> GroupProvider | DomainMiss | RoomVerdict | None:
        """Take a room and write the record.

        The room is created before it is checked, so that no other scheduler can overlook it. It
        is removed again if it does not fit, or if another scheduler has written the record.

        :returns: the record; or why there is no room; YIELD if others are about to take it; None
            if the group has a record.
        """
        tree = self._room_for(ask, offer, domain, free)
        if not isinstance(tree, DomainTree):
            return tree
        if not tree.name:
            self.records.make_domain(domain)
        room = str(uuid.uuid4())
        made = self.records.make(room_name(ask.group, ask.members, offer.size), room, domain.uuid)
        if made is not Made.MADE:
            # A reaper has just removed the domain's provider.
            return RoomVerdict.YIELD
        verdict = self._stand(ask, offer, domain, free, room)
        if isinstance(verdict, RoomVerdict):
            record = str(uuid.uuid4())
            if verdict is RoomVerdict.STAY:
                made = self.records.make(RECORD_PREFIX + ask.group, record, room)
                if made is Made.MADE:
                    return GroupProvider(record, RECORD_PREFIX + ask.group, room, domain.uuid)
                if made is Made.TAKEN:
                    self.records.remove(room)
                    return None
            verdict = RoomVerdict.YIELD
        self.records.remove(room)
        return verdict

    def _room_for(
        self, ask: Ask, offer: JoinOffer, domain: GroupDomain, free: int
    ) -> DomainTree | DomainMiss | RoomVerdict:
        """Decide whether a domain has room for all members of the group; delete dead tickets first.

        :returns: the domain's tree of providers if it has room; the numbers that are missing if it
            has none; YIELD if rooms that may go again are in the way.
        """
        tree = self.records.tree(domain.uuid)
        if tree.rooms:
            swept = sweep_domain_tree(self.records, self.servers, tree, self._stale)
            if swept.tickets or swept.records or swept.rooms:
                tree = self.records.tree(domain.uuid)
            placed = self._placed(tree, ask, offer, free)
            promised = tree.promised(ask.group, offer.size, placed, settled=True)
            if ask.members + promised > free:
                return DomainMiss(domain, free, promised)
            if ask.members + tree.promised(ask.group, offer.size, placed) > free:
                return RoomVerdict.YIELD
        return tree

    def _stand(
        self, ask: Ask, offer: JoinOffer, domain: GroupDomain, free: int, room: str
    ) -> RoomVerdict | DomainMiss:
        """Whether a new room may stay.

        A room that comes first waits for the other unsettled rooms. If they stay, their
        schedulers may be dead: a later sweep removes them.
        """
        for number in range(_LOOKS):
            tree = self.records.tree(domain.uuid)
            placed = self._placed(tree, ask, offer, free)
            verdict = judge_new_room(tree, room, free, placed)
            if verdict is RoomVerdict.FULL:
                return DomainMiss(
                    domain, free, tree.promised(ask.group, offer.size, placed, settled=True)
                )
            if verdict is not RoomVerdict.WAIT:
                return verdict
            self.records.pause(number)
        self._stale.update(
            rival.record.uuid if rival.record else rival.uuid
            for rival in tree.rooms
            if not rival.settled
        )
        return RoomVerdict.YIELD

    def _placed(self, tree: DomainTree, ask: Ask, offer: JoinOffer, free: int) -> frozenset[str]:
        """Find members of other groups whose places are no longer in *free*.

        They have a claim, on a host that was not offered, or that was offered with its remaining
        places. It is computed only as far as it decides something.

        :returns: UUIDs of servers.
        """
        placed: set[str] = set()
        if ask.members + tree.promised(ask.group, offer.size) <= free:
            return frozenset()
        for room in tree.rooms:
            if room.record is None or room.group == ask.group:
                continue
            for ticket in room.record.tickets:
                if not self._places.get(ticket):
                    self._places[ticket] = self.records.allocated(ticket)
                hosts = self._places[ticket]
                if hosts and all(ticket in offer.seen.get(host, (ticket,)) for host in hosts):
                    placed.add(ticket)
            if ask.members + tree.promised(ask.group, offer.size, placed) <= free:
                break
        return frozenset(placed)


@attrs.define
class _Hunt:
    """Yields candidate domains for a group, the best first, until one has room."""

    ask: Ask
    offer: JoinOffer
    #: UUID of the domain that the group had before.
    before: str | None = None
    #: The domain that came nearest, among all that were tried.
    nearest: DomainMiss | None = None
    #: The lowest step at which the only obstacles were rooms that may go again.
    contended: int | None = None
    _cut: dict[str, int] = attrs.field(factory=dict)

    def begin(self) -> None:
        """Start the search again: all domains are candidates, and none is contended."""
        self.contended = None
        self._cut.clear()

    def next(self, patient: bool = False) -> tuple[int, GroupDomain] | None:
        """Choose the next candidate domain.

        :param patient: no wider domain is returned while others may still give way.
        :returns: the number of levels above the wanted one, and the domain; None if there are no
            more.
        """
        chosen = self.offer.ground.choose(
            self.offer.level,
            self.ask.members,
            # A server without a group has an order of its own, too.
            self.ask.group or self.ask.server,
            flexible=self.ask.flexible,
            before=self.before,
            cut=self._cut,
        )
        if patient and chosen and self.contended is not None and chosen[0] > self.contended:
            return None
        return chosen

    def missed(self, chosen: tuple[int, GroupDomain], obstacle: DomainMiss | RoomVerdict) -> None:
        """Record why the candidate was not taken."""
        step, domain = chosen
        if isinstance(obstacle, DomainMiss):
            self._cut[domain.uuid] = obstacle.left
            if self.nearest is None or obstacle.left > self.nearest.left:
                self.nearest = obstacle
        else:
            self._cut[domain.uuid] = 0
            if self.contended is None:
                self.contended = step


def _find_emptiest_domain(offer: JoinOffer) -> DomainMiss | None:
    """Find the domain of the wanted level that holds most servers; None without domains."""
    free = offer.ground.free(offer.level)
    if not free:
        return None
    domain, most = max(free.items(), key=lambda item: (item[1], item[0]))
    return DomainMiss(domain, most, 0)
