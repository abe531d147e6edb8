# SPDX-License-Identifier: Apache-2.0
"""Which hardware is where now: entries of the ledger follow the hardware, not the bus number.

Pure. An address is a place: firmware numbers buses anew, boards change slots or are
replaced. Hardware is known by its serial number (of PCIe, else of the vital product
data), a virtual function by that of its physical function and its number there. Where
there is none, or where two devices of the node say the same, only the slot is known,
and an entry stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger

#: How hardware begins that is known by its place alone.
SLOT: Final = "slot:"
_NOTHING: Final = Device()


@attrs.frozen
class Moved:
    """The ledger as the node is now."""

    ledger: Ledger
    #: One sentence each, for the log; without serial numbers.
    notes: tuple[str, ...] = ()


def is_known(hardware: str | None) -> bool:
    """Whether it names a piece of hardware, and not only a place."""
    return hardware is not None and not hardware.startswith(SLOT)


def unique(seen: Mapping[str, str]) -> dict[str, str]:
    """What every device says it is; the slot where several say the same."""
    counts = Counter(seen.values())
    return {
        each: hardware if counts[hardware] == 1 or not is_known(hardware) else f"{SLOT}{each}"
        for each, hardware in seen.items()
    }


def follow(ledger: Ledger, seen: Mapping[str, str], unsure: Collection[str] = ()) -> Moved:
    """Put each entry to the address at which its hardware is.

    :param seen: address -> what a device says that it is now.
    :param unsure: addresses of devices that are there and were not asked: what is
        recorded of them may still hold.
    """
    counts = Counter(found.hardware for found in ledger.devices.values())
    # Where each piece was, by the ledger; one that is there twice was never told apart.
    was = {
        found.hardware: each
        for each, found in ledger.devices.items()
        if found.hardware is not None and is_known(found.hardware) and counts[found.hardware] == 1
    }
    now = {
        each: hardware
        for each, hardware in unique(seen).items()
        if is_known(hardware) and (was.get(hardware, each) == each or was[hardware] not in unsure)
    }
    said = set(seen.values())
    moving = {each: one for each, one in now.items() if _moves(ledger, each, one, was, said)}
    places = {*moving, *(was[one] for one in moving.values() if one in was)}
    left = {each: ledger.devices[each] for each in places if each in ledger.devices}
    # All leave before any comes: two may change places.
    devices = {each: found for each, found in ledger.devices.items() if each not in left}
    known = {found.hardware: found for found in left.values() if is_known(found.hardware)}
    away = dict(ledger.absent)
    notes = []
    for each, hardware in sorted(moving.items()):
        found, note = known.pop(hardware, None), "what is known of it has come with it"
        if found is None:
            found, note = away.pop(hardware, None), "it was away: what is known of it counts again"
        if found is None:
            found, note = _NOTHING, "it is new, and other hardware was in its place"
        # Nobody knows who had it where it was.
        found = found.doubted()
        old = left.get(each)
        if old is not None and old.server and not found.server:
            # Nova may have the place for the server's; it is nobody's only when proved.
            found = attrs.evolve(found, server=SOMEBODY)
        devices[each] = attrs.evolve(found, hardware=hardware)
        notes.append(f"PCI device {each} is other hardware than before: {note}")
    away |= {one: found for one, found in known.items() if one is not None and one not in said}
    for each, hardware in now.items():
        if each not in moving and hardware != devices.get(each, _NOTHING).hardware:
            # It could not be told apart before: it is taken for what was here.
            devices[each] = attrs.evolve(devices.get(each, _NOTHING), hardware=hardware)
    if devices == ledger.devices and away == ledger.absent:
        return Moved(ledger)
    return Moved(attrs.evolve(ledger, devices=devices, absent=away), tuple(notes))


def _moves(
    ledger: Ledger, address: str, hardware: str, was: Mapping[str, str], said: Collection[str]
) -> bool:
    """Whether the hardware that is at an address now is not the one that was."""
    entry = ledger.device(address)
    if was.get(hardware, address) != address:
        return True  # it comes from elsewhere
    if entry.hardware == hardware:
        return False
    if not is_known(entry.hardware):
        return hardware in ledger.absent
    if hardware.startswith(f"{entry.hardware}/"):
        return False  # as an earlier release wrote it
    # What is recorded here may be a number that several have.
    return entry.hardware in was or entry.hardware not in said
