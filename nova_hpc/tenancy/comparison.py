# SPDX-License-Identifier: Apache-2.0
"""The comparison of a ledger with what Nova has recorded meanwhile: may it be believed?

Pure. A ledger can be lost, put back from an older copy, restored with its disk, be that of
another node, or lack what a full disk kept from being written. So no device is clean because
nothing is said against it. What a ledger *forbids* (marks, quarantine, a stage that is due)
always counts; what it *allows* counts while there is proof:

* a device is known to be clean only since it was cleaned here, by its entry's ``proof``;
* the proof says which record Nova had of the device then. A record changes when a server
  gets the device and when it gives it back, in Nova's database, which is not restored
  together with a file of the node. Another record, or none: somebody may have had it;
* nova-compute compares when it starts, and as soon as the file is not the one that it wrote
  last (:attr:`nova_hpc.tenancy.ledger.LedgerFile.of_compute`); until then it gives nothing.

What libvirt and the kernel say of who has a device now is asked besides, of every device
that is given or cleaned (:mod:`nova_hpc.tenancy.owners`).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nova_hpc.tenancy import identity
from nova_hpc.tenancy.owners import NovaDeviceRows
from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice


@attrs.frozen
class LedgerComparison:
    """The result of the comparison."""

    ledger: Ledger
    #: Addresses of devices that were known to be clean, and are not any more.
    doubted: tuple[str, ...] = ()
    #: The file is that of another node.
    foreign: bool = False


def confirm_ledger_by_rows(ledger: Ledger, rows: NovaDeviceRows) -> LedgerComparison:
    """The ledger with only what Nova's records bear out.

    :param rows: Nova's records of the devices of this node, read before this is written.
    """
    foreign = bool(ledger.node and rows.node and ledger.node != rows.node)
    if foreign:
        ledger = _keep_known_hardware(ledger)
    changed: dict[str, LedgerDevice] = {}
    lost = []
    for address, device in ledger.devices.items():
        row = rows.devices.get(address)
        if device.owes:
            changed[address] = device.doubted()
        elif not (row and row.text and row.text == device.proof):
            changed[address] = device.doubted()
            lost.append(address)
    for address, row in rows.devices.items():
        device = changed.get(address, ledger.device(address))
        if row.server is not None and device.server is None:
            changed[address] = attrs.evolve(device, server=SOMEBODY)
    confirmed = attrs.evolve(ledger.put(changed), compared=True, node=rows.node or ledger.node)
    return LedgerComparison(confirmed, tuple(sorted(lost)), foreign)


def _keep_known_hardware(ledger: Ledger) -> Ledger:
    """The records about pieces of hardware, which may have come from there with a board.

    What it says of places, of servers' partitions and of Placement is of that other node.
    """
    kept = {
        address: device
        for address, device in ledger.devices.items()
        if identity.is_hardware_known(device.hardware)
    }
    return Ledger(devices=kept, absent=ledger.absent, partitions=None, problems=ledger.problems)


def add_row_proofs(ledger: Ledger, addresses: Iterable[str], rows: NovaDeviceRows) -> Ledger:
    """The ledger with the proof of free devices that are clean.

    :param addresses: devices that nobody has.
    :param rows: Nova's records, read before it was known that they are clean.
    """
    proved_devices = {}
    pending = ledger.staged
    for address in addresses:
        device, row = ledger.device(address), rows.devices.get(address)
        if device.owes or address in pending or row is None or not row.text:
            continue
        if device.proof != row.text:
            proved_devices[address] = attrs.evolve(device, proof=row.text)
    ledger = ledger.put(proved_devices) if proved_devices else ledger
    # When it started for the first time, Nova did not know the node yet.
    return attrs.evolve(ledger, node=rows.node or ledger.node)
