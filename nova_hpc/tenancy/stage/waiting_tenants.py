# SPDX-License-Identifier: Apache-2.0
"""Stopped servers that wait until the hardware in their place has passed its stage.

Such a device has a server by Nova's records, which contain only places, and a shut-off domain
by libvirt's. The server has not got it yet. Its start is refused until the stage has passed,
and then makes the device due for the server itself, in one write of the ledger. So either the
server or the stage may touch the device, and the ledger determines which.
"""

from __future__ import annotations

from collections.abc import Collection

from nova_hpc.tenancy.owners import DeviceOwners, HeldDevice
from nova_hpc.tenancy.stage import device_stage
from nova_hpc.wire.ledger import Ledger


def list_taken_devices(ledger: Ledger, owners: DeviceOwners) -> frozenset[str]:
    """Return devices that servers have by Nova's records, without those that wait for a stage."""
    used = owners.records()
    return used - find_waiting_tenants(ledger, ledger.staged & used, owners).keys()


def find_waiting_tenants(
    ledger: Ledger, addresses: Collection[str], owners: DeviceOwners
) -> dict[str, str]:
    """Return PCI address -> the server that waits for the hardware that is now at this address."""
    replaced = [address for address in addresses if ledger.device(address).replaced]
    rows = owners.rows().devices if replaced else {}
    tenants = {}
    for address in replaced:
        entry = device_stage.load_stage(ledger.device(address).stage)
        server = rows[address].server if address in rows else None
        if entry is not None and server is not None and entry.server != server:
            tenants[address] = server
    return tenants


def find_held_devices(
    addresses: Collection[str], ledger: Ledger, owners: DeviceOwners
) -> dict[str, HeldDevice]:
    """Return the *addresses* with a holder other than a server that waits for them."""
    tenants = find_waiting_tenants(ledger, addresses, owners)
    held = owners.held(frozenset(addresses) - tenants.keys())
    for address, server in tenants.items():
        domains = owners.domains()
        own = domains.of(server)
        running = own is not None and address in own.live.all
        held |= owners.with_domains(domains).held([address], None if running else server)
    return held
