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

from nova_hpc.tenancy.guest_domains import Condition, GuestDomain, GuestDomains
from nova_hpc.topology.model import address_key


@attrs.frozen
class Promised:
    """What one server of the node has by Nova's records."""

    #: Its UUID, as libvirt writes it.
    server: str
    #: Normalised addresses of its devices, those of its direct ports included.
    devices: frozenset[str]
    #: Nova is at rest with it: it runs, and nothing is being done to it or its devices.
    settled: bool


def _sorted(addresses: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(addresses, key=address_key))


@attrs.frozen
class Difference:
    """A running guest that has not what its server was given."""

    server: str
    #: Given, and not in the guest.
    gone: tuple[str, ...] = attrs.field(default=(), converter=_sorted)
    #: In the guest, and not given to this server.
    more: tuple[str, ...] = attrs.field(default=(), converter=_sorted)

    @property
    def cure(self) -> str:
        """What makes the guest what it should be."""
        return f"hard reboot of server {self.server}"

    def reasons(self) -> dict[str, str]:
        """Address -> what is wrong with it there, and the cure, for operators."""
        found = dict.fromkeys(
            self.gone, f"is gone from the guest of server {self.server}: {self.cure}"
        )
        for each in self.more:
            found[each] = (
                f"is in the guest of server {self.server}, which was not given it: {self.cure}"
            )
        return found


def compare(promised: Iterable[Promised], guests: GuestDomains) -> tuple[Difference, ...]:
    """The servers whose guests differ from the records, in the order of their UUIDs.

    A server without a guest here is somebody else's question, and so is a guest of
    nobody's: what they have is not offered anyway.
    """
    domains = {each.uuid: each for each in guests.domains}
    found = []
    for each in sorted(promised, key=lambda one: one.server):
        domain = domains.get(each.server)
        if domain is None or not each.settled:
            continue
        difference = _difference(each, domain)
        if difference is not None:
            found.append(difference)
    return tuple(found)


def _difference(promised: Promised, domain: GuestDomain) -> Difference | None:
    # One that is off, or saved, gets its devices when it starts again.
    if domain.condition not in (Condition.RUNNING, Condition.PAUSED):
        return None
    live = domain.live
    gone: frozenset[str] = frozenset()
    if live.problem is None:  # what cannot be read may be the one that is missed
        gone = promised.devices - live.all
    more = live.all - promised.devices
    return Difference(promised.server, gone, more) if gone or more else None


def reasons(differences: Iterable[Difference]) -> dict[str, str]:
    """Address -> what is wrong, of all of them; one that was swapped has two reasons."""
    found: dict[str, str] = {}
    for each in differences:
        for address, text in each.reasons().items():
            found[address] = f"{found[address]}; {text}" if address in found else text
    return found


#: What a device is that a server should have, or should not, in one word.
GONE: Final = "gone"
MORE: Final = "more"


def words(differences: Iterable[Difference]) -> dict[tuple[str, str], str]:
    """(Server, address) -> :data:`GONE` or :data:`MORE`, of all of them."""
    found: dict[tuple[str, str], str] = {}
    for each in differences:
        found |= dict.fromkeys(((each.server, address) for address in each.gone), GONE)
        found |= dict.fromkeys(((each.server, address) for address in each.more), MORE)
    return found


@attrs.frozen
class Look:
    """What one look has found, and what the looks before it make of that."""

    #: Differences that hold: seen twice in a row.
    known: tuple[Difference, ...] = ()
    #: Server -> its difference, seen now.
    seen: Mapping[str, Difference] = attrs.field(factory=dict, hash=False)

    def then(self, found: Iterable[Difference]) -> Look:
        """The next look.

        Nova attaches a direct port without a word in the server's state: its device is
        recorded before the guest has it, and the other way round at a detach. So a
        difference is one only if the next look sees it again.
        """
        now = {each.server: each for each in found}
        known = tuple(each for server, each in now.items() if self.seen.get(server) == each)
        return Look(known, now)
