# SPDX-License-Identifier: Apache-2.0
"""How much of a device's resource provider is reserved in Placement, and for whom.

Placement has one number. What this node withholds and what an operator reserves
share it: the greater of the two is written, so that an operator's word is a floor
and never adds up with what the node found by itself. Who has reserved what is
remembered (:class:`nova_hpc.wire.reservation.Provider`), and written down *before*
Placement is told: whatever Placement says that was not written down is an operator's.

Pure: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.wire.ledger import Device, Ledger
from nova_hpc.wire.reservation import Provider

#: Why a device is not given that this node would give.
BY_OPERATOR: Final = "reserved in Placement by an operator"
#: What is said before the commands.
BY_NOBODY_KNOWN: Final = (
    "Reserved in Placement, and this node's ledger does not know by whom. It is taken for "
    "an operator's and stays. Where the ledger was lost, or the node installed anew under "
    "its name, it may be the node's own; these commands lift it:"
)


@attrs.frozen
class Found:
    """A provider as Placement has it."""

    uuid: str
    resource_class: str
    total: int
    reserved: int = 0
    #: Devices that anybody has by Placement.
    used: int = 0
    #: Nova reserves it itself, when a server gets it (``one_time_use``).
    once: bool = False


def decide(known: Provider | None, found: Found, withheld: int, total: int) -> Provider:
    """What is to be reserved of a provider from now on.

    :param known: what is remembered of it.
    :param found: as Placement has it now.
    :param withheld: how many of its devices this node withholds.
    :param total: its total from now on.
    :returns: what is to be remembered; its ``reserved`` is what to tell Placement.
    """
    theirs = operators(known, found)
    ours = min(withheld, total)
    gone = None if known is None else known.gone
    then = Provider(found.uuid, found.resource_class, total, ours, theirs, gone=gone)
    # Until the next look nobody knows whether Placement has heard of the change.
    return then if then.reserved == found.reserved else attrs.evolve(then, earlier=found.reserved)


def operators(known: Provider | None, found: Found) -> int:
    """How much of what is reserved is an operator's (or Nova's, of one-time-use devices)."""
    if known is None or known.uuid != found.uuid:
        return found.reserved
    if found.reserved in (known.reserved, known.earlier):
        return known.operators
    if found.reserved == 0 and found.total != known.total:
        # Nova sends no ``reserved`` when it changes a total, and Placement takes 0.
        return known.operators
    return found.reserved


def commands(
    records: Mapping[str, Provider],
    then: Mapping[str, Provider],
    found: Mapping[str, Found],
    ledger: Ledger,
) -> list[str]:
    """What lifts what is reserved and not in the ledger, one command a provider.

    Not what Nova reserves itself of a one-time-use device, which it gives up when that is
    clean: it is reserved as long as a server has it, or it waits to be reported.

    :param records: what was remembered, by address, and *then* what is from now on.
    """
    return [
        f"{each}: openstack resource provider inventory set --amend --resource "
        f"{record.resource_class}:reserved=0 {record.uuid}"
        for each, record in then.items()
        if record.operators and each not in records and not _novas(found[each], ledger.device(each))
    ]


def _novas(found: Found, device: Device) -> bool:
    return found.once and bool(found.used or device.owes or device.unreported)


def over(record: Provider) -> bool:
    """Whether nothing has to be remembered: nobody reserves any of it, and it is there."""
    nothing = record.ours == record.operators == 0
    return nothing and record.earlier is None and record.gone is None


def stays(known: Provider | None, used: int, now: float, patience: float) -> bool:
    """Whether the provider of a device that has vanished stays.

    :param used: how many of its devices anybody has, by Placement.
    :param now: seconds since the epoch.
    :param patience: seconds for which one that nobody has is kept.
    """
    if used or known is None or known.gone is None:
        return True
    # A clock that was put back does not prolong it for ever.
    return known.gone > now or now - known.gone < patience
