# SPDX-License-Identifier: Apache-2.0
"""Devices that Nova gives to nobody and somebody has all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

import attrs

from nova_hpc.tenancy.hygiene.records import Records
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import Held, Owners
from nova_hpc.topology.model import address_key
from nova_hpc.wire.ledger import Ledger

#: Locks that are held at once: each is an open file.
_MOST_AT_ONCE: Final = 128


@attrs.frozen
class Disagreement:
    """What a look from time to time has found."""

    #: Address -> who has a device, or why nobody can tell.
    held: dict[str, Held] = attrs.field(factory=dict)
    #: Address -> why it was not asked who has a device.
    waiting: dict[str, str] = attrs.field(factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Address -> why a device must be left as it is, and not be offered."""
        return self.waiting | {each: one.text for each, one in self.held.items()}


def find(
    records: Records,
    before: Ledger,
    offered: Collection[str],
    used: frozenset[str],
    owners: Owners,
) -> Disagreement:
    """Find the devices of which Nova's records are not the whole truth, and mark them.

    A device whose user is known gets that mark, or keeps the one that it has: it goes
    when it was cleaned, which is not before its user has gone.

    :param before: the ledger, read before Nova was asked.
    :param offered: addresses of what the node offers.
    :param used: devices that servers have by Nova's records.
    :raises LedgerError: nothing can be remembered.
    """
    pending = sorted((frozenset(offered) | before.marked.keys()) - used, key=address_key)
    found = Disagreement()
    if not pending:
        return found
    # Libvirt is asked once for all.
    asked = owners.with_domains(owners.domains())
    for start in range(0, len(pending), _MOST_AT_ONCE):
        with contextlib.ExitStack() as stack:
            mine = []
            for each in pending[start : start + _MOST_AT_ONCE]:
                try:
                    stack.enter_context(records.ledger.locked(each, 0))
                    mine.append(each)
                except LedgerError:
                    found.waiting[each] = "it is being checked"
            # A device that was given meanwhile has another mark: its guest may be
            # starting, and nothing may get into its way.
            now = records.known()
            mine = [each for each in mine if now.device(each).server == before.device(each).server]
            found.held.update(asked.held(mine))
    if found.held:
        # What was given, or has ended, while libvirt was asked is no disagreement.
        for each in owners.records() & found.held.keys():
            del found.held[each]
        _mark(records, found)
    return found


def _mark(records: Records, found: Disagreement) -> None:
    marks = {each: one.server for each, one in found.held.items() if one.server is not None}
    records.change(
        lambda now: {
            each: attrs.evolve(now.device(each).doubted(), server=server)
            for each, server in marks.items()
            if now.device(each).server is None
        }
    )
