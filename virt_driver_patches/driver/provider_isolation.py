# SPDX-License-Identifier: Apache-2.0
"""A refusal of Placement for one device's provider affects only that device.

Nova sends all providers of a node in one pass and stops at the first that Placement refuses:
then neither the periodic update nor any claim of the node succeeds. In that case this module
tries the providers of PCI devices one by one. A refused provider stays as it is in
Placement, and is reported; all others are updated. Nova also heals allocations of servers
(its reshape). If Placement refuses that, it is left out: Nova tries again at the next update.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs
from nova import exception
from nova.compute.provider_tree import ProviderTree
from oslo_log import log as logging

from virt_driver_patches.driver.provider_tree import TreeProvider, pci_providers_of

LOG = logging.getLogger(__name__)

#: Nova's exceptions if Placement refuses a part of an update.
TROUBLE: Final = (
    exception.InventoryInUse,
    exception.PlacementPciException,
    exception.PlacementReshapeConflict,
    exception.ReshapeFailed,
    exception.ResourceProviderInUse,
    exception.ResourceProviderSyncFailed,
    exception.ResourceProviderUpdateConflict,
    exception.ResourceProviderUpdateFailed,
)


@attrs.frozen
class _UpdateTry:
    """One update of the node's providers in Placement, sent one part at a time."""

    client: Any
    context: Any
    node: Any

    def fresh(self) -> ProviderTree:
        """Read this node's providers from Placement, and return them as Nova's ``ProviderTree``."""
        # Nova 34 has a method for one node's part of a larger tree.
        get = getattr(self.client, "get_provider_subtree_and_ensure_root", None)
        get = get or self.client.get_provider_tree_and_ensure_root
        tree: ProviderTree = get(self.context, self.node.uuid, name=self.node.hypervisor_hostname)
        return tree

    def send(self, tree: ProviderTree) -> str | None:
        """Send a tree; return the reason if Placement refuses it."""
        try:
            self.client.update_from_provider_tree(self.context, tree)
        except TROUBLE as error:
            return str(error)
        return None


class ProviderIsolator:
    """Tries the providers of one node one by one; used under the resource tracker's lock."""

    def __init__(self) -> None:
        self._try: _UpdateTry | None = None
        #: Address -> why Placement refuses its provider.
        self.refused: Mapping[str, str] = {}
        #: Servers whose allocations Placement refused to correct.
        self.unhealed: tuple[str, ...] = ()

    def guard(self, tracker: Any, call: Callable[[], Any], context: Any, node: Any) -> Any:
        """Run Nova's update of Placement; if it fails, run it again, part by part."""
        try:
            result = call()
        except TROUBLE as error:
            LOG.warning("Placement refuses an update (%s); each device is tried by itself", error)
            try:
                with self._trying(_UpdateTry(tracker.reportclient, context, node)):
                    result = call()
            except TROUBLE:
                raise error from None
            return result
        self.refused, self.unhealed = {}, ()
        return result

    @contextlib.contextmanager
    def _trying(self, attempt: _UpdateTry) -> Iterator[None]:
        self._try = attempt
        try:
            yield
        finally:
            self._try = None

    def translate(
        self,
        tree: ProviderTree,
        nodename: str,
        allocations: dict[str, Any],
        call: Callable[[], bool],
    ) -> bool:
        """Wrap the whole step that builds *tree*; see the module.

        Each provider that differs from Placement's state is first sent alone, in a fresh tree. A
        refused one gets Placement's state again in *tree*, so Nova's own sending succeeds.

        :param call: builds it, and returns whether it also changed *allocations*.
        """
        attempt = self._try
        if attempt is None:
            return call()
        before = copy.deepcopy(allocations)
        healed = call()
        self.unhealed = tuple(
            sorted(
                consumer
                for consumer in allocations
                if allocations[consumer] != before.get(consumer)
            )
        )
        for consumer in self.unhealed:
            LOG.error("Placement refuses to set the allocations of server %s right", consumer)
        base = attempt.fresh()
        wanted, there = pci_providers_of(tree, nodename), pci_providers_of(base, nodename)
        refused = {}
        for address in sorted({*wanted, *there}):
            want, have = wanted.get(address), there.get(address)
            if not _do_providers_differ(want, have):
                continue
            trial = attempt.fresh()
            _copy_provider(tree, trial, want, have)
            reason = attempt.send(trial)
            if reason is not None:
                LOG.error("Placement refuses the provider of PCI device %s: %s", address, reason)
                refused[address] = reason
                _copy_provider(base, tree, have, want)
        self.refused = refused
        attempt.fresh()  # Nova's reference for comparisons, which a failure has cleared
        return healed and not self.unhealed


def _do_providers_differ(wanted: TreeProvider | None, current: TreeProvider | None) -> bool:
    if wanted is None or current is None:
        return True
    return bool(
        wanted.uuid != current.uuid
        or wanted.data.inventory != current.data.inventory
        or wanted.data.traits != current.data.traits
        or wanted.data.aggregates != current.data.aggregates
    )


def _copy_provider(
    source: ProviderTree,
    target: ProviderTree,
    wanted: TreeProvider | None,
    there: TreeProvider | None,
) -> None:
    """Make one provider in *target* equal to its copy in *source*.

    :param wanted: the provider in *source*; None if it is missing there.
    :param there: the provider in *target*; None if it is missing there.
    """
    if there is not None and (wanted is None or wanted.uuid != there.uuid):
        target.remove(there.uuid)
    if wanted is None:
        return
    data = source.data(wanted.uuid)
    if not target.exists(data.uuid):
        parent = source.data(data.parent_uuid).name
        target.new_child(data.name, parent, uuid=data.uuid, generation=data.generation)
    target.update_inventory(data.uuid, data.inventory)
    target.update_traits(data.uuid, data.traits)
    target.update_aggregates(data.uuid, data.aggregates)
