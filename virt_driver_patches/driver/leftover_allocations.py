# SPDX-License-Identifier: Apache-2.0
"""Leftover allocations of a node's PCI devices, each with the command that removes it.

A server that is deleted while its host is down, a migration that broke off, a restored
database: each can leave an allocation in Placement without a server. The device is
healthy and idle, but no server can get it. Operators get a report.

One kind is removed automatically: the allocation of a finished migration in Nova's database,
whose server has none of its devices here, or is deleted.
:mod:`nova_hpc.from_nova.leftovers` contains the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from nova import context as nova_context
from oslo_log import log as logging

from nova_hpc.from_nova import leftovers
from nova_hpc.from_nova.leftovers import Cure, LeftoverConsumer

LOG = logging.getLogger(__name__)


class LeftoverAllocations:
    """Reports an allocation after two checks, because a server being built appears only later.

    Both checks must find that the consumer has no right to the allocation that Placement reported
    after the previous check: an older answer of Placement may predate the end of a move.
    """

    def __init__(self) -> None:
        self._seen: tuple[LeftoverConsumer, ...] = ()
        self._before: frozenset[LeftoverConsumer] = frozenset()
        self._named: tuple[str, ...] = ()
        self._over: tuple[LeftoverConsumer, ...] = ()
        #: The resource tracker replaces it, under its lock.
        self.leftovers: tuple[LeftoverConsumer, ...] = ()

    def look(self, host: str) -> tuple[str, ...]:
        """Return one sentence per leftover allocation; called once in each periodic update."""
        consumers = self.leftovers
        if consumers and consumers is self._seen:
            return self._named  # no new answer of Placement
        over = dict(_find_leftover_allocations(consumers, host))
        certain = {leftover: cure for leftover, cure in over.items() if leftover in self._before}
        texts = tuple(cure.text for cure in certain.values())
        for text in texts:
            if text not in self._named:
                LOG.warning("%s", text)
        self._over = tuple(leftover for leftover, cure in certain.items() if cure.removed)
        self._seen, self._before, self._named = consumers, frozenset(over), texts
        return texts

    def finish(self, client: Any, context: Any) -> None:
        """Remove the allocations of finished migrations. Never raises.

        Called under the resource tracker's lock, after a check and before the next query.

        :param client: Nova's client of Placement.
        """
        over, self._over = self._over, ()
        for leftover in over:
            try:
                # Without force: the next check detects a concurrent change.
                client.delete_allocation_for_instance(
                    context, leftover.consumer, consumer_type="migration"
                )
            except Exception as error:
                LOG.warning("The allocation of migration %s stays: %s", leftover.consumer, error)
            else:
                LOG.warning(
                    "%s: the allocation that migration %s had left behind is removed",
                    ", ".join(leftover.addresses),
                    leftover.consumer,
                )


def _find_leftover_allocations(
    consumers: Iterable[LeftoverConsumer], host: str
) -> Iterator[tuple[LeftoverConsumer, Cure]]:
    """Yield the consumers without a right to their allocation, each with a sentence."""
    context = nova_context.get_admin_context()
    for leftover in sorted(consumers, key=lambda entry: entry.addresses):
        try:
            cure = leftovers.find_cure(context, leftover, host)
        except Exception as error:
            LOG.debug("Nova does not say whether %s still lives: %s", leftover.consumer, error)
            continue
        if cure is not None:
            where = ", ".join(leftover.addresses)
            text = f"{where}: allocation left behind by {leftover.consumer}: {cure.text}"
            yield leftover, attrs.evolve(cure, text=text)
