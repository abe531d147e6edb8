# SPDX-License-Identifier: Apache-2.0
"""A node's resource providers in Placement: reservations, refusals, leftover allocations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs
from nova.compute.provider_tree import ProviderTree
from oslo_log import log as logging

from nova_hpc.from_nova import leftovers
from nova_hpc.from_nova.gate import Call
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.topology.model import Node
from virt_driver_patches.driver.generations import ProviderGenerations
from virt_driver_patches.driver.leftover_allocations import LeftoverAllocations
from virt_driver_patches.driver.provider_isolation import ProviderIsolator
from virt_driver_patches.driver.provider_reserver import ProviderReserver, WithheldLook
from virt_driver_patches.driver.provider_tree import pci_providers_of

LOG = logging.getLogger(__name__)


@attrs.frozen
class NodeProviders:
    """Providers of one node. All but :meth:`look` run under the resource tracker's lock."""

    reserver: ProviderReserver
    isolator: ProviderIsolator = attrs.field(factory=ProviderIsolator)
    leftover_allocations: LeftoverAllocations = attrs.field(factory=LeftoverAllocations)
    generations: ProviderGenerations = attrs.field(factory=ProviderGenerations)

    @classmethod
    def of(cls, ledger: LedgerFile, keep_vanished: float, cleans: bool) -> NodeProviders:
        """Create the providers, with their reservations in *ledger*.

        :param keep_vanished: seconds that the provider of a vanished device stays.
        :param cleans: whether devices are cleaned between servers.
        """
        return cls(ProviderReserver(ledger, keep_vanished, cleans))

    # -- the periodic update ------------------------------------------------------

    def look(
        self,
        node: Node,
        entries: Mapping[str, Mapping[str, str]],
        reported: Iterable[Mapping[str, Any]],
        withheld: Collection[str],
        host: str,
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Store the withheld devices; see :meth:`WithheldLook.of`.

        :returns: address -> why more devices are not given; and notes.
        """
        shown = self.reserver.look(WithheldLook.of(node, entries, reported, withheld))
        for address, reason in self.isolator.refused.items():
            shown.setdefault(address, f"Placement refuses its resource provider: {reason}")
        notes = self.leftover_allocations.look(host)
        if self.isolator.unhealed:
            servers = ", ".join(self.isolator.unhealed)
            notes += (f"Placement refuses to set right the allocations of {servers}",)
        return shown, notes

    # -- Nova updates Placement -----------------------------------------------------

    def guard(self, tracker: Any, call: Call) -> Any:
        """Run Nova's update of Placement, so that a refused provider does not stop the others.

        It wraps ``ResourceTracker._update_to_placement``, and first removes leftover allocations.
        """
        self.leftover_allocations.finish(tracker.reportclient, call.given["context"])
        self.generations.ask(tracker.reportclient, call.given["context"])
        return self.isolator.guard(tracker, call, call.given["context"], call.given["compute_node"])

    def translate(self, call: Call) -> bool:
        """Run Nova's translation of PCI devices into providers; return whether it changed the tree.

        It wraps ``update_provider_tree_for_pci``.
        """
        given = call.given
        tree, nodename, allocations = (
            given["provider_tree"],
            given["nodename"],
            given["allocations"],
        )
        devices = list(given["pci_tracker"].pci_devs)

        def whole() -> bool:
            return self._translate(call, tree, nodename, allocations, devices)

        return self.isolator.translate(tree, nodename, allocations, whole)

    def _translate(
        self,
        call: Callable[[], Any],
        tree: ProviderTree,
        nodename: str,
        allocations: Mapping[str, Any],
        devices: Iterable[Any],
    ) -> bool:
        """Run Nova's translation, then complete it for this node.

        The reserver changes the tree first, because :meth:`ProviderGenerations.renew` compares
        the final tree with the state before Nova's step.
        """
        before = pci_providers_of(tree, nodename)
        healed = bool(call())
        try:
            self.leftover_allocations.leftovers = leftovers.find_leftover_consumers(
                allocations,
                {provider.uuid: address for address, provider in before.items()},
                devices,
            )
            self.reserver.complete(tree, nodename, before, devices, allocations)
            self.generations.renew(before, pci_providers_of(tree, nodename))
        except Exception:
            # The update of Placement continues with Nova's providers.
            LOG.exception("The resource providers of withheld devices could not be completed")
        return healed
