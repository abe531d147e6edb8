# SPDX-License-Identifier: Apache-2.0
"""Devices without a server in Nova that are in use anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.owners import DeviceOwners, HeldDevice
from nova_hpc.tenancy.step import DeviceCandidate
from nova_hpc.topology.model import address_key
from nova_hpc.wire.ledger import Ledger

#: The most locks that are held at once, because each is an open file.
_MOST_AT_ONCE: Final = 128


def find_disagreements(
    records: HygieneRecords,
    before: Ledger,
    offered: Mapping[str, DeviceCandidate],
    used: frozenset[str],
    owners: DeviceOwners,
) -> tuple[dict[str, HeldDevice], dict[str, str]]:
    """Find devices whose use is missing in Nova's records, and mark them.

    A device with a known user gets that mark, or keeps its present one. The mark is removed
    after cleaning, which waits until the user has gone. Virtual functions of offered devices are
    looked at, too, because a reset of the device would reset them. They get no mark.

    :param before: the ledger, read before Nova was queried.
    :param offered: the devices that the node offers, by address.
    :param used: devices that servers have by Nova's records.
    :returns: address -> the user of a device, or why the user is unknown; and address -> why
        the user of another device was not queried.
    :raises LedgerError: the ledger cannot be written.
    """
    held: dict[str, HeldDevice] = {}
    waiting: dict[str, str] = {}
    own = frozenset(offered) | before.marked.keys()
    functions = {
        address for device in offered.values() for address in device.function.virtual_functions
    }
    pending = sorted((own | functions) - used, key=address_key)
    if not pending:
        return held, waiting
    # Query libvirt once for all devices.
    asked = owners.with_domains(owners.domains())
    for start in range(0, len(pending), _MOST_AT_ONCE):
        with records.free_locks(pending[start : start + _MOST_AT_ONCE]) as (locked, reasons):
            waiting |= reasons
            # A device that was given since then has another mark: its guest may be
            # starting, and must not be disturbed.
            ledger = records.known()
            locked = [
                address
                for address in locked
                if ledger.device(address).server == before.device(address).server
            ]
            held |= asked.held(locked)
    if held:
        # Ignore devices that were claimed or freed while libvirt was queried.
        for address in owners.records() & held.keys():
            del held[address]
        _mark_held_devices(records, held, own)
    return held, waiting


def _mark_held_devices(
    records: HygieneRecords, held: Mapping[str, HeldDevice], own: frozenset[str]
) -> None:
    marks = {
        address: held[address].server
        for address in own & held.keys()
        if held[address].server is not None
    }
    records.change(
        lambda ledger: {
            address: attrs.evolve(ledger.device(address).doubted(), server=server)
            for address, server in marks.items()
            if ledger.device(address).server is None
        }
    )
