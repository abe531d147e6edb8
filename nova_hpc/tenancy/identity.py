# SPDX-License-Identifier: Apache-2.0
"""Entries of the ledger follow the hardware, not its bus number.

Pure. An address is only a place: firmware renumbers buses, and boards change slots or are
replaced. A serial number identifies hardware (from PCIe, else from the vital product
data). A virtual function is identified by its physical function's number and its own index. If
there is no number, or two devices of the node report the same, only the slot is known,
and an entry stays at its place.

Nova records only places. So an entry is marked as ``replaced`` if a server holds its place and
the place has other hardware than before, or may have. The server has never
had that hardware, so it is cleaned before the server starts with it. A place that never
had a number, and has none now, counts as unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice

#: Prefix of hardware that only its place identifies.
SLOT: Final = "slot:"
_NOTHING: Final = LedgerDevice()


@attrs.frozen
class MovedLedger:
    """The ledger after its entries have moved to the present addresses of the node's hardware."""

    ledger: Ledger
    #: One sentence each, for the log; without serial numbers.
    notes: tuple[str, ...] = ()


def is_hardware_known(hardware: str | None) -> bool:
    """Return whether the text identifies a piece of hardware, and not only the slot it is in."""
    return hardware is not None and not hardware.startswith(SLOT)


def unique_hardware_of(seen: Mapping[str, str]) -> dict[str, str]:
    """Return the identity that each device reports; its slot if several report the same."""
    counts = Counter(seen.values())
    return {
        address: hardware
        if counts[hardware] == 1 or not is_hardware_known(hardware)
        else f"{SLOT}{address}"
        for address, hardware in seen.items()
    }


def move_entries_with_hardware(
    ledger: Ledger, seen: Mapping[str, str], unsure: Collection[str] = ()
) -> MovedLedger:
    """Move each entry to the present address of its hardware.

    The cases are handled in this order: hardware at another place, hardware that has left the
    node, held places without hardware, hardware that is identified for the first time, and hardware
    that no longer reports its number.

    :param seen: address -> identity that a device reports now.
    :param unsure: addresses of devices that are present but were not read: their
        entries may still be valid.
    """
    counts = Counter(device.hardware for device in ledger.devices.values())
    # The recorded place of each piece; a number that occurs twice identifies no piece.
    recorded_addresses = {
        device.hardware: address
        for address, device in ledger.devices.items()
        if device.hardware is not None
        and is_hardware_known(device.hardware)
        and counts[device.hardware] == 1
    }
    sure_hardware = {
        address: hardware
        for address, hardware in unique_hardware_of(seen).items()
        if is_hardware_known(hardware)
        and (
            recorded_addresses.get(hardware, address) == address
            or recorded_addresses[hardware] not in unsure
        )
    }
    reported_hardware = set(seen.values())
    moving = {
        address: hardware
        for address, hardware in sure_hardware.items()
        if _has_other_hardware(ledger, address, hardware, recorded_addresses, reported_hardware)
    }
    places = {
        *moving,
        *(
            recorded_addresses[hardware]
            for hardware in moving.values()
            if hardware in recorded_addresses
        ),
    }
    left = {address: ledger.devices[address] for address in places if address in ledger.devices}
    # Remove all moved entries before adding any: two devices may have changed places.
    devices = {address: device for address, device in ledger.devices.items() if address not in left}
    displaced = {
        device.hardware: device for device in left.values() if is_hardware_known(device.hardware)
    }
    away = dict(ledger.absent)
    notes = []
    for address, hardware in sorted(moving.items()):
        device, note = displaced.pop(hardware, None), "what is known of it has come with it"
        last_server_here = None if device is None else device.server
        if device is None:
            device, note = away.pop(hardware, None), "it was away: what is known of it counts again"
        if device is None:
            device, note = _NOTHING, "it is new, and other hardware was in its place"
        # Its former owner at that place is unknown.
        device = device.doubted()
        old = left.get(address)
        if old is not None and old.server and not device.server:
            # Nova may assign the place to a server; only a proof makes it free.
            device = attrs.evolve(device, server=SOMEBODY)
        if old is not None and _is_place_held(old) and not _has_same_server(old, last_server_here):
            device = _mark_as_replaced(device)
        else:
            device = attrs.evolve(device, replaced=False)  # the mark is about its former place
        devices[address] = attrs.evolve(device, hardware=hardware)
        notes.append(f"PCI device {address} is other hardware than before: {note}")
    away |= {
        hardware: attrs.evolve(device, replaced=False)
        for hardware, device in displaced.items()
        if hardware is not None and hardware not in reported_hardware
    }
    for address in left.keys() - moving.keys():
        if _is_place_held(left[address]):
            # Any hardware that comes here next is new to the server.
            devices[address] = LedgerDevice(replaced=True)
    for address, hardware in sure_hardware.items():
        device = devices.get(address, _NOTHING)
        if address not in moving and hardware != device.hardware:
            # It had no unique number before: assume that it is the recorded hardware.
            if device.hardware is not None and _is_place_held(device):
                device = _mark_as_replaced(device)
            devices[address] = attrs.evolve(device, hardware=hardware)
    for address, hardware in seen.items():
        device = devices.get(address, _NOTHING)
        lost = is_hardware_known(device.hardware) and not is_hardware_known(hardware)
        if lost and _is_place_held(device) and not device.replaced:
            # It had a number, and reports none now.
            devices[address] = _mark_as_replaced(device)
    if devices == ledger.devices and away == ledger.absent:
        return MovedLedger(ledger)
    return MovedLedger(attrs.evolve(ledger, devices=devices, absent=away), tuple(notes))


def _is_place_held(entry: LedgerDevice) -> bool:
    """Whether a ledger entry has a server, or is marked as replaced: then a server may have it."""
    return entry.server is not None or entry.replaced


def _has_same_server(old: LedgerDevice, server: str | None) -> bool:
    """Whether the server that holds a place is certainly the last one with the hardware.

    :param old: the former entry of the place.
    :param server: the mark of the hardware that is there now, if it was in the node before.
    """
    return not old.replaced and old.server == server and server not in (None, SOMEBODY)


def _mark_as_replaced(device: LedgerDevice) -> LedgerDevice:
    """Mark a ledger entry as replaced: the server at its address has never had the hardware."""
    device = device.doubted()
    # A due stage belongs to the hardware's former server.
    stage = device.stage and {**device.stage, "server": SOMEBODY}
    return attrs.evolve(device, replaced=True, stage=stage)


def _has_other_hardware(
    ledger: Ledger,
    address: str,
    hardware: str,
    recorded_addresses: Mapping[str, str],
    reported_hardware: Collection[str],
) -> bool:
    """Whether an address has other hardware now than before."""
    entry = ledger.device(address)
    if recorded_addresses.get(hardware, address) != address:
        return True  # it comes from another place
    if entry.hardware == hardware:
        return False
    if not is_hardware_known(entry.hardware):
        return hardware in ledger.absent
    # Several devices may share the number that is recorded here.
    return entry.hardware in recorded_addresses or entry.hardware not in reported_hardware
