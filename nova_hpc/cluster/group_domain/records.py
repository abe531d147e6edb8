# SPDX-License-Identifier: Apache-2.0
"""The providers of :mod:`nova_hpc.cluster.group_domain.model` in a real Placement.

An answer that is lost or a 5xx says nothing: the write may have taken effect. It is settled by
reading, and what was not there is written again with the same UUID.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol
from urllib import parse

import attrs

from nova_hpc.cluster.group_domain.model import (
    RECORD_PREFIX,
    TICKET_PREFIX,
    DomainTree,
    GroupDomain,
    GroupProvider,
)

#: Providers have a parent and a root from this microversion on, and POST answers with 200.
MICROVERSION: Final = "1.30"
_OK: Final = 200
_CREATED: Final = 201
_NO_CONTENT: Final = 204
_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_BROKEN: Final = 500
#: Seconds before the second try; the next ones wait longer, at most _LONGEST.
_SHORTEST: Final = 0.05
_LONGEST: Final = 2.0
#: So often a DELETE is tried whose answer is a 5xx: a child that appeared is one, too.
_DELETES: Final = 3


class PlacementSilentError(RuntimeError):
    """Placement does not answer, or not as Placement does."""


@attrs.frozen
class ProviderAnswer:
    """Placement's answer; status 0: nothing came back."""

    status: int
    body: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def unsure(self) -> bool:
        """Whether a write may have taken effect or not."""
        return self.status == 0 or self.status >= _BROKEN


class PlacementSender(Protocol):
    """Sends one request each; never raises for what came back, or did not."""

    def get(self, path: str) -> ProviderAnswer:
        """Send a GET."""

    def post(self, path: str, body: Mapping[str, Any]) -> ProviderAnswer:
        """Send a POST with JSON."""

    def delete(self, path: str) -> ProviderAnswer:
        """Send a DELETE."""


class ServerPresence(enum.Enum):
    """Nova's word about a server."""

    THERE = "there"
    #: Marked as being deleted, which alone promises nothing.
    LEAVING = "leaving"
    GONE = "gone"


class NovaServers(Protocol):
    """Nova's records of servers."""

    def states(self, uuids: Collection[str]) -> Mapping[str, ServerPresence]:
        """The state of each.

        :raises PlacementSilentError: Nova's database does not answer.
        """


class Made(enum.Enum):
    """The outcome for a new provider."""

    MADE = "made"
    #: Another one has its name or its UUID.
    TAKEN = "taken"
    #: Its parent is not there any more.
    NO_PARENT = "no parent"


