# SPDX-License-Identifier: Apache-2.0
"""Allocations of a node's PCI devices that were left behind, each with the command against it.

A server that is deleted while its host is down, a migration that broke off, a restored
database: each can leave an allocation in Placement that no server has. The device is
healthy and idle, and nobody gets it. Operators are told.

One kind is removed: that of a migration which Nova's database has, which is over, and whose
server has none of its devices here, or is deleted. Who has a right to one says
:mod:`nova_hpc.from_nova.leftovers`.
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
    """Looks twice before it names anybody: a server that is being built comes to be known.

    Both looks have to find that it has no right to what Placement said after the look
    before: an answer of Placement's that is older than the end of a move proves nothing.
    """

    def __init__(self) -> None:
        self._seen: tuple[LeftoverConsumer, ...] = ()
        self._before: frozenset[LeftoverConsumer] = frozenset()
        self._named: tuple[str, ...] = ()
        self._over: tuple[LeftoverConsumer, ...] = ()
        #: Replaced by the resource tracker, below its lock.
        self.leftovers: tuple[LeftoverConsumer, ...] = ()

    def look(self, host: str) -> tuple[str, ...]:
        """Once in each periodic update: one sentence for each that was left behind."""
        consumers = self.leftovers
        if consumers and consumers is self._seen:
            return self._named  # Placement was not asked since
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
        """Remove what migrations that are over have left. Never raises.

        Below the resource tracker's lock, after a look and before Placement is asked again.

        :param client: Nova's, of Placement.
        """
        over, self._over = self._over, ()
        for leftover in over:
            try:
                # Not by force: should anybody change it just now, the next look sees that.
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
    """Those that have no right to what is allocated to them, each with a sentence."""
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
