# SPDX-License-Identifier: Apache-2.0
"""The amount of a device's resource provider that is reserved in Placement, and for whom.

Placement has one number. What this node withholds and what an operator reserves
share it: the greater of the two is written, so that an operator's word is a floor
and never adds up with what the node found by itself. Who has reserved what is
remembered (:class:`nova_hpc.wire.reservation.ReservedProvider`), and written down *before*
Placement is told: whatever Placement says that was not written down is an operator's.

Pure: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.wire.ledger import Ledger, LedgerDevice
from nova_hpc.wire.reservation import ReservedProvider

#: Why a device is not given that this node would give.
BY_OPERATOR: Final = "reserved in Placement by an operator"
#: What is said before the commands.
BY_NOBODY_KNOWN: Final = (
    "Reserved in Placement, and this node's ledger does not know by whom. It is taken for "
    "an operator's and stays. Where the ledger was lost, or the node installed anew under "
    "its name, it may be the node's own; these commands lift it:"
)


@attrs.frozen
class PlacedProvider:
    """A provider as Placement has it."""

    uuid: str
    resource_class: str
    total: int
    reserved: int = 0
    #: Devices that anybody has by Placement.
    used: int = 0
    #: Nova reserves it itself, when a server gets it (``one_time_use``).
    once: bool = False


def decide_reservation(
    record: ReservedProvider | None, provider: PlacedProvider, withheld: int, total: int
) -> ReservedProvider:
    """Decide how much of a provider is reserved from now on.

    :param record: what is remembered of it.
    :param provider: as Placement has it now.
    :param withheld: how many of its devices this node withholds.
    :param total: its total from now on.
    :returns: what is to be remembered; its ``reserved`` is what to tell Placement.
    """
    theirs = operators_share_of(record, provider)
    ours = min(withheld, total)
    gone = None if record is None else record.gone
    decided = ReservedProvider(
        provider.uuid, provider.resource_class, total, ours, theirs, gone=gone
    )
    # Until the next look it is unknown whether Placement has heard of the change.
    return (
        decided
        if decided.reserved == provider.reserved
        else attrs.evolve(decided, earlier=provider.reserved)
    )


def operators_share_of(record: ReservedProvider | None, provider: PlacedProvider) -> int:
    """The part of what is reserved that is an operator's (or Nova's, of one-time-use devices)."""
    if record is None or record.uuid != provider.uuid:
        return provider.reserved
    if provider.reserved in (record.reserved, record.earlier):
        return record.operators
    if provider.reserved == 0 and provider.total != record.total:
        # Nova sends no ``reserved`` when it changes a total, and Placement takes 0.
        return record.operators
    return provider.reserved


def list_lifting_commands(
    records: Mapping[str, ReservedProvider],
    decided: Mapping[str, ReservedProvider],
    providers: Mapping[str, PlacedProvider],
    ledger: Ledger,
) -> list[str]:
    """The commands that lift reservations which are not in the ledger, one a provider.

    Not what Nova reserves itself of a one-time-use device, which it gives up when that is
    clean: it is reserved as long as a server has it, or it waits to be reported.

    :param records: what was remembered, by address, and *decided* what is from now on.
    """
    return [
        f"{address}: openstack resource provider inventory set --amend --resource "
        f"{record.resource_class}:reserved=0 {record.uuid}"
        for address, record in decided.items()
        if record.operators
        and address not in records
        and not _is_reserved_by_nova(providers[address], ledger.device(address))
    ]


def _is_reserved_by_nova(provider: PlacedProvider, device: LedgerDevice) -> bool:
    return provider.once and bool(provider.used or device.owes or device.unreported)


def is_reservation_over(record: ReservedProvider) -> bool:
    """Whether nothing has to be remembered: nobody reserves any of it, and it is there."""
    nothing = record.ours == record.operators == 0
    return nothing and record.earlier is None and record.gone is None


def does_provider_stay(
    record: ReservedProvider | None, used: int, current_time: float, patience: float
) -> bool:
    """Whether the provider of a device that has vanished stays.

    :param used: how many of its devices anybody has, by Placement.
    :param current_time: seconds since the epoch.
    :param patience: seconds for which one that nobody has is kept.
    """
    if used or record is None or record.gone is None:
        return True
    # A clock that was put back does not prolong it for ever.
    return record.gone > current_time or current_time - record.gone < patience
