# SPDX-License-Identifier: Apache-2.0
"""Devices that Nova gives to nobody and somebody has all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

import attrs

from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import DeviceOwners, HeldDevice
from nova_hpc.topology.model import address_key
from nova_hpc.wire.ledger import Ledger

#: Locks that are held at once: each is an open file.
_MOST_AT_ONCE: Final = 128


@attrs.frozen
class OwnerDisagreement:
    """The findings of a periodic look."""

    #: Address -> who has a device, or why that is unknown.
    held: dict[str, HeldDevice] = attrs.field(factory=dict)
    #: Address -> why it was not asked who has a device.
    waiting: dict[str, str] = attrs.field(factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Address -> why a device must be left as it is, and not be offered."""
        return self.waiting | {address: holding.text for address, holding in self.held.items()}


def find_disagreements(
    records: HygieneRecords,
    before: Ledger,
    offered: Collection[str],
    used: frozenset[str],
    owners: DeviceOwners,
) -> OwnerDisagreement:
    """Find the devices of which Nova's records are not the whole truth, and mark them.

    A device whose user is known gets that mark, or keeps the one that it has: it goes
    when it was cleaned, which is not before its user has gone.

    :param before: the ledger, read before Nova was asked.
    :param offered: addresses of what the node offers.
    :param used: devices that servers have by Nova's records.
    :raises LedgerError: nothing can be remembered.
    """
    pending = sorted((frozenset(offered) | before.marked.keys()) - used, key=address_key)
    disagreements = OwnerDisagreement()
    if not pending:
        return disagreements
    # Libvirt is asked once for all.
    asked = owners.with_domains(owners.domains())
    for start in range(0, len(pending), _MOST_AT_ONCE):
        with contextlib.ExitStack() as stack:
            locked = []
            for address in pending[start : start + _MOST_AT_ONCE]:
                try:
                    stack.enter_context(records.ledger.locked(address, 0))
                    locked.append(address)
                except LedgerError:
                    disagreements.waiting[address] = "it is being checked"
            # A device that was given meanwhile has another mark: its guest may be
            # starting, and nothing may get into its way.
            ledger = records.known()
            locked = [
                address
                for address in locked
                if ledger.device(address).server == before.device(address).server
            ]
            disagreements.held.update(asked.held(locked))
    if disagreements.held:
        # What was given, or has ended, while libvirt was asked is no disagreement.
        for address in owners.records() & disagreements.held.keys():
            del disagreements.held[address]
        _mark_held_devices(records, disagreements)
    return disagreements


def _mark_held_devices(records: HygieneRecords, disagreements: OwnerDisagreement) -> None:
    marks = {
        address: holding.server
        for address, holding in disagreements.held.items()
        if holding.server is not None
    }
    records.change(
        lambda ledger: {
            address: attrs.evolve(ledger.device(address).doubted(), server=server)
            for address, server in marks.items()
            if ledger.device(address).server is None
        }
    )
