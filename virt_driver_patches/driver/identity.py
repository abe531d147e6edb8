# SPDX-License-Identifier: Apache-2.0
"""Checks that a node's devices keep the resource class that Placement and servers use.

Placement does not change the resource class of a provider while a server has one of its
devices: it answers ``InventoryInUse``, and Nova's first update of the node fails
(``update_provider_tree_for_pci`` of nova/compute/pci_placement_translator.py, 32 to 34).
So this module refuses such a change first, with a message that names the device and the cure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.compute import pci_placement_translator as translator
from oslo_log import log as logging

from nova_hpc.from_nova import providers
from nova_hpc.from_nova.claim import Specs
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.topology import roles
from nova_hpc.wire import tags
from virt_driver_patches.driver.withholder import TAKEN

LOG = logging.getLogger(__name__)


def check_classes(host: str, specs: Specs) -> None:
    """Check whether a server's device would change its resource class.

    A device is skipped if Nova or Placement cannot answer now: then Nova itself will fail.

    :param host: the service's name for this node.
    :raises nova.exception.InvalidConfiguration: a device would change its class.
    """
    context = nova_context.get_admin_context()
    try:
        nodes = objects.ComputeNodeList.get_all_by_host(context, host)
    except exception.ComputeHostNotFound:
        return  # the service starts for the first time
    for node in nodes:
        used: dict[str, list[Any]] = {}
        for device in objects.PciDeviceList.get_by_compute_node(context, node.id):
            provider = device.extra_info.get("rp_uuid")
            if provider and device.status in TAKEN:
                used.setdefault(provider, []).append(device)
        for provider, devices in used.items():
            _check_resource_class(provider, devices, specs)


def _check_resource_class(provider: str, devices: Sequence[Any], specs: Specs) -> None:
    """Refuse a change of a provider's resource class while servers have its devices.

    :param devices: the provider's devices that servers have.
    :raises nova.exception.InvalidConfiguration: the class would change.
    """
    first = devices[0]
    entry = specs.entry_of(
        {
            "address": first.address,
            "vendor_id": first.vendor_id,
            "product_id": first.product_id,
            "parent_addr": first.parent_addr,
            "dev_type": first.dev_type,
        }
    )
    if entry is None or "physical_network" in entry:
        return  # Nova keeps the class, or does not report the device
    wanted = translator.get_resource_class(
        entry.get("resource_class"), first.vendor_id, first.product_id
    )
    classes = providers.resource_classes_of(provider)
    if not classes or wanted in classes:
        return
    current_classes = ", ".join(sorted(classes))
    role = entry.get(tags.ROLE) or "ROLE"
    raise exception.InvalidConfiguration(
        f"[pci]device_spec gives PCI device {first.parent_addr or first.address} the resource "
        f"class {wanted}, but it is {current_classes} in Placement and "
        f"{_word_holding_servers(devices)}. Placement does "
        "not change the class of a device in use (InventoryInUse). Leave the class as it is: "
        f"role_options: {{{role}: {{identity: trait}}}} in /etc/nova-hpc/node.yaml tells its "
        "role by a trait (run nova-hpc configure again). Or go back, move the servers away, and "
        "change it then."
    )


def _word_holding_servers(devices: Iterable[Any]) -> str:
    uuids = sorted({str(device.instance_uuid) for device in devices})
    return f"server {uuids[0]} has it" if len(uuids) == 1 else f"{len(uuids)} servers have it"


def say_strange_roles(
    offers: Mapping[str, tuple[OfferedFunction, Mapping[str, str]]], entries: Sequence[str]
) -> None:
    """Log the roles of the node's devices that its configuration lacks.

    These devices are still offered: aliases are bound by the device's own role.

    :param entries: ``[hpc]device_role``.
    """
    role_names = roles.parse_good_roles(entries).names
    strange = {
        str(entry[tags.ROLE])
        for _, entry in offers.values()
        if entry.get(tags.ROLE) and entry[tags.ROLE] not in role_names
    }
    if strange:
        LOG.warning(
            "[pci]device_spec has devices of the roles %s, which [hpc]device_role does not have; "
            "run nova-hpc configure after a change of roles",
            ", ".join(sorted(strange)),
        )
