# SPDX-License-Identifier: Apache-2.0
"""The generation of a provider whose inventory is about to change, asked of Placement afresh.

Nova's client remembers the generation of each provider for minutes, and whoever claims, moves
or deletes an allocation of the provider raises it. An inventory that is sent with an old one is
refused with 409; the client logs an ERROR, forgets what it knew, and Nova's update of the node
begins anew (``set_inventory_for_provider`` of nova/scheduler/client/report.py and
``_update_to_placement`` of nova/compute/resource_tracker.py, releases 32 to 34). With stock Nova
that is rare: the inventory of a device's provider hardly ever changes. Here it changes when a
device is reserved and when that is lifted again, both right after its allocation was changed by
the end of a move: each confirmed move wrote two errors that were none.

What somebody has changed in the inventory meanwhile is left to that refusal: then what is about
to be sent was made from something that is no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from virt_driver_patches.driver.provider_tree import TreeProvider

LOG = logging.getLogger(__name__)


class ProviderGenerations:
    """Keeps the client's generations young; below the resource tracker's lock."""

    def __init__(self) -> None:
        self._client: Any = None
        self._context: Any = None

    def ask(self, client: Any, context: Any) -> None:
        """Remember whom to ask in the update that begins.

        :param client: Nova's, of Placement.
        """
        self._client, self._context = client, context

    def renew(self, before: Mapping[str, TreeProvider], after: Mapping[str, TreeProvider]) -> None:
        """Before providers are sent: ask for those whose inventory will change. Never raises.

        :param before: address -> provider as Nova's client knows it.
        :param after: the same as it is to be.
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
                # Nova's own way, by the refusal, is there as ever.
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
