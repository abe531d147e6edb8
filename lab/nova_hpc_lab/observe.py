# SPDX-License-Identifier: Apache-2.0
"""Reads the records of Placement and Nova about the nodes' devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import requests

from nova_hpc.wire import decision, stats
from nova_hpc_lab import bootstrap
from nova_hpc_lab.services import connect
from nova_hpc_lab.state import Settings

_HEADERS: Final = {"OpenStack-API-Version": f"placement {bootstrap.PLACEMENT_MICROVERSION}"}


@attrs.frozen
class Provider:
    """A device, or an adapter with its virtual functions, as Placement counts it."""

    host: str
    address: str
    resource_class: str
    total: int
    used: int
    #: The number that no server can have: the node withholds them, or an operator reserved them.
    reserved: int = 0

    @property
    def most(self) -> int:
        """The number that servers have and can have."""
        return max(self.used, self.total - self.reserved)

    @property
    def offered(self) -> bool:
        """Whether a server has one, or can have one."""
        return self.most > 0


@attrs.frozen
class PciRecord:
    """A PCI device of a node as Nova's database has it."""

    address: str
    #: Address of the physical function; None if the device has none.
    parent: str | None
    ids: str
    dev_type: str
    numa_node: int | None
    status: str

    @property
    def provider(self) -> str:
        """Address of the device's resource provider."""
        return self.parent if self.dev_type == "type-VF" and self.parent else self.address


def providers(cloud: Any) -> list[Provider]:
    """Read every PCI device that any node offers from Placement, in the order of host and address.

    :param cloud: a connection of openstacksdk.
    """
    found = []
    for item in _get(cloud, "/resource_providers")["resource_providers"]:
        host, _, address = item["name"].rpartition("_")
        # Nova names the provider of a device <node>_<address>.
        if not host or item["parent_provider_uuid"] is None or address.count(":") != 2:
            continue
        path = f"/resource_providers/{item['uuid']}"
        try:
            inventories = _get(cloud, f"{path}/inventories")["inventories"]
            usages = _get(cloud, f"{path}/usages")["usages"]
        except requests.HTTPError as err:
            # nova-compute has deleted it since the list was read: a node of another shape has
            # other devices.
            if err.response.status_code == requests.codes.not_found:
                continue
            raise
        found += [
            Provider(
                *(host, address, name, inventory["total"], usages.get(name, 0)),
                reserved=inventory["reserved"],
            )
            for name, inventory in inventories.items()
        ]
    return sorted(found, key=lambda one: (one.host, one.address))


def allocation(cloud: Any, server: str) -> dict[str, dict[str, int]]:
    """Read the allocation of *server* in Placement: provider name -> class -> amount."""
    names = {
        item["uuid"]: item["name"]
        for item in _get(cloud, "/resource_providers")["resource_providers"]
    }
    allocations = _get(cloud, f"/allocations/{server}")["allocations"]
    return {names.get(uuid, uuid): dict(one["resources"]) for uuid, one in allocations.items()}


def _get(cloud: Any, path: str) -> Any:
    answer = cloud.placement.get(path, headers=_HEADERS)
    answer.raise_for_status()
    return answer.json()


def pci_records(settings: Settings, server: str) -> list[PciRecord]:
    """Read the PCI devices that Nova's database gives to *server*."""
    with connect(settings, "nova") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT address, parent_addr, vendor_id, product_id, dev_type, numa_node, status"
            " FROM pci_devices WHERE instance_uuid = %s AND deleted = 0 ORDER BY address",
            (server,),
        )
        return [
            PciRecord(address, parent, f"{vendor}:{product}", kind, numa, status)
            for address, parent, vendor, product, kind, numa, status in cursor.fetchall()
        ]


def stored_decision(settings: Settings, server: str) -> decision.Decision | None:
    """Read the node's record of its claim of the devices of *server*; None without one."""
    with connect(settings, "nova") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT value FROM instance_system_metadata"
            " WHERE instance_uuid = %s AND `key` = %s AND deleted = 0",
            (server, decision.KEY),
        )
        row = cursor.fetchone()
    return None if row is None else decision.read_decision(row[0])


def withheld(settings: Settings) -> dict[str, Mapping[str, str]]:
    """Return host -> address -> the reason why the node withholds the device."""
    with connect(settings, "nova") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT host, stats FROM compute_nodes WHERE deleted = 0")
        rows = cursor.fetchall()
    found: dict[str, Mapping[str, str]] = {}
    for host, text in rows:
        try:
            document = stats.read_stats_or_none(json.loads(text or "{}").get(stats.KEY))
        except (ValueError, AttributeError):
            document = None
        found[host] = {} if document is None else document.withheld
    return found


def compute_services(cloud: Any) -> dict[str, str]:
    """Return host -> state of its nova-compute (``up`` or ``down``), from heartbeats."""
    return {one.host: one.state for one in cloud.compute.services(binary="nova-compute")}


def last_report(cloud: Any, host: str) -> float:
    """Return the time of the last heartbeat of *host*'s nova-compute, as Unix time; 0.0 if none."""
    said = [
        datetime.fromisoformat(one.updated_at).replace(tzinfo=UTC).timestamp()
        for one in cloud.compute.services(binary="nova-compute", host=host)
        if one.updated_at
    ]
    return max(said, default=0.0)
