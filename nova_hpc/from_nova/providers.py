# SPDX-License-Identifier: Apache-2.0
"""Queries Placement for the devices that are free at this moment.

The pools of a host state are the compute node's last report. A server that is being built has
its devices in Placement already, but not in the pools. The choice is deterministic, so a
choice from only the pools would collide with it again and again. Placement's data is
decisive, and contains the resource class of a device. A scheduler has that answer already
(:mod:`nova_hpc.from_nova.placement_answer`). This module is for callers without one:
``explain`` and snapshots, which cover the whole cloud.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol
from urllib import parse

import attrs
from nova.scheduler.client import report
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: The first microversion with ``required`` in a query of providers.
_MICROVERSION: Final = "1.18"

#: The first one whose candidates contain all resource classes of whole trees, and ``in_tree``.
_WITH_SUMMARIES: Final = "1.31"

#: Free functions of one adapter are counted up to this number.
MOST: Final = 8


@attrs.frozen
class DeviceKind:
    """A kind of device in Placement: a resource class and required traits."""

    resource_class: str
    traits: frozenset[str] = frozenset()


class Amounts(Protocol):
    """Interface to the free devices of one kind, by provider."""

    def has(self, provider: str | None) -> bool:
        """Whether *provider* has a free device of this kind."""

    def of(self, provider: str | None, counted: int) -> int:
        """Count the free devices of *provider*, at most *counted*, the number in Nova's pools."""


@attrs.frozen
class Free:
    """The free devices of one kind, by provider, from queries to Placement."""

    #: provider -> free devices, up to the largest queried number.
    amounts: Mapping[str, int]
    asked: int

    def has(self, provider: str | None) -> bool:
        """Whether *provider* has a free device of this kind."""
        return provider in self.amounts

    def of(self, provider: str | None, counted: int) -> int:
        """Count the free devices of *provider*, at most *counted*, the number in Nova's pools."""
        amount = self.amounts.get(provider or "", 0)
        return counted if amount >= self.asked else min(counted, amount)


def free_providers(kind: DeviceKind, most: int) -> Free | None:
    """Query Placement for all providers with free devices of *kind*.

    :param most: maximum number of devices of one provider that the request can use.
    :returns: None if Placement could not be queried; the pools are then used.
    """
    most = max(1, min(most, MOST))
    amounts: dict[str, int] = {}
    for amount in range(1, most + 1):
        uuids = _ask_uuids(kind, amount)
        if uuids is None:
            return None
        if not uuids:
            # No provider has so many, so the smaller amounts are exact.
            break
        amounts.update(dict.fromkeys(uuids, amount))
    return Free(amounts=amounts, asked=most)


def _ask_uuids(kind: DeviceKind, amount: int) -> list[str] | None:
    providers = ask_providers({kind.resource_class: amount}, kind.traits)
    return None if providers is None else [str(provider["uuid"]) for provider in providers]


def ask_providers(
    resources: Mapping[str, int], traits: Iterable[str], provider: str | None = None
) -> list[Mapping[str, Any]] | None:
    """Query Placement for the providers with these free resources and traits.

    :param provider: the UUID of the only provider that is queried.

    :returns: None if Placement could not be queried; the log has the reason.
    """
    amounts = ",".join(f"{name}:{amount}" for name, amount in sorted(resources.items()))
    what = ", ".join(sorted(resources))
    query = {"resources": amounts}
    if traits:
        query["required"] = ",".join(sorted(traits))
    if provider is not None:
        query["uuid"] = provider
    url = "/resource_providers?" + parse.urlencode(query, safe=":,")
    try:
        client = report.report_client_singleton()
        answer = client.get(url, version=_MICROVERSION)
        if answer.status_code == 400 and not _are_all_known(client, resources, traits):
            # No node reports it (yet), so no provider has it, which is normal.
            return []
        if answer.status_code != 200:
            LOG.warning(
                "Placement answered %s to the question which %s are free; "
                "using the hosts' own pools",
                answer.status_code,
                what,
            )
            return None
        providers: list[Mapping[str, Any]] = answer.json()["resource_providers"]
        return providers
    except Exception as error:
        # The following claim reports any fault of Placement.
        LOG.warning(
            "Placement did not report which %s are free (%s); using the hosts' own pools",
            what,
            error,
        )
        return None


def _are_all_known(client: Any, resources: Iterable[str], traits: Iterable[str]) -> bool:
    """Whether Placement has these resource classes and traits in its lists.

    It answers 400 to a query with an unlisted name, like to an invalid query
    (placement/util.py, normalize_resources_qs_param; handlers/resource_provider.py).
    """
    paths = [f"/resource_classes/{parse.quote(name)}" for name in resources]
    paths += [f"/traits/{parse.quote(name)}" for name in traits]
    return all(client.get(path, version=_MICROVERSION).status_code != 404 for path in paths)


def ask_about_host(root: str, kind: DeviceKind) -> Mapping[str, Mapping[str, Any]] | None:
    """Query Placement for inventories and usage of one host, in the form of provider summaries.

    :param root: UUID of the compute node.
    :param kind: of devices; a host without free ones is not described.
    :returns: None if Placement could not be queried.
    """
    query = {"in_tree": root, "resources": f"{kind.resource_class}:1", "limit": "1"}
    url = "/allocation_candidates?" + parse.urlencode(query, safe=":")
    try:
        answer = report.report_client_singleton().get(url, version=_WITH_SUMMARIES)
        if answer.status_code != 200:
            LOG.warning(
                "Placement answered %s to the request for the free devices of %s",
                answer.status_code,
                root,
            )
            return None
        summaries: Mapping[str, Mapping[str, Any]] = answer.json()["provider_summaries"]
    except Exception as error:
        LOG.warning("Placement did not report the free devices of %s (%s)", root, error)
        return None
    return summaries


def has_free_resources(provider: str, resources: Mapping[str, int]) -> bool | None:
    """Query Placement whether *provider* has these resources free now.

    :param provider: its UUID.
    :returns: None if Placement could not be queried.
    """
    providers = ask_providers(resources, (), provider)
    return None if providers is None else bool(providers)


def resource_classes_of(provider: str) -> frozenset[str]:
    """Return the resource classes of a provider's inventory; empty if Placement does not answer.

    :param provider: its UUID.
    """
    url = f"/resource_providers/{provider}/inventories"
    try:
        answer = report.report_client_singleton().get(url, version=_MICROVERSION)
        inventories = answer.json()["inventories"] if answer.status_code == 200 else {}
    except Exception as error:
        LOG.warning("Placement did not report provider %s (%s)", provider, error)
        return frozenset()
    return frozenset(inventories)
