# SPDX-License-Identifier: Apache-2.0
"""Compares each server's guest with Nova's records of its devices.

A device can leave a guest without a request of Nova: a leftover request to unplug it,
a guest that ejects it, a device that falls off the bus, a detach that
broke off. A guest can also have a device that Nova gives to no server, or to another. A
server in a task is not compared, nor is one with an unreadable guest:
unknown is not a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.tenancy.guest_domains import DomainCondition, NodeGuestDomain, NodeGuestDomains
from nova_hpc.topology.model import address_key


@attrs.frozen
class PromisedDevices:
    """The devices of one server of the node according to Nova's records."""

    #: The server's UUID, in libvirt's form.
    server: str
    #: Normalised addresses of its devices, including its direct ports' devices.
    devices: frozenset[str]
    #: Whether it runs, and Nova has no task for it or its devices.
    settled: bool


def _sort_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(addresses, key=address_key))


@attrs.frozen
class GuestDifference:
    """A running guest whose devices differ from those given to its server."""

    server: str
    #: Given, and missing in the guest.
    gone: tuple[str, ...] = attrs.field(default=(), converter=_sort_addresses)
    #: In the guest, and not given to this server.
    more: tuple[str, ...] = attrs.field(default=(), converter=_sort_addresses)

    @property
    def cure(self) -> str:
        """The action that corrects the guest."""
        return f"hard reboot of server {self.server}"

    def reasons(self) -> dict[str, str]:
        """Return PCI address -> its difference from Nova's records and the cure, for operators."""
        texts = dict.fromkeys(
            self.gone, f"is gone from the guest of server {self.server}: {self.cure}"
        )
        for address in self.more:
            texts[address] = (
                f"is in the guest of server {self.server}, which was not given it: {self.cure}"
            )
        return texts


def find_guest_differences(
    promised: Iterable[PromisedDevices], guests: NodeGuestDomains
) -> tuple[GuestDifference, ...]:
    """Return the servers whose guests differ from the records, in the order of their UUIDs.

    Other checks handle a server without a guest here, and a guest without a
    server: their devices are not offered anyway.
    """
    domains = {domain.uuid: domain for domain in guests.domains}
    differences = []
    for record in sorted(promised, key=lambda record: record.server):
        domain = domains.get(record.server)
        if domain is None or not record.settled:
            continue
        difference = _difference_of_guest(record, domain)
        if difference is not None:
            differences.append(difference)
    return tuple(differences)


def _difference_of_guest(
    promised: PromisedDevices, domain: NodeGuestDomain
) -> GuestDifference | None:
    # A guest that is shut off, or saved, gets its devices when it starts again.
    if domain.condition not in (DomainCondition.RUNNING, DomainCondition.PAUSED):
        return None
    live = domain.live
    gone: frozenset[str] = frozenset()
    if live.problem is None:  # an unreadable device may be the missing one
        gone = promised.devices - live.all
    more = live.all - promised.devices
    return GuestDifference(promised.server, gone, more) if gone or more else None


def reasons_of_differences(differences: Iterable[GuestDifference]) -> dict[str, str]:
    """Return PCI address -> reasons of all differences; a swapped device has two reasons."""
    texts: dict[str, str] = {}
    for difference in differences:
        for address, text in difference.reasons().items():
            texts[address] = f"{texts[address]}; {text}" if address in texts else text
    return texts


#: The kinds of differences: a device is missing in its guest, or is there in excess.
GONE: Final = "gone"
MORE: Final = "more"


def difference_words_of(differences: Iterable[GuestDifference]) -> dict[tuple[str, str], str]:
    """Return (server, PCI address) -> :data:`GONE` or :data:`MORE`, for all differences."""
    words_by_device: dict[tuple[str, str], str] = {}
    for difference in differences:
        words_by_device |= dict.fromkeys(
            ((difference.server, address) for address in difference.gone), GONE
        )
        words_by_device |= dict.fromkeys(
            ((difference.server, address) for address in difference.more), MORE
        )
    return words_by_device


@attrs.frozen
class PromiseLook:
    """The differences of one check, and those that the check before it confirms."""

    #: Confirmed differences: found twice in a row.
    known: tuple[GuestDifference, ...] = ()
    #: Server -> its difference in this check.
    seen: Mapping[str, GuestDifference] = attrs.field(factory=dict, hash=False)

    def then(self, differences: Iterable[GuestDifference]) -> PromiseLook:
        """Return the result of the next check.

        Nova attaches a direct port without a task state: it records the device
        before the guest has it, and removes the record after a detach. So a
        difference counts only if the next check finds it again.
        """
        current = {difference.server: difference for difference in differences}
        confirmed = tuple(
            difference
            for server, difference in current.items()
            if self.seen.get(server) == difference
        )
        return PromiseLook(confirmed, current)
