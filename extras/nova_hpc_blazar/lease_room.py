# SPDX-License-Identifier: Apache-2.0
"""The members of a cluster that fit on a host during a whole lease. Pure.

An example. A host has eight GPUs. One lease has four of them from 8 to 10, another four from 12 to
14. A lease from 9 to 13 never meets both at once, so it gets up to four GPUs.

Another example. Two of four GPUs are fast, and each member takes a fast one and any other one. The
first member may get both fast ones, so only one member is sure to start.
"""

from __future__ import annotations

import datetime
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

#: The begin of a lease that already has its hosts, and the end of one that keeps them.
ALWAYS_BEGUN = datetime.datetime.min
NEVER_ENDS = datetime.datetime.max


@attrs.frozen
class ResourceKind:
    """Resources that a flavor requests alike.

    :ivar traits: traits that their providers have.
    :ivar split: whether each one may come from another provider, as devices of an alias do. Nova
        takes other resources of a server from one provider.
    """

    resource_class: str
    traits: frozenset[str] = frozenset()
    split: bool = False


#: Resources of one or several servers: kind -> amount.
Request = Mapping[ResourceKind, int]


@attrs.frozen
class LeasableInventory:
    """The inventory of one class of a resource provider.

    :ivar capacity: the amount that servers can have in total.
    :ivar most: the maximum for one server.
    """

    capacity: int
    most: int


@attrs.frozen
class LeasableProvider:
    """A resource provider of a host's tree: the host itself, or one of its devices."""

    uuid: str
    #: Resource class -> inventory.
    inventories: Mapping[str, LeasableInventory]
    #: Traits, at least those of all aliases.
    traits: frozenset[str] = frozenset()

    def serves(self, kind: ResourceKind) -> bool:
        """Whether the provider has resources of *kind*."""
        return kind.resource_class in self.inventories and kind.traits <= self.traits


@attrs.frozen
class Booking:
    """The resources that one lease has on a host, from its begin until just before its end.

    :ivar uses: kind -> amount of all members on the host; None for the whole host.
    """

    begin: datetime.datetime
    end: datetime.datetime
    uses: Request | None

    def is_during(self, begin: datetime.datetime, end: datetime.datetime) -> bool:
        """Whether the booking and this time have an instant in common."""
        return self.begin < end and begin < self.end


@attrs.frozen
class LeasableRoom:
    """The hosts that can be leased, for one request.

    :ivar trees: id of a host -> its providers.
    :ivar bookings: id of a host -> the bookings of all other leases on it.
    :ivar pause: the time for cleaning before and after each lease.
    """

    request: Request
    trees: Mapping[str, tuple[LeasableProvider, ...]]
    bookings: Mapping[str, Sequence[Booking]]
    pause: datetime.timedelta

    def count(self, begin: datetime.datetime, end: datetime.datetime) -> dict[str, int]:
        """Count the members that fit on each host during a whole lease: id of a host -> members."""
        return {
            host: count_members(
                tree,
                self.bookings.get(host, ()),
                self.request,
                begin - self.pause,
                end + self.pause,
            )
            for host, tree in self.trees.items()
        }

    def list_begins(self, after: datetime.datetime) -> list[datetime.datetime]:
        """List the later times from which a lease may have more room: other leases end then."""
        ends = {booking.end for booked in self.bookings.values() for booking in booked}
        last = NEVER_ENDS - self.pause
        return sorted(end + self.pause for end in ends if end < last and end + self.pause > after)


def count_members(
    tree: Iterable[LeasableProvider],
    bookings: Iterable[Booking],
    request: Request,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> int:
    """Count the members that fit on a host at each instant from *begin* to *end*.

    :param tree: the providers of the host.
    :param bookings: those of all other leases on the host.
    """
    providers = tuple(tree)
    during = [booking for booking in bookings if booking.is_during(begin, end)]
    if any(booking.uses is None for booking in during):
        return 0
    fits = []
    for kinds in _list_sets_of_kinds(request):
        serving = {
            provider.uuid for provider in providers for kind in kinds if provider.serves(kind)
        }
        used = _find_peak(during, _list_rivals(kinds, serving, providers, _list_kinds(during)))
        free = _count_capacity(kinds, request, providers) - used
        amount = sum(request[kind] for kind in kinds)
        # Nova may give devices of these kinds for each other kind of a member that they serve.
        most = sum(
            request[rival] for rival in _list_rivals(kinds, serving, providers, set(request))
        )
        fits.append(1 + (free - amount) // most if free >= amount else 0)
    return min(fits, default=0)


def _list_sets_of_kinds(request: Request) -> Iterator[tuple[ResourceKind, ...]]:
    """List the sets of kinds whose providers together have to be enough.

    A device serves several kinds of its class, so each one may have enough alone, and all not.
    """
    classes: dict[tuple[str, bool], list[ResourceKind]] = defaultdict(list)
    for kind, amount in request.items():
        if amount > 0:
            classes[kind.resource_class, kind.split].append(kind)
    for kinds in classes.values():
        for size in range(1, len(kinds) + 1):
            yield from itertools.combinations(kinds, size)


def _count_capacity(
    kinds: Iterable[ResourceKind], request: Request, providers: Iterable[LeasableProvider]
) -> int:
    """Count the resources that members can have of these kinds, which are of one class."""
    together = tuple(kinds)
    first = together[0]
    inventories = [
        provider.inventories[first.resource_class]
        for provider in providers
        if any(provider.serves(kind) for kind in together)
    ]
    if first.split:
        return sum(inventory.capacity for inventory in inventories)
    enough = [each.capacity for each in inventories if each.most >= request[first]]
    return max(enough, default=0)


def _find_peak(bookings: Iterable[Booking], kinds: frozenset[ResourceKind]) -> int:
    """Find the largest amount of *kinds* that these bookings have at one instant.

    The amount rises only where a booking begins. Bookings that begin before a lease and are still
    there when it begins are all there when the last of them begins.
    """
    together = tuple(bookings)
    return max(
        (
            sum(
                amount
                for booking in together
                if booking.begin <= instant < booking.end
                for kind, amount in (booking.uses or {}).items()
                if kind in kinds
            )
            for instant in {booking.begin for booking in together}
        ),
        default=0,
    )


def _list_kinds(bookings: Iterable[Booking]) -> set[ResourceKind]:
    return {kind for booking in bookings for kind in booking.uses or {}}


def _list_rivals(
    kinds: Iterable[ResourceKind],
    serving: set[str],
    providers: tuple[LeasableProvider, ...],
    others: set[ResourceKind],
) -> frozenset[ResourceKind]:
    """List the *others* that may take resources of the same providers as *kinds*."""
    classes = {kind.resource_class for kind in kinds}
    return frozenset(
        rival
        for rival in others
        if rival.resource_class in classes
        and any(provider.uuid in serving and provider.serves(rival) for provider in providers)
    )
