# SPDX-License-Identifier: Apache-2.0
"""Owners of devices: Nova's records, libvirt's domains and the kernel have to agree on none.

Each of them can be wrong. Nova forgets a server that was deleted while nova-compute was
down, that was evacuated behind a broken network, or that a restored database never knew,
and its guest runs on. Libvirt knows no QEMU that somebody started by hand. The kernel
knows nothing of a guest that is shut off and will start. So a device is free when none
of them names an owner, and one that does not answer has not said "nobody".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import attrs

from nova_hpc.tenancy.guest_domains import NodeGuestDomain, NodeGuestDomains
from nova_hpc.tenancy.holders import KernelHolder
from nova_hpc.wire.ledger import SOMEBODY


@attrs.frozen
class HeldDevice:
    """The reason why a device that Nova gives to nobody is not free."""

    #: For operators: who has it, and what helps.
    text: str
    #: Who is to be written down as its user: the domain's UUID, or SOMEBODY; None: nobody
    #: can tell whether anybody has it, and what is written stays.
    server: str | None = None


@attrs.frozen
class NovaDeviceRow:
    """Nova's record of one device."""

    #: UUID of the server that has it; None: none has.
    server: str | None = None
    #: Of a free device: another text after each server that had it. "": it is not free.
    text: str = ""


@attrs.frozen
class NovaDeviceRows:
    """Nova's records of the devices of one node."""

    #: Nova's UUID of the node; "": Nova does not know it yet.
    node: str = ""
    #: By address; what Nova does not know is missing.
    devices: Mapping[str, NovaDeviceRow] = attrs.field(factory=dict, hash=False)

    def of(self, server: str) -> frozenset[str]:
        """The devices that a server has."""
        return frozenset(address for address, row in self.devices.items() if row.server == server)


@attrs.frozen
class DeviceOwners:
    """Asks afresh, each time, who has devices of one node."""

    #: The devices that servers have by Nova's records; a process that cannot ask goes by
    #: the marks of the ledger.
    records: Callable[[], frozenset[str]]
    #: Libvirt's domains.
    domains: Callable[[], NodeGuestDomains]
    #: Which devices somebody has by the kernel; see nova_hpc.tenancy.holders.
    holders: Callable[[Iterable[str]], Mapping[str, KernelHolder]]
    #: Nova's records, in full; a process that cannot ask knows none.
    rows: Callable[[], NovaDeviceRows] = NovaDeviceRows

    def held(self, addresses: Collection[str], server: str | None = None) -> dict[str, HeldDevice]:
        """Those of *addresses* that no other server has by Nova's records, and that are not free.

        Call it below their locks: to ask the kernel is to keep others out for an instant.

        :param server: this one may have them.
        """
        if not addresses:
            return {}
        domains = self.domains()
        held_devices = held_by_domains(domains, addresses, server)
        own = domains.of(server) if server is not None else None
        own_addresses = own.live.all if own is not None else frozenset()
        asked = [
            address
            for address in sorted(addresses)
            if address not in held_devices and address not in own_addresses
        ]
        return held_devices | held_by_kernel(self.holders(asked))

    def with_domains(self, domains: NodeGuestDomains) -> DeviceOwners:
        """The same with an answer of libvirt's that is known already."""
        return attrs.evolve(self, domains=lambda: domains)

    def busy(self, addresses: Collection[str]) -> frozenset[str]:
        """Those of *addresses* that a server has by Nova's records, or a domain, or may have."""
        domains = self.domains()
        # Nova is asked last: a domain that has ended meanwhile ended before its record.
        return self.records() & frozenset(addresses) | held_by_domains(domains, addresses).keys()


def held_by_domains(
    domains: NodeGuestDomains, addresses: Iterable[str], server: str | None = None
) -> dict[str, HeldDevice]:
    """Those of *addresses* that a guest domain has which is not the one of *server*."""
    unknown = domains.unknown
    held_devices = {}
    for address in addresses:
        domain = domains.having(address)
        if domain is not None and domain.uuid != server:
            held_devices[address] = HeldDevice(_word_domain_holder(domain), domain.uuid or SOMEBODY)
        elif domain is None and unknown is not None:
            held_devices[address] = HeldDevice(f"the node cannot say whether it is free: {unknown}")
    return held_devices


def held_by_kernel(holders: Mapping[str, KernelHolder]) -> dict[str, HeldDevice]:
    """The devices that somebody has, by the kernel's answers."""
    return {
        address: HeldDevice(
            f"{holder.text}; Nova knows of no server that has it, and libvirt of no guest domain",
            SOMEBODY,
        )
        if holder.certain
        else HeldDevice(f"the node cannot say whether it is free: {holder.text}")
        for address, holder in holders.items()
    }


def _word_domain_holder(domain: NodeGuestDomain) -> str:
    return (
        f"{domain} has it, and Nova knows of no server that does; if nobody needs the guest, end "
        f"it with virsh destroy and virsh undefine ({domain.uuid or 'its UUID is unknown'})"
    )
