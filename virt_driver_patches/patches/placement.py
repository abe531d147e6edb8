# SPDX-License-Identifier: Apache-2.0
"""Completes Nova's report of PCI devices to Placement, and confines the failure of one of them.

Nova creates the providers of PCI devices from its PCI tracker, at every update and every
claim. A device that is missing in the tracker loses its provider. If Placement refuses
that, because one leftover allocation remains, every update and every claim of
the node fails, also for servers without any device.

No bug is known to be filed for either: Nova has no concept of a withheld device. For the
leftovers of a failed move see ``docs/source/contributor/upstream/index.rst`` (revert-allocation).
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Final, Protocol

from nova.compute import pci_placement_translator as translator

from nova_hpc.from_nova.gate import Call, Patch, wrap_method

TRANSLATE: Final = Patch(
    "nova.compute.pci_placement_translator:update_provider_tree_for_pci",
    parameters=("provider_tree", "nodename", "pci_tracker", "allocations"),
    lines={32: (707, 784), 33: (707, 784), 34: (716, 793)},
    why="A device that is withheld is none that Nova's PCI tracker knows, and its provider would "
    "be deleted, with its traits, its aggregates and what an operator has reserved; where the "
    "total changes, Nova sends no reserved, and Placement takes 0.",
    until="drivers can withhold a device and keep its provider",
)
UPDATE: Final = Patch(
    "nova.compute.resource_tracker:ResourceTracker._update_to_placement",
    parameters=("context", "compute_node", "startup"),
    lines={32: (1288, 1403), 33: (1288, 1403), 34: (1289, 1404)},
    why="Whatever Placement refuses for one provider fails the update of all, and every claim.",
    until="Nova updates each provider by itself",
)
DELETE: Final = Patch(
    "nova.scheduler.client.report:SchedulerReportClient.delete_allocation_for_instance",
    parameters=("context", "uuid", "consumer_type"),
    lines={32: (2129, 2225), 33: (2129, 2225), 34: (2174, 2270)},
    why="Called, not wrapped: what a migration that is over has left behind is removed.",
    until="Nova removes allocations of migrations whose last step has failed",
    overridden=True,
)


class PlacementGuard(Protocol):
    """Interface of the object that replaces Nova's updates of Placement on one node."""

    def translate(self, call: Call) -> bool:
        """Replace the translation of one node's devices."""

    def guard(self, tracker: Any, call: Call) -> Any:
        """Send one update to Placement in Nova's place, and return the result of Nova's method."""


_MARK: Final = "hpc_completed"

#: Nova's resource tracker -> its guard. A process may have several trackers.
_AROUND: Final[weakref.WeakKeyDictionary[Any, PlacementGuard]] = weakref.WeakKeyDictionary()


def install_placement_wraps(tracker: Any, around: PlacementGuard) -> None:
    """Let *around* replace the Placement updates of one resource tracker.

    :raises nova.exception.InvalidConfiguration: a function is not as expected.
    """
    wrap_method(tracker, UPDATE, functools.partial(around.guard, tracker))
    _AROUND[tracker] = around
    if not hasattr(translator.update_provider_tree_for_pci, _MARK):
        wrap_method(translator, TRANSLATE, _complete_translation)
        setattr(translator.update_provider_tree_for_pci, _MARK, True)


def _complete_translation(call: Call) -> Any:
    """Let the guard of this tracker replace the translation; other trackers run Nova's own."""
    pci_tracker = call.given["pci_tracker"]
    for tracker, around in list(_AROUND.items()):
        if tracker.pci_tracker is pci_tracker:
            return around.translate(call)
    return call()
