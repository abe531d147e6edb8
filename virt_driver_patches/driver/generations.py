# SPDX-License-Identifier: Apache-2.0
"""Reads the generation of a provider from Placement again before its inventory changes.

Nova's client caches the generation of each provider for minutes. Any claim, move or deletion of
an allocation of the provider raises it. Placement refuses an inventory with an old generation
with 409. The client then logs an ERROR and clears its cache, and Nova's update of the node
starts over (``set_inventory_for_provider`` of nova/scheduler/client/report.py and
``_update_to_placement`` of nova/compute/resource_tracker.py, releases 32 to 34). With stock Nova
that is rare, because the inventory of a device's provider hardly ever changes. Here it changes when
a device is reserved and when the reservation is lifted, both right after the end of a move has
changed its allocation: without this module each confirmed move logged two false errors.

A change of the inventory by another client still causes that refusal: then the inventory to be
sent was computed from outdated data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from virt_driver_patches.driver.provider_tree import TreeProvider

LOG = logging.getLogger(__name__)


class ProviderGenerations:
    """Renews the generations of providers that Nova's Placement client has cached.

    It is used under the resource tracker's lock.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._context: Any = None

    def ask(self, client: Any, context: Any) -> None:
        """Remember the client and context of the update that begins.

        :param client: Nova's client of Placement.
        """
        self._client, self._context = client, context

    def renew(self, before: Mapping[str, TreeProvider], after: Mapping[str, TreeProvider]) -> None:
        """Read the providers whose inventory will change, before they are sent. Never raises.

        :param before: address -> provider in the cache of Nova's client.
        :param after: address -> provider that will be sent.
        """
        if self._client is None:
            return
        for address, former in before.items():
            new = after.get(address)
            if (
                new is None
                or new.uuid != former.uuid
                or _totals_of_provider(new) == _totals_of_provider(former)
            ):
                continue
            try:
                self._renew(former)
            except Exception as error:
                # Nova's own recovery after the refusal still works.
                LOG.debug("The generation of provider %s is not known: %s", former.uuid, error)

    def _renew(self, former: TreeProvider) -> None:
        body = self._client._get_inventory(self._context, former.uuid)
        if not body:
            return
        inventories = body["inventories"]
        theirs = {
            name: (fields["total"], fields["reserved"]) for name, fields in inventories.items()
        }
        if theirs == _totals_of_provider(former):
            self._client._provider_tree.update_inventory(
                former.uuid, inventories, generation=body["resource_provider_generation"]
            )


def _totals_of_provider(provider: TreeProvider) -> dict[str, tuple[int, int]]:
    if not provider.resource_class:
        return {}
    return {provider.resource_class: (provider.total, int(provider.fields.get("reserved", 0)))}
