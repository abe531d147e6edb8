# SPDX-License-Identifier: Apache-2.0
"""Rules for the membership of a port. Pure: Neutron's data in, a membership or a reason out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

import attrs

from neutron_drivers.errors import PartitionInUseError
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.network_rules import FabricKey
from nova_hpc.fabric.partitions.keys import (
    Membership,
    derive_guid,
    format_guid,
    format_pkey,
    parse_guid,
)

DIRECT: Final = "direct"
DIRECT_PHYSICAL: Final = "direct-physical"
#: VIF type of a whole port, and of a function that Nova's host does not prepare.
HOSTDEV_PHYSICAL: Final = "hostdev_physical"
#: Supported by Nova and networking-mlnx, not in neutron-lib: Nova calls ``ebrctl`` with the MAC.
IB_HOSTDEV: Final = "ib_hostdev"
VIF_TYPES: Final = (HOSTDEV_PHYSICAL, IB_HOSTDEV)

#: A tag of a port makes it a limited member; a tag of a network makes other projects' ports so.
#: The tag can only restrict the port's membership.
LIMITED_TAG: Final = "hpc-limited"

_LOCAL_BIT: Final = 0x02 << 56
_FIRST_BITS: Final = 0x03 << 56

#: The attributes of a port that decide its membership.
DECIDING: Final = (
    "admin_state_up",
    "binding:host_id",
    "binding:profile",
    "binding:vif_details",
    "binding:vif_type",
    "binding:vnic_type",
)
#: The attributes with which a binding is requested.
ASKED_WITH: Final = ("binding:host_id", "binding:profile", "binding:vnic_type")
#: The attributes that a finished binding changes.
BOUND_WITH: Final = ("binding:vif_details", "binding:vif_type")


class PortGuids(Protocol):
    """Interface that finds port GUIDs by PCI address."""

    def find_port_guid(self, host: str, address: str) -> int | None:
        """Return GUID of the physical port of the function at a PCI address; None if unknown."""


@attrs.frozen
class WantedMember:
    """The membership that a port should have, and the device that it is bound to."""

    key: FabricKey
    guid: int
    #: Of the physical port; the same unless functions have GUIDs of their own.
    physical_guid: int
    membership: Membership
    host: str
    pci_slot: str
    network_id: str
    #: Id of Nova's server, as in the port; "" if it has none.
    server_id: str = ""


def is_partition_port(port: Mapping[str, Any]) -> bool:
    """Whether the driver binds ports with this vnic type."""
    return port["binding:vnic_type"] in (DIRECT, DIRECT_PHYSICAL)


def has_changed(
    current: Mapping[str, Any], original: Mapping[str, Any] | None, names: tuple[str, ...]
) -> bool:
    """Whether one of the attributes *names* has changed; True for a new port."""
    return original is None or any(
        _deciding_value(current, name) != _deciding_value(original, name) for name in names
    )


def _deciding_value(values: Mapping[str, Any], name: str) -> Any:
    value = values.get(name)
    # Neutron adds details that do not affect the membership, and not in every call.
    return (value or {}).get("guid") if name == "binding:vif_details" else value


def choose_vif_type(port: Mapping[str, Any], settings: FabricSettings) -> str:
    """Choose the VIF type with which Nova plugs the port.

    Never ``hw_veb``, which writes Ethernet settings into the guest's XML.
    """
    if port["binding:vnic_type"] == DIRECT_PHYSICAL:
        return HOSTDEV_PHYSICAL
    return settings.direct_vif_type


def read_pci_slot(port: Mapping[str, Any]) -> str:
    """Return the PCI address in Nova's binding profile, e.g. ``0000:81:00.2``; "" if missing."""
    slot = (port.get("binding:profile") or {}).get("pci_slot")
    return slot if isinstance(slot, str) and len(slot) <= 32 else ""


def choose_guid(
    port: Mapping[str, Any], host: str, settings: FabricSettings, ports: PortGuids, drawn: int
) -> int:
    """Choose the GUID that becomes a member of the partition for a port.

    :param host: the host to bind it to.
    :param drawn: 64 random bits, for a function that gets a GUID of its own.
    :raises PartitionInUseError: the port has none; the reason names the cure.
    """
    whole = port["binding:vnic_type"] == DIRECT_PHYSICAL
    if settings.capabilities.separates_functions and not whole:
        if settings.direct_vif_type == IB_HOSTDEV:
            return derive_function_guid(port["mac_address"])
        return (drawn & ~_FIRST_BITS) | _LOCAL_BIT
    slot = read_pci_slot(port)
    guid = ports.find_port_guid(host, slot) if slot else None
    if guid is None:
        raise PartitionInUseError(
            "the InfiniBand port of its device is not known: the operator's inventory of ports "
            "lacks it",
            f"host {host}, PCI address {slot or 'not in binding:profile'}: write the inventory "
            "anew with nova-hpc fabric ports",
        )
    return guid


