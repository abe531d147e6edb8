# SPDX-License-Identifier: Apache-2.0
"""The reserved amount of a device's resource provider in Placement, and its origin.

Placement stores one number. This node's withheld devices and an operator's reservation
share it: the larger of the two is written. So an operator's number is a minimum,
and is never added to the node's own. The ledger stores the origin
(:class:`nova_hpc.wire.reservation.ReservedProvider`), and is written *before*
Placement: any amount in Placement without a record counts as an operator's.

Pure: numbers in, numbers out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.wire.ledger import Ledger, LedgerDevice
from nova_hpc.wire.reservation import ReservedProvider

#: Why a device is not given although this node would offer it.
BY_OPERATOR: Final = "reserved in Placement by an operator"
#: Text before the commands.
BY_NOBODY_KNOWN: Final = (
    "Reserved in Placement, and this node's ledger does not know by whom. It is taken for "
    "an operator's and stays. Where the ledger was lost, or the node installed anew under "
    "its name, it may be the node's own; these commands lift it:"
)


@attrs.frozen
class PlacedProvider:
    """The state of a device's resource provider in Placement: total, reserved and used amounts."""

    uuid: str
    resource_class: str
    total: int
    reserved: int = 0
    #: Number of its devices in allocations.
    used: int = 0
    #: Whether Nova itself reserves it, when a server gets it (``one_time_use``).
    once: bool = False


def decide_reservation(
    record: ReservedProvider | None, provider: PlacedProvider, withheld: int, total: int
) -> ReservedProvider:
    """Decide the reserved amount of a provider from now on.

    An example with a total of 4: an operator has reserved 1 and the node withholds 3, so 3 are
    reserved. When the node withholds none, 1 stays reserved for the operator. If Placement then
    shows 2, an operator has changed the number, and 2 are the operator's.

    :param record: its present record in the ledger.
    :param provider: its present state in Placement.
    :param withheld: number of its devices that this node withholds.
    :param total: its total from now on.
    :returns: the new record; its ``reserved`` is the amount for Placement.
    """
    theirs = operators_share_of(record, provider)
    ours = min(withheld, total)
    gone = None if record is None else record.gone
    decided = ReservedProvider(
        provider.uuid, provider.resource_class, total, ours, theirs, gone=gone
    )
    # Until the next update it is unknown whether Placement has received the change.
    return (
        decided
        if decided.reserved == provider.reserved
        else attrs.evolve(decided, earlier=provider.reserved)
    )


def operators_share_of(record: ReservedProvider | None, provider: PlacedProvider) -> int:
    """Return an operator's part of the reserved amount (or Nova's, for one-time-use devices)."""
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
    """Return the commands that lift reservations without a record, one per provider.

    Reservations that Nova makes for one-time-use devices are excluded: such a device is
    reserved while a server has it, or while it waits to be reported as clean.

    :param records: the former records, by address.
    :param decided: the records from now on.
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
    """Whether the record can be deleted: no part is reserved, and the device is present."""
    nothing = record.ours == record.operators == 0
    return nothing and record.earlier is None and record.gone is None


def does_provider_stay(
    record: ReservedProvider | None, used: int, current_time: float, patience: float
) -> bool:
    """Whether the provider of a vanished device stays.

    :param used: number of its devices in allocations.
    :param current_time: seconds since the epoch.
    :param patience: seconds that an unused provider is kept.
    """
    if used or record is None or record.gone is None:
        return True
    # A clock that was set back does not prolong it forever.
    return record.gone > current_time or current_time - record.gone < patience
