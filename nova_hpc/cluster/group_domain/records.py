# SPDX-License-Identifier: Apache-2.0
"""The providers of :mod:`nova_hpc.cluster.group_domain.model` in a real Placement.

A lost answer or a 5xx proves nothing: the write may have taken effect. A read settles it, and a
missing provider is written again with the same UUID.
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
#: How often a DELETE is tried if the answer is a 5xx: a new child also causes one.
_DELETES: Final = 3


class PlacementSilentError(RuntimeError):
    """Placement does not answer, or its answer cannot be used."""


@attrs.frozen
class ProviderAnswer:
    """An HTTP answer of Placement; the status is 0 if there was none."""

    status: int
    body: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def unsure(self) -> bool:
        """Whether the write may or may not have taken effect: no answer, or a server error."""
        return self.status == 0 or self.status >= _BROKEN


class PlacementSender(Protocol):
    """Sends HTTP requests to Placement. No answer and error answers are return values, not
    exceptions.
    """

    def get(self, path: str) -> ProviderAnswer:
        """Send a GET request for *path* to Placement; return its answer, whatever the status."""

    def post(self, path: str, body: Mapping[str, Any]) -> ProviderAnswer:
        """Send a POST request with JSON to Placement; return its answer, whatever the status."""

    def delete(self, path: str) -> ProviderAnswer:
        """Send a DELETE request for *path* to Placement; return its answer, whatever the status."""


class ServerPresence(enum.Enum):
    """The state of a server in Nova: it exists, is being deleted, or is gone."""

    THERE = "there"
    #: Marked as being deleted, which does not guarantee it.
    LEAVING = "leaving"
    GONE = "gone"


class NovaServers(Protocol):
    """Interface to Nova's records of servers."""

    def states(self, uuids: Collection[str]) -> Mapping[str, ServerPresence]:
        """Return server UUID -> whether the server exists, is being deleted, or is gone.

        :raises PlacementSilentError: Nova's database does not answer.
        """


class Made(enum.Enum):
    """The result of the creation of a provider in Placement."""

    MADE = "made"
    #: Another provider has its name or its UUID.
    TAKEN = "taken"
    #: Its parent no longer exists.
    NO_PARENT = "no parent"


@attrs.define
class ProviderRecords:
    """Reads and writes the records of server groups, which are providers in Placement.

    A request is repeated until its result is known.

    :param limit: seconds after which one request without a usable answer is given up. A busy
        Placement may need longer than that for all the requests of an operation, whose
        number is bounded.
    """

    placement: PlacementSender
    limit: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def pause(self, number: int) -> None:
        """Sleep before the next try; the time grows with *number*."""
        most = min(_LONGEST, _SHORTEST * 2.0**number)
        self.sleep(random.uniform(most / 2, most))

    def _again(self, since: float, number: int) -> None:
        """Wait before a request to Placement is repeated; *since* is the time of its first sending.

        :raises PlacementSilentError: the time is over.
        """
        if self.clock() - since >= self.limit:
            raise PlacementSilentError(
                f"Placement gave no usable answer within {self.limit:g} seconds"
            )
        self.pause(number)

    # -- reading ------------------------------------------------------------

    def ticket(self, server: str) -> GroupProvider | None:
        """Return the provider that records the membership of *server* in a group; None if none."""
        provider = self._one(f"uuid={parse.quote(server)}")
        return provider if provider and provider.name.startswith(TICKET_PREFIX) else None

    def record(self, group: str) -> GroupProvider | None:
        """Return the provider that records the domain of a server group; None if it has none."""
        return self._one(f"name={parse.quote(RECORD_PREFIX + group)}")

    def tree(self, domain: str) -> DomainTree:
        """Read the domain with this UUID and all providers below it from Placement."""
        return DomainTree.of(domain, self.providers(f"in_tree={domain}"))

    def providers(self, query: str = "") -> list[GroupProvider]:
        """List the providers that match *query*; without a query all providers of the cloud.

        :raises PlacementSilentError: Placement does not answer, or its answer cannot be used.
        """
        path = f"/resource_providers?{query}" if query else "/resource_providers"
        document = self._read(path)
        try:
            return [GroupProvider.of(item) for item in document["resource_providers"]]
        except (KeyError, TypeError) as error:
            raise PlacementSilentError(f"Placement answered {path} strangely: {error!r}") from error

    def allocated(self, server: str) -> frozenset[str]:
        """Return the UUIDs of the providers from which *server* has allocations; empty if none."""
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
        """Create a provider in Placement.

        :raises PlacementSilentError: Placement does not show whether it exists.
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
                # Perhaps our own first try created it, and its answer was lost.
                return Made.MADE if number and self._is(uuid, name) else Made.TAKEN
            if not answer.unsure:
                raise PlacementSilentError(
                    f"Placement answered with {answer.status}: {answer.body}"
                )
            self._again(since, number)
            number += 1
            if self._is(uuid, name):
                return Made.MADE
            # A parent that went in between also causes a 5xx (the foreign key).
            if parent is not None and not self._one(f"uuid={parent}"):
                return Made.NO_PARENT

    def _is(self, uuid: str, name: str) -> bool:
        provider = self._one(f"uuid={uuid}")
        return provider is not None and provider.name == name

    def make_domain(self, domain: GroupDomain) -> None:
        """Create the provider of *domain* if it does not exist."""
        self.make(domain.provider_name, domain.uuid)

    def remove(self, uuid: str) -> bool:
        """Delete a provider; False if it stays because another provider is below it."""
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


# --- the sweep -----------------------------------------------------------------


@attrs.frozen
class SweptProviders:
    """Numbers of providers that a sweep has deleted: tickets, records and rooms."""

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
    """Return the tickets whose servers no longer exist, or are being deleted without allocations.

    A server is in Nova's database before it is scheduled, so a missing server will not come.
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
    """Delete the tickets, records and rooms of a domain that no server uses any more.

    This is safe at any time, also beside other processes.

    A scheduler that is about to use a removed provider finds no parent, and begins again.

    :param stale: UUIDs seen by an earlier sweep. A record without tickets and a room without a
        record may be about to be used. They are removed only if their UUIDs are in it; otherwise
        the UUIDs are added to it. None removes them at once.
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