def derive_function_guid(mac: str) -> int:
    """Compute the GUID that ``ebrctl`` gives a function for a MAC.

    :raises PartitionInUseError: none can be made of it.
    """
    try:
        return derive_guid(mac)
    except ValueError as error:
        raise PartitionInUseError(str(error)) from error


def choose_membership(
    port: Mapping[str, Any], network: Mapping[str, Any], key: FabricKey, settings: FabricSettings
) -> Membership:
    """Choose the membership of a port: full, unless port, network owner or operator limits it.

    Projects limit by the tag :data:`LIMITED_TAG`: a port's tag limits the port, a network's tag
    limits ports of other projects. The operator has an option for the latter. No tag adds rights.

    :raises PartitionInUseError: the subnet manager has no limited members.
    """
    guest = port["project_id"] != network["project_id"]
    tagged = LIMITED_TAG in (network.get("tags") or ())
    limited = LIMITED_TAG in (port.get("tags") or ()) or (
        guest and (tagged or key.pkey in settings.limited_pkeys)
    )
    if not limited:
        return Membership.FULL
    if not settings.capabilities.limited_members:
        raise PartitionInUseError("the subnet manager of this fabric has no limited members")
    return Membership.LIMITED


def describe_binding(
    key: FabricKey, guid: str, physical_network: str, service_level: int | None
) -> dict[str, Any]:
    """Build the ``binding:vif_details`` of a bound port: P_Key, GUID, network, service level.

    Administrators and Nova read them, and through Nova the guest.
    """
    details = {
        "port_filter": False,
        "physical_network": physical_network,
        "pkey": format_pkey(key.pkey),
        "guid": guid,
    }
    return details if service_level is None else {**details, "service_level": service_level}


def check_place(
    guids: Collection[int], manager_guids: Collection[int], full_guids: Collection[int], most: int
) -> None:
    """Refuse a port with a GUID that no network may have.

    :param guids: of the function and its physical port.
    :param manager_guids: of all subnet managers of the fabric.
    :param full_guids: with as many keys of own partitions as a port keeps.
    :raises PartitionInUseError: it is such a one.
    """
    for guid in sorted(set(guids) & set(manager_guids)):
        raise PartitionInUseError(
            "the InfiniBand port of its device is a subnet manager's, which reaches every port of "
            "the fabric: managers are not compute nodes; use another host",
            f"GUID {format_guid(guid)}: disable nova-compute on the manager's host, or move the "
            "subnet manager to a host without servers",
        )
    for guid in sorted(set(guids) & set(full_guids)):
        raise no_room(guid, most)


def no_room(guid: int, most_pkeys: int) -> PartitionInUseError:
    """Build the error for a physical port that has reached its number of P_Keys."""
    return PartitionInUseError(
        f"the InfiniBand port of its device is in {most_pkeys} partitions already, which is all "
        "that the subnet manager keeps of a port: use another host or adapter",
        f"GUID {format_guid(guid)}: take it out of a network or an own partition",
    )


def is_switched_on(port: Mapping[str, Any], network: Mapping[str, Any]) -> bool:
    """Whether port and network are both switched on, so that the port should be a member."""
    return bool(port["admin_state_up"] and network["admin_state_up"])


def held_of_binding(
    port: Mapping[str, Any],
    network: Mapping[str, Any],
    key: FabricKey,
    settings: FabricSettings,
    physical_guid: int | None = None,
) -> WantedMember | None:
    """Return the membership that a bound port has while it is switched on; None without a GUID.

    :param physical_guid: of the physical port; None if it is the same, or unknown.
    :raises PartitionInUseError: the subnet manager has no limited members.
    """
    text = (port.get("binding:vif_details") or {}).get("guid")
    if (
        not text
        or not port.get("binding:host_id")
        or not is_partition_port(port)
        or port["binding:vif_type"] not in VIF_TYPES
    ):
        return None
    guid = parse_guid(text)
    return WantedMember(
        key=key,
        guid=guid,
        physical_guid=physical_guid or guid,
        membership=choose_membership(port, network, key, settings),
        host=port["binding:host_id"],
        pci_slot=read_pci_slot(port),
        network_id=network["id"],
        server_id=port.get("device_id") or "",
    )
