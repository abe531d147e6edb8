# SPDX-License-Identifier: Apache-2.0
"""The places of hardware: entries of the ledger follow the hardware, not the bus number.

Pure. An address is a place: firmware numbers buses anew, boards change slots or are
replaced. Hardware is known by its serial number (of PCIe, else of the vital product
data), a virtual function by that of its physical function and its number there. Where
there is none, or where two devices of the node say the same, only the slot is known,
and an entry stays where it is.

Nova knows places alone. So if a place that a server holds has other hardware than before,
or it is unknown whether it has, the entry is marked as ``replaced``: the server has never
had that hardware, and it is cleaned before the server starts with it. A place that never
had a number, and has none, says nothing: it is taken for what it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice

#: How hardware begins that is known by its place alone.
SLOT: Final = "slot:"
_NOTHING: Final = LedgerDevice()


@attrs.frozen
class MovedLedger:
    """The ledger as the node is now."""

    ledger: Ledger
    #: One sentence each, for the log; without serial numbers.
    notes: tuple[str, ...] = ()


def is_hardware_known(hardware: str | None) -> bool:
    """Whether it names a piece of hardware, and not only a place."""
    return hardware is not None and not hardware.startswith(SLOT)


def unique_hardware_of(seen: Mapping[str, str]) -> dict[str, str]:
    """The identity that every device reports; the slot where several report the same."""
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
    """Put each entry to the address at which its hardware is.

    :param seen: address -> what a device says that it is now.
    :param unsure: addresses of devices that are there and were not asked: what is
        recorded of them may still hold.
    """
    counts = Counter(device.hardware for device in ledger.devices.values())
    # Where each piece was, by the ledger; one that is there twice was never told apart.
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
    # All leave before any comes: two may change places.
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
        # Its former owner there is unknown.
        device = device.doubted()
        old = left.get(address)
        if old is not None and old.server and not device.server:
            # Nova may have the place for the server's; it is nobody's only when proved.
            device = attrs.evolve(device, server=SOMEBODY)
        if old is not None and _is_place_held(old) and not _has_same_server(old, last_server_here):
            device = _mark_as_replaced(device)
        else:
            device = attrs.evolve(device, replaced=False)  # that was said of its former place
        devices[address] = attrs.evolve(device, hardware=hardware)
        notes.append(f"PCI device {address} is other hardware than before: {note}")
    away |= {
        hardware: attrs.evolve(device, replaced=False)
        for hardware, device in displaced.items()
        if hardware is not None and hardware not in reported_hardware
    }
    for address in left.keys() - moving.keys():
        if _is_place_held(left[address]):
            # Whatever comes here next, its server has not had it.
            devices[address] = LedgerDevice(replaced=True)
    for address, hardware in sure_hardware.items():
        device = devices.get(address, _NOTHING)
        if address not in moving and hardware != device.hardware:
            # It could not be told apart before: it is taken for what was here.
            if device.hardware is not None and _is_place_held(device):
                device = _mark_as_replaced(device)
            devices[address] = attrs.evolve(device, hardware=hardware)
    for address, hardware in seen.items():
        device = devices.get(address, _NOTHING)
        lost = is_hardware_known(device.hardware) and not is_hardware_known(hardware)
        if lost and _is_place_held(device) and not device.replaced:
            # It had a number, and says none now.
            devices[address] = _mark_as_replaced(device)
    if devices == ledger.devices and away == ledger.absent:
        return MovedLedger(ledger)
    return MovedLedger(attrs.evolve(ledger, devices=devices, absent=away), tuple(notes))


def _is_place_held(entry: LedgerDevice) -> bool:
    """Whether a server may have the place by Nova's records."""
    return entry.server is not None or entry.replaced


def _has_same_server(old: LedgerDevice, server: str | None) -> bool:
    """Whether the server that holds a place is surely the one that had the hardware last.

    :param old: the entry of what was at the place.
    :param server: the mark of the hardware that is there now, if it has been in the node.
    """
    return not old.replaced and old.server == server and server not in (None, SOMEBODY)


def _mark_as_replaced(device: LedgerDevice) -> LedgerDevice:
    """An entry of hardware that the server which holds its place has never had."""
    device = device.doubted()
    # A stage that is due is not due of that server.
    stage = device.stage and {**device.stage, "server": SOMEBODY}
    return attrs.evolve(device, replaced=True, stage=stage)


def _has_other_hardware(
    ledger: Ledger,
    address: str,
    hardware: str,
    recorded_addresses: Mapping[str, str],
    reported_hardware: Collection[str],
) -> bool:
    """Whether the hardware that is at an address now is not the one that was."""
    entry = ledger.device(address)
    if recorded_addresses.get(hardware, address) != address:
        return True  # it comes from elsewhere
    if entry.hardware == hardware:
        return False
    if not is_hardware_known(entry.hardware):
        return hardware in ledger.absent
    # What is recorded here may be a number that several have.
    return entry.hardware in recorded_addresses or entry.hardware not in reported_hardware
