# SPDX-License-Identifier: Apache-2.0
"""Compares a ledger with Nova's current records, to decide whether it can be trusted.

Pure. A ledger can be lost, restored from an older copy or with its disk, come from
another node, or lack entries that a full disk has rejected. So a missing entry never proves that
a device is clean. The entries that *forbid* (marks, quarantine, a due stage)
always count. The entries that *allow* count only with a proof:

* A device counts as clean only since it was cleaned here, shown by its entry's ``proof``.
* The proof contains Nova's record of the device at that time. A record changes when a server
  gets the device and when it gives it back. It is in Nova's database, which is not restored
  together with a file of the node. If the record differs or is missing, a server may have had
  the device.
* nova-compute compares when it starts, and whenever the file is not the one that it wrote
  last (:attr:`nova_hpc.tenancy.ledger.LedgerFile.of_compute`). Until then it gives no device.

libvirt and the kernel are also queried for the user of every device that is given or
cleaned (:mod:`nova_hpc.tenancy.owners`).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nova_hpc.tenancy import identity
from nova_hpc.tenancy.owners import NovaDeviceRows
from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice


@attrs.frozen
class LedgerComparison:
    """The result of a comparison of the node's ledger of devices with Nova's present records."""

    ledger: Ledger
    #: Addresses of devices that counted as clean before, and no longer do.
    doubted: tuple[str, ...] = ()
    #: Whether the file belongs to another node.
    foreign: bool = False


def confirm_ledger_by_rows(ledger: Ledger, rows: NovaDeviceRows) -> LedgerComparison:
    """Return the ledger, reduced to the entries that Nova's records confirm.

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
    """Keep the entries of identified hardware, which may have moved here with its board.

    The entries of places, of servers' partitions and of Placement belong to the other node.
    """
    kept = {
        address: device
        for address, device in ledger.devices.items()
        if identity.is_hardware_known(device.hardware)
    }
    return Ledger(devices=kept, absent=ledger.absent, partitions=None, problems=ledger.problems)


def add_row_proofs(ledger: Ledger, addresses: Iterable[str], rows: NovaDeviceRows) -> Ledger:
    """Return the ledger with the proofs of free devices that are clean.

    :param addresses: devices that no server has.
    :param rows: Nova's records, read before the devices were found clean.
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
    # At the service's first start Nova had no record of the node yet.
    return attrs.evolve(ledger, node=rows.node or ledger.node)
