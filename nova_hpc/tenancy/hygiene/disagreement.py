# SPDX-License-Identifier: Apache-2.0
"""Devices without a server in Nova that are in use anyway."""

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

#: The most locks that are held at once, because each is an open file.
_MOST_AT_ONCE: Final = 128


@attrs.frozen
class OwnerDisagreement:
    """The findings of a periodic check."""

    #: Address -> the user of a device, or why the user is unknown.
    held: dict[str, HeldDevice] = attrs.field(factory=dict)
    #: Address -> why the user of a device was not queried.
    waiting: dict[str, str] = attrs.field(factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Address -> why a device must not be touched, and not be offered."""
        return self.waiting | {address: holding.text for address, holding in self.held.items()}


def find_disagreements(
    records: HygieneRecords,
    before: Ledger,
    offered: Collection[str],
    used: frozenset[str],
    owners: DeviceOwners,
) -> OwnerDisagreement:
    """Find devices whose use is missing in Nova's records, and mark them.

    A device with a known user gets that mark, or keeps its present one. The mark is removed
    after cleaning, which waits until the user has gone.

    :param before: the ledger, read before Nova was queried.
    :param offered: addresses of the devices that the node offers.
    :param used: devices that servers have by Nova's records.
    :raises LedgerError: the ledger cannot be written.
    """
    pending = sorted((frozenset(offered) | before.marked.keys()) - used, key=address_key)
    disagreements = OwnerDisagreement()
    if not pending:
        return disagreements
    # Query libvirt once for all devices.
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
            # A device that was given since then has another mark: its guest may be
            # starting, and must not be disturbed.
            ledger = records.known()
            locked = [
                address
                for address in locked
                if ledger.device(address).server == before.device(address).server
            ]
            disagreements.held.update(asked.held(locked))
    if disagreements.held:
        # Ignore devices that were claimed or freed while libvirt was queried.
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
