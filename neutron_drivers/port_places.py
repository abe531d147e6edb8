# SPDX-License-Identifier: Apache-2.0
"""Finds the device of a host for a port, and whether any port may have it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neutron_drivers import fabric_heartbeats, port_rules
from neutron_drivers.errors import FabricUnavailableError, PartitionInUseError
from neutron_drivers.fabric_heartbeats import FabricHeartbeat
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.network_rules import FabricKey
from nova_hpc.fabric.partitions.port_inventory import PortInventoryError, PortInventoryFile


class InventoryGuids:
    """Reader of port GUIDs from the operator's inventory file."""

    def __init__(self, path: Path) -> None:
        self._file = PortInventoryFile(path)

    def find_port_guid(self, host: str, address: str) -> int | None:
        """Find the GUID of the physical port at that PCI address, from the operator's inventory.

        None if the inventory lacks the address.

        :raises PartitionInUseError: the inventory cannot be read.
        """
        try:
            port = self._file.load().find_port(host, address)
        except PortInventoryError as error:
            raise PartitionInUseError(
                "the operator's inventory of InfiniBand ports cannot be read", str(error)
            ) from error
        return None if port is None else port.guid


class PortPlaces:
    """Finds the device (host, GUID, physical port) for the binding of a port."""

    def __init__(self, settings: FabricSettings, inventory: Path) -> None:
        self._settings = settings
        self._guids = InventoryGuids(inventory)

    def choose_place(
        self,
        port: Mapping[str, Any],
        host: str,
        network: Mapping[str, Any],
        key: FabricKey,
        heartbeats: Sequence[FabricHeartbeat],
    ) -> port_rules.WantedMember:
        """Choose the device (GUID) and the membership that a port would get by a binding on *host*.

        :raises neutron_drivers.errors.PartitionError: no port can have it now.
        """
        fabric = key.fabric
        if not fabric_heartbeats.has_live_agent(heartbeats, fabric):
            raise FabricUnavailableError(
                "no fabric agent is alive that could make the port a member of its partition",
                f"fabric {fabric}: openstack network agent list",
            )
        foreign = fabric_heartbeats.foreign_pkeys_of(heartbeats, fabric)
        if key.pkey in foreign:
            raise PartitionInUseError(
                "the P_Key of the network is in use by a partition of the fabric's administrator",
                str(key),
            )
        guid = port_rules.choose_guid(port, host, self._settings, self._guids, secrets.randbits(64))
        physical = self.find_physical_guid(host, port) or guid
        port_rules.check_place(
            (guid, physical),
            fabric_heartbeats.manager_guids_of(heartbeats, fabric),
            fabric_heartbeats.full_guids_of(heartbeats, fabric),
            self._settings.capabilities.most_pkeys_of_a_port,
        )
        return port_rules.WantedMember(
            key=key,
            guid=guid,
            physical_guid=physical,
            membership=port_rules.choose_membership(port, network, key, self._settings),
            host=host,
            pci_slot=port_rules.read_pci_slot(port),
            network_id=network["id"],
            server_id=port.get("device_id") or "",
        )

    def find_physical_guid(self, host: str, port: Mapping[str, Any]) -> int | None:
        """Find the GUID of the physical port of a virtual function; None if unknown or the same."""
        slot = port_rules.read_pci_slot(port)
        if not (self._settings.capabilities.separates_functions and host and slot):
            return None
        try:
            return self._guids.find_port_guid(host, slot)
        except PartitionInUseError:
            return None
