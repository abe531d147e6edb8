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
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger

_SLOT: Final = "slot:"


@attrs.frozen
class Moved:
    """The ledger as the node is now."""

    ledger: Ledger
    #: One sentence each, for the log; without serial numbers.
    notes: tuple[str, ...] = ()


def is_known(hardware: str | None) -> bool:
    """Whether it names a piece of hardware, and not only a place."""
    return hardware is not None and not hardware.startswith(_SLOT)


def unique(seen: Mapping[str, str]) -> dict[str, str]:
    """What every device says it is; the slot where several say the same."""
    counts = Counter(seen.values())
    return {
        each: hardware if counts[hardware] == 1 or not is_known(hardware) else f"{_SLOT}{each}"
        for each, hardware in seen.items()
    }


def follow(ledger: Ledger, seen: Mapping[str, str]) -> Moved:
    """Put each entry to the address at which its hardware is.

    :param seen: address -> hardware, of the devices that were identified now. All
        others stay where they are.
    """
    now = unique(seen)
    twice = {each for each, count in Counter(seen.values()).items() if count > 1}
    strong = {each: hardware for each, hardware in now.items() if is_known(hardware)}
    recorded = Counter(
        found.hardware for found in ledger.devices.values() if is_known(found.hardware)
    )
    # Where each piece was; one that is recorded twice was never told apart.
    was = {
        found.hardware: each
        for each, found in ledger.devices.items()
        if is_known(found.hardware) and recorded[found.hardware] == 1
    }
    away = dict(ledger.absent)
    devices = dict(ledger.devices)
    notes: list[str] = []
    moving = {
        each: hardware
        for each, hardware in strong.items()
        if _is_other(ledger.device(each), hardware, twice, recorded)
        or (was.get(hardware, each) != each)
        or (hardware in away and not is_known(ledger.device(each).hardware))
    }
    # All leave before any comes: two may change places.
    left: dict[str, Device] = {}
    for each, hardware in moving.items():
        for place in {each, was.get(hardware, each)}:
            found = devices.pop(place, None)
            if found is not None:
                left[place] = found
    known = {found.hardware: found for found in left.values() if found.hardware is not None}
    for each, hardware in moving.items():
        old = left.get(each)
        found = known.pop(hardware, None) or away.pop(hardware, None)
        if found is None and old is not None and not is_known(old.hardware):
            # It could not be told apart before: it is taken for what was here.
            found = old
        elif found is not None:
            source = was.get(hardware)
            whence = f"was at {source} before" if source else "was away"
            notes.append(f"PCI device {each} {whence}: what is known of it has come with it")
        else:
            notes.append(f"PCI device {each} is new hardware in a place where other was")
        entry = found or Device()
        if old is not None and old is not found and old.server and not entry.server:
            # Nova may have it for the server's; it is nobody's only when that is proved.
            entry = attrs.evolve(entry, server=SOMEBODY)
        devices[each] = attrs.evolve(entry, hardware=hardware)
    away |= {
        hardware: found
        for hardware, found in known.items()
        if is_known(hardware) and hardware not in strong.values()
    }
    for each, hardware in strong.items():
        if each not in moving and devices.get(each, _NOTHING).hardware != hardware:
            devices[each] = attrs.evolve(devices.get(each, _NOTHING), hardware=hardware)
    if devices == ledger.devices and away == ledger.absent:
        return Moved(ledger)
    return Moved(attrs.evolve(ledger, devices=devices, absent=away), tuple(notes))


_NOTHING: Final = Device()


def _is_other(
    entry: Device, hardware: str, twice: set[str], recorded: Mapping[str | None, int]
) -> bool:
    """Whether an entry is about other hardware than is there now."""
    if not is_known(entry.hardware) or entry.hardware == hardware:
        return False
    # A serial number that several have says nothing.
    return entry.hardware not in twice and recorded[entry.hardware] == 1