@attrs.define
class ProviderRecords:
    """Reads and writes providers, until it is known what is.

    :param limit: seconds after which one request is given up that gets no usable answer. A
        busy Placement may need longer than that for all the requests of an operation, whose
        number is bounded.
    """

    placement: PlacementSender
    limit: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def pause(self, number: int) -> None:
        """Wait before the next try, the longer the more there were."""
        most = min(_LONGEST, _SHORTEST * 2.0**number)
        self.sleep(random.uniform(most / 2, most))

    def _again(self, since: float, number: int) -> None:
        """Wait before a request is sent again that was sent first at *since*.

        :raises PlacementSilentError: the time is over.
        """
        if self.clock() - since >= self.limit:
            raise PlacementSilentError(
                f"Placement gave no usable answer within {self.limit:g} seconds"
            )
        self.pause(number)

    # -- reading ------------------------------------------------------------

    def ticket(self, server: str) -> GroupProvider | None:
        """The ticket of a server; None: it has none."""
        provider = self._one(f"uuid={parse.quote(server)}")
        return provider if provider and provider.name.startswith(TICKET_PREFIX) else None

    def record(self, group: str) -> GroupProvider | None:
        """The record of a server group; None: it has none."""
        return self._one(f"name={parse.quote(RECORD_PREFIX + group)}")

    def tree(self, domain: str) -> DomainTree:
        """The domain with this UUID and all below it."""
        return DomainTree.of(domain, self.providers(f"in_tree={domain}"))

    def providers(self, query: str = "") -> list[GroupProvider]:
        """The providers that match; without a query, all of the cloud."""
        path = f"/resource_providers?{query}" if query else "/resource_providers"
        document = self._read(path)
        try:
            return [GroupProvider.of(item) for item in document["resource_providers"]]
        except (KeyError, TypeError) as error:
            raise PlacementSilentError(f"Placement answered {path} strangely: {error!r}") from error

    def allocated(self, server: str) -> frozenset[str]:
        """The providers that a server has allocations of."""
        return frozenset(self._read(f"/allocations/{parse.quote(server)}").get("allocations") or ())

    def _one(self, query: str) -> GroupProvider | None:
        return next(iter(self.providers(query)), None)

    def _read(self, path: str) -> Mapping[str, Any]:
        since, number = self.clock(), 0
        while True:
            answer = self.placement.get(path)
            if answer.status == _OK:
                return answer.body
            if not answer.unsure:
                raise PlacementSilentError(f"Placement answered {path} with {answer.status}")
            self._again(since, number)
            number += 1

    # -- writing ------------------------------------------------------------

    def make(self, name: str, uuid: str, parent: str | None = None) -> Made:
        """Make a provider.

        :raises PlacementSilentError: Placement does not say whether it is there.
        """
        body = {"name": name, "uuid": uuid} | (
            {"parent_provider_uuid": parent} if parent is not None else {}
        )
        since, number = self.clock(), 0
        while True:
            answer = self.placement.post("/resource_providers", body)
            if answer.status in (_OK, _CREATED):
                return Made.MADE
            if answer.status in (_BAD_REQUEST, _NOT_FOUND):
                if parent is None or self._one(f"uuid={parent}"):
                    raise PlacementSilentError(f"Placement refuses {name}: {answer.body}")
                return Made.NO_PARENT
            if answer.status == _CONFLICT:
                # Perhaps by our own first try, whose answer was lost.
                return Made.MADE if number and self._is(uuid, name) else Made.TAKEN
            if not answer.unsure:
                raise PlacementSilentError(
                    f"Placement answered with {answer.status}: {answer.body}"
                )
            self._again(since, number)
            number += 1
            if self._is(uuid, name):
                return Made.MADE
            # A parent that went meanwhile is a 5xx, too (the foreign key).
            if parent is not None and not self._one(f"uuid={parent}"):
                return Made.NO_PARENT

    def _is(self, uuid: str, name: str) -> bool:
        provider = self._one(f"uuid={uuid}")
        return provider is not None and provider.name == name

    def make_domain(self, domain: GroupDomain) -> None:
        """Make a domain's provider where there is none."""
        self.make(domain.provider_name, domain.uuid)

    def remove(self, uuid: str) -> bool:
        """Delete a provider; False: something is below it, so it stays."""
        for number in range(_DELETES):
            answer = self.placement.delete(f"/resource_providers/{uuid}")
            if answer.status in (_NO_CONTENT, _OK, _NOT_FOUND):
                return True
            if answer.status == _CONFLICT:
                return False
            if not answer.unsure:
                raise PlacementSilentError(f"Placement answered a DELETE with {answer.status}")
            self.pause(number)
        return self._one(f"uuid={uuid}") is None


# --- who is gone ---------------------------------------------------------------


@attrs.frozen
class SweptProviders:
    """The providers that a sweep has taken away, by kind."""

    tickets: int = 0
    records: int = 0
    rooms: int = 0

    def __add__(self, other: SweptProviders) -> SweptProviders:
        return SweptProviders(
            self.tickets + other.tickets, self.records + other.records, self.rooms + other.rooms
        )


def find_dead_tickets(
    records: ProviderRecords, servers: NovaServers, tickets: Iterable[str]
) -> frozenset[str]:
    """The tickets whose servers are no more.

    A server is in Nova's database before it is scheduled: who is not there now will not come.
    """
    states = servers.states(frozenset(tickets))
    return frozenset(
        server
        for server, state in states.items()
        if state is ServerPresence.GONE
        or (state is ServerPresence.LEAVING and not records.allocated(server))
    )


def sweep_domain_tree(
    records: ProviderRecords, servers: NovaServers, tree: DomainTree, stale: set[str] | None = None
) -> SweptProviders:
    """Take away what nobody has any more; safe at any time, beside anybody.

    Who is about to use what goes away finds no parent, and begins anew.

    :param stale: a record without tickets and a room without a record, which somebody may
        be about to use, are taken away only where their UUIDs are in it, and put into it
        otherwise. None: no such grace.
    """
    gone = find_dead_tickets(records, servers, tree.tickets)
    swept = SweptProviders(tickets=sum(records.remove(ticket) for ticket in sorted(gone)))
    for room in tree.rooms:
        if room.record is None:
            swept += _remove_room(records, room.uuid, stale)
        elif gone.issuperset(room.record.tickets):
            if not room.record.tickets and _spare_stale_once(room.record.uuid, stale):
                continue
            if records.remove(room.record.uuid):
                swept += SweptProviders(records=1)
                swept += _remove_room(records, room.uuid, None)
    return swept


def _spare_stale_once(uuid: str, stale: set[str] | None) -> bool:
    if stale is None or uuid in stale:
        return False
    stale.add(uuid)
    return True


def _remove_room(records: ProviderRecords, uuid: str, stale: set[str] | None) -> SweptProviders:
    if _spare_stale_once(uuid, stale):
        return SweptProviders()
    return SweptProviders(rooms=int(records.remove(uuid)))
