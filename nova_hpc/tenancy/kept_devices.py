# SPDX-License-Identifier: Apache-2.0
"""Does each server have the devices that it was given? Its guest against Nova's records.

A device can leave a guest without anybody having taken it: a request to unplug it that
was left behind, a guest that ejects it, a device that falls off the bus, a detach that
broke off. And one can be in a guest that Nova gives to nobody, or to somebody else. A
server that is being changed is not compared, nor is one whose guest cannot be read:
unknown is no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.tenancy.guest_domains import DomainCondition, NodeGuestDomain, NodeGuestDomains
from nova_hpc.topology.model import address_key


@attrs.frozen
class PromisedDevices:
    """The devices of one server of the node by Nova's records."""

    #: Its UUID, as libvirt writes it.
    server: str
    #: Normalised addresses of its devices, those of its direct ports included.
    devices: frozenset[str]
    #: Nova is at rest with it: it runs, and nothing is being done to it or its devices.
    settled: bool


def _sort_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(addresses, key=address_key))


@attrs.frozen
class GuestDifference:
    """A running guest that has not what its server was given."""

    server: str
    #: Given, and not in the guest.
    gone: tuple[str, ...] = attrs.field(default=(), converter=_sort_addresses)
    #: In the guest, and not given to this server.
    more: tuple[str, ...] = attrs.field(default=(), converter=_sort_addresses)

    @property
    def cure(self) -> str:
        """The action that makes the guest what it should be."""
        return f"hard reboot of server {self.server}"

    def reasons(self) -> dict[str, str]:
        """Address -> what is wrong with it there, and the cure, for operators."""
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
    """The servers whose guests differ from the records, in the order of their UUIDs.

    A server without a guest here is somebody else's question, and so is a guest of
    nobody's: what they have is not offered anyway.
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
    # One that is off, or saved, gets its devices when it starts again.
    if domain.condition not in (DomainCondition.RUNNING, DomainCondition.PAUSED):
        return None
    live = domain.live
    gone: frozenset[str] = frozenset()
    if live.problem is None:  # what cannot be read may be the one that is missed
        gone = promised.devices - live.all
    more = live.all - promised.devices
    return GuestDifference(promised.server, gone, more) if gone or more else None


def reasons_of_differences(differences: Iterable[GuestDifference]) -> dict[str, str]:
    """Address -> what is wrong, of all of them; one that was swapped has two reasons."""
    texts: dict[str, str] = {}
    for difference in differences:
        for address, text in difference.reasons().items():
            texts[address] = f"{texts[address]}; {text}" if address in texts else text
    return texts


#: What a device is that a server should have, or should not, in one word.
GONE: Final = "gone"
MORE: Final = "more"


def difference_words_of(differences: Iterable[GuestDifference]) -> dict[tuple[str, str], str]:
    """(Server, address) -> :data:`GONE` or :data:`MORE`, of all of them."""
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
    """The findings of one look, and those that the looks before it confirm."""

    #: Differences that hold: seen twice in a row.
    known: tuple[GuestDifference, ...] = ()
    #: Server -> its difference, seen now.
    seen: Mapping[str, GuestDifference] = attrs.field(factory=dict, hash=False)

    def then(self, differences: Iterable[GuestDifference]) -> PromiseLook:
        """The next look.

        Nova attaches a direct port without a word in the server's state: its device is
        recorded before the guest has it, and the other way round at a detach. So a
        difference is one only if the next look sees it again.
        """
        current = {difference.server: difference for difference in differences}
        confirmed = tuple(
            difference
            for server, difference in current.items()
            if self.seen.get(server) == difference
        )
        return PromiseLook(confirmed, current)
