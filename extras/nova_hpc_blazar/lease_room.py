# SPDX-License-Identifier: Apache-2.0
"""The members of a cluster that fit on a host during a whole lease. Pure.

An example. A host has eight GPUs. One lease has four of them from 8 to 10, another four from 12 to
14. A lease from 9 to 13 never meets both at once, so it gets up to four GPUs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

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
    for kind, amount in request.items():
        if amount <= 0:
            continue
        serving = {provider.uuid for provider in providers if provider.serves(kind)}
        amounts = [
            provider.inventories[kind.resource_class].capacity
            for provider in providers
            if provider.serves(kind)
            and (kind.split or provider.inventories[kind.resource_class].most >= amount)
        ]
        capacity = sum(amounts) if kind.split else max(amounts, default=0)
        used = _find_peak(during, _list_rivals(kind, serving, providers, during))
        fits.append(max(0, capacity - used) // amount)
    return min(fits, default=0)


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


def _list_rivals(
    kind: ResourceKind,
    serving: set[str],
    providers: tuple[LeasableProvider, ...],
    bookings: Iterable[Booking],
) -> frozenset[ResourceKind]:
    """List the kinds in bookings that may take resources of the same providers as *kind*."""
    booked = {rival for booking in bookings for rival in booking.uses or {}}
    return frozenset(
        rival
        for rival in booked
        if rival.resource_class == kind.resource_class
        and any(provider.uuid in serving and provider.serves(rival) for provider in providers)
    )
