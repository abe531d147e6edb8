# SPDX-License-Identifier: Apache-2.0
"""Owners of devices: a device is free if Nova's records, libvirt and the kernel agree.

Each of these sources can be wrong. Nova loses a server that was deleted while nova-compute was
down, that was evacuated behind a broken network, or that a restored database lacks,
and its guest keeps running. Libvirt does not list a QEMU that was started by hand. The kernel
does not show a guest that is shut off and will start. So a device is free only if none
of them names an owner. A source that does not answer does not count as "free".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import attrs

from nova_hpc.tenancy.guest_domains import NodeGuestDomain, NodeGuestDomains
from nova_hpc.tenancy.holders import KernelHolder
from nova_hpc.wire.ledger import SOMEBODY


@attrs.frozen
class HeldDevice:
    """The reason why a device without a server in Nova is not free."""

    #: For operators: the user of the device, and the cure.
    text: str
    #: User to record: the domain's UUID, or SOMEBODY. None if it is unknown whether the
    #: device has a user; the recorded one then stays.
    server: str | None = None


@attrs.frozen
class NovaDeviceRow:
    """Nova's record of one PCI device of the node: the server that has it, and a text about it."""

    #: UUID of the server that has it; None if no server has it.
    server: str | None = None
    #: For a free device: a text that changes after each server that had it. "" if not free.
    text: str = ""


@attrs.frozen
class NovaDeviceRows:
    """Nova's records of the PCI devices of one node, by address."""

    #: Nova's UUID of the node; "" if Nova has no record of it yet.
    node: str = ""
    #: By address; devices without a record are missing.
    devices: Mapping[str, NovaDeviceRow] = attrs.field(factory=dict, hash=False)

    def of(self, server: str) -> frozenset[str]:
        """Return the addresses of the PCI devices of the server with this UUID."""
        return frozenset(address for address, row in self.devices.items() if row.server == server)


@attrs.frozen
class DeviceOwners:
    """Finds the users of one node's devices, with a fresh query each time."""

    #: Returns the devices that servers have by Nova's records; a process without access to
    #: Nova uses the marks of the ledger.
    records: Callable[[], frozenset[str]]
    #: Returns libvirt's domains.
    domains: Callable[[], NodeGuestDomains]
    #: Returns the devices with a user according to the kernel; see nova_hpc.tenancy.holders.
    holders: Callable[[Iterable[str]], Mapping[str, KernelHolder]]
    #: Returns Nova's full records; empty in a process without access to Nova.
    rows: Callable[[], NovaDeviceRows] = NovaDeviceRows

    def held(self, addresses: Collection[str], server: str | None = None) -> dict[str, HeldDevice]:
        """Return those of *addresses* without another server in Nova that are not free.

        Call it under their locks: querying the kernel excludes other processes for an instant.

        :param server: a server that may have them.
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
        """Return the same owners with an answer of libvirt that the caller already has."""
        return attrs.evolve(self, domains=lambda: domains)

    def busy(self, addresses: Collection[str]) -> frozenset[str]:
        """Return those of *addresses* that a server or a domain has, or may have."""
        domains = self.domains()
        # Query Nova last: a domain that has just ended was gone before its record.
        return self.records() & frozenset(addresses) | held_by_domains(domains, addresses).keys()


def held_by_domains(
    domains: NodeGuestDomains, addresses: Iterable[str], server: str | None = None
) -> dict[str, HeldDevice]:
    """Return those of *addresses* that a guest domain other than *server*'s has or may have."""
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
    """Map each address in *holders* to the device's user, worded for operators.

    :param holders: PCI address -> the holder that the kernel shows.
    """
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
