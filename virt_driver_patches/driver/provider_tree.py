# SPDX-License-Identifier: Apache-2.0
"""The providers of a node's PCI devices in Nova's provider tree: reading and writing them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import os_traits
from nova.compute.provider_tree import ProviderTree

from nova_hpc.topology.model import try_normalise_address
from nova_hpc.wire.reservation import ReservedProvider

#: Trait of a provider with a reservation that the node could not record. The operator's
#: reserved amount follows.
UNWRITTEN: Final = "CUSTOM_HPC_RESERVED_UNWRITTEN_"


@attrs.frozen
class TreeProvider:
    """A provider of one device, or of one adapter's functions, in the tree."""

    data: Any
    #: Empty if Placement gave no inventory.
    resource_class: str = ""
    fields: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @property
    def uuid(self) -> str:
        """UUID of the provider in Placement, as text."""
        return str(self.data.uuid)

    @property
    def total(self) -> int:
        """Number of devices in its inventory."""
        return int(self.fields.get("total", 0))

    @property
    def unwritten(self) -> int | None:
        """The operator's amount if the node could not record its own; None if it could."""
        ends = [
            trait.removeprefix(UNWRITTEN)
            for trait in self.data.traits
            if trait.startswith(UNWRITTEN)
        ]
        return next((int(end) for end in ends if end.isdecimal()), None)

    @property
    def once(self) -> bool:
        """Whether Nova reserves it by its own rule for one-time-use devices."""
        return os_traits.HW_PCI_ONE_TIME_USE in self.data.traits


def pci_providers_of(tree: ProviderTree, nodename: str) -> dict[str, TreeProvider]:
    """Map PCI address to resource provider, for this node's devices in Nova's provider tree.

    A provider with more than one resource class is left out.
    """
    known_providers = {}
    for uuid in tree.get_provider_uuids_in_tree(nodename):
        data = tree.data(uuid)
        node, _, rest = data.name.rpartition("_")
        address = try_normalise_address(rest)
        managed = os_traits.COMPUTE_MANAGED_PCI_DEVICE in data.traits
        if address and node == nodename and managed and len(data.inventory) <= 1:
            known_providers[address] = TreeProvider(data, *next(iter(data.inventory.items()), ()))
    return known_providers


def write_tree_provider(
    tree: ProviderTree,
    former: TreeProvider | None,
    new: TreeProvider | None,
    record: ReservedProvider,
    reserved: int,
    unwritten: int | None = None,
) -> None:
    """Write a provider into *tree* with its new amounts; see :attr:`TreeProvider.unwritten`."""
    current = new or former
    assert current is not None
    if new is None:
        put_provider_back(tree, current.data)
    kept = (
        former.fields
        if former is not None and former.resource_class == current.resource_class
        else {}
    )
    inventory = {
        **kept,
        **current.fields,
        "total": record.total,
        "max_unit": record.total,
        "reserved": reserved,
    }
    tree.update_inventory(current.uuid, {current.resource_class: inventory})
    kept_traits = {trait for trait in current.data.traits if not trait.startswith(UNWRITTEN)}
    more = set() if unwritten is None else {f"{UNWRITTEN}{unwritten}"}
    tree.update_traits(current.uuid, kept_traits | more)


def put_provider_back(tree: ProviderTree, data: Any) -> None:
    """Restore a provider that Nova has removed from *tree*."""
    tree.new_child(data.name, data.parent_uuid, uuid=data.uuid, generation=data.generation)
    tree.update_inventory(data.uuid, data.inventory)
    tree.update_traits(data.uuid, data.traits)
    tree.update_aggregates(data.uuid, data.aggregates)
