# SPDX-License-Identifier: Apache-2.0
"""The provider trees and the fabric map of Blazar's hosts, from Placement and Nova."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
from oslo_log import log as logging

from nova_hpc.fabric.aggregates import read_aggregate_place
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc_blazar.lease_room import LeasableInventory, LeasableProvider

LOG = logging.getLogger(__name__)


#: The first with forbidden traits; Blazar's own clients use 1.29.
_MICROVERSION: Final = "1.22"


class ProviderTrees:
    """Reads the trees of hosts from Placement, the inventory of an unchanged provider once."""

    def __init__(self) -> None:
        #: UUID of a provider -> its generation, and its inventories then.
        self._read: dict[str, tuple[int, Mapping[str, LeasableInventory]]] = {}

    def read(
        self, client: Any, hosts: Iterable[str], traits: Iterable[frozenset[str]]
    ) -> dict[str, tuple[LeasableProvider, ...]]:
        """Read the trees: name of a host's root provider -> providers.

        :param client: a client of Placement that keeps its token. Blazar's own methods get a new
            one for each request.
        :param traits: sets of traits that aliases require; others are left out.
        """
        everything = list_providers(client)
        wanted = set(hosts)
        roots = {
            record["uuid"]: record["name"]
            for record in everything
            if record["parent_provider_uuid"] is None and record["name"] in wanted
        }
        traits_of: dict[str, set[str]] = defaultdict(set)
        for together in traits:
            for record in list_providers(client, together) if together else ():
                traits_of[record["uuid"]] |= together
        trees: dict[str, list[LeasableProvider]] = {name: [] for name in roots.values()}
        for record in everything:
            provider, root = record["uuid"], record["root_provider_uuid"]
            if root in roots:
                inventories = self._read_inventories(client, provider, record["generation"])
                trees[roots[root]].append(
                    LeasableProvider(provider, inventories, frozenset(traits_of[provider]))
                )
        return {name: tuple(tree) for name, tree in trees.items()}

    def _read_inventories(
        self, client: Any, provider: str, generation: int
    ) -> Mapping[str, LeasableInventory]:
        reading = self._read.get(provider)
        if reading is None or reading[0] != generation:
            answer = _get(client, f"/resource_providers/{provider}/inventories")
            reading = self._read[provider] = (
                answer["resource_provider_generation"],
                {
                    name: LeasableInventory(
                        int((record["total"] - record["reserved"]) * record["allocation_ratio"]),
                        record["max_unit"],
                    )
                    for name, record in answer["inventories"].items()
                },
            )
        return reading[1]


def list_providers(client: Any, traits: Iterable[str] = ()) -> list[dict[str, Any]]:
    """List the providers that have these traits; ``!`` before a trait excludes it."""
    required = ",".join(sorted(traits))
    query = f"?required={required}" if required else ""
    providers: list[dict[str, Any]] = _get(client, f"/resource_providers{query}")[
        "resource_providers"
    ]
    return providers


def _get(client: Any, path: str) -> Any:
    return client.get(path, microversion=_MICROVERSION).json()


def read_fabric_map(aggregates: Iterable[Any]) -> FabricMap:
    """Read the places of all hosts from Nova's aggregates.

    :param aggregates: as novaclient has them.
    """
    metadata: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for aggregate in aggregates:
        for host in aggregate.hosts:
            metadata[host].append(aggregate.metadata)
    readings = [read_aggregate_place(host, of_host) for host, of_host in metadata.items()]
    for problem in dict.fromkeys(problem for reading in readings for problem in reading.problems):
        LOG.warning("The fabric map has a problem: %s", problem)
    several = len({reading.map for reading in readings if reading.map}) > 1
    return FabricMap(
        places=[
            _name_by_map(reading.place, reading.map) if several else reading.place
            for reading in readings
        ]
    )


def _name_by_map(place: FabricPlace, name: str) -> FabricPlace:
    """Replace names of domains by UUIDs, because two maps may have domains of one name."""
    names: dict[str, Any] = {
        level.word: str(uuid.uuid5(uuid.NAMESPACE_OID, repr((name, domain))))
        for level in FabricLevel
        if (domain := place.domain(level)) is not None
    }
    return attrs.evolve(place, **names)
