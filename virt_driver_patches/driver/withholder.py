# SPDX-License-Identifier: Apache-2.0
"""Removes devices that must not be given from the node's report.

Nova's PCI tracker drops a device that is missing in ``pci_passthrough_devices``, for
every flavor and for forced hosts. Its provider in Placement stays, reserved
(:mod:`virt_driver_patches.driver.provider_reserver`). The only exception is a device of a
server: it stays with its server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.objects import fields
from oslo_log import log as logging
from oslo_serialization import jsonutils

from nova_hpc.from_nova.claim import hpc_tags
from nova_hpc.from_nova.pools import class_and_traits_of
from nova_hpc.tenancy import health
from nova_hpc.tenancy.owners import NovaDeviceRow, NovaDeviceRows
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology.model import normalise_address, try_normalise_address
from nova_hpc.wire import device_record, stats, tags
from nova_hpc.wire.ledger import SOMEBODY
from virt_driver_patches.driver import contract
from virt_driver_patches.driver.reading import NodeReading, Offers

LOG = logging.getLogger(__name__)

#: Nova's states of a device that belongs to a server.
TAKEN = (fields.PciDeviceStatus.CLAIMED, fields.PciDeviceStatus.ALLOCATED)


def _device_records_of(host: str, nodename: str) -> tuple[str, Sequence[Any]]:
    """Return Nova's UUID of a node, and its device records there; "" if Nova has no record yet."""
    context = nova_context.get_admin_context()
    try:
        node = objects.ComputeNode.get_by_host_and_nodename(context, host, nodename)
    except exception.ComputeHostNotFound:
        return "", ()  # the service starts for the first time
    return str(node.uuid), objects.PciDeviceList.get_by_compute_node(context, node.id)


def list_used_devices(host: str, nodename: str) -> frozenset[str]:
    """Return addresses of the devices that servers have on this node, from Nova's records."""
    _, records = _device_records_of(host, nodename)
    return frozenset(device.address for device in records if device.status in TAKEN)


def read_device_rows(host: str, nodename: str) -> NovaDeviceRows:
    """Return Nova's records of a node's devices.

    Nova saves a record when a server claims the device and when the device is free
    again, and so changes its ``updated_at`` in the database (``PciDevTracker.save``,
    nova/pci/manager.py, releases 32 to 34). The ID changes if Nova has removed the
    device and added it again in between.
    """
    node, records = _device_records_of(host, nodename)
    return NovaDeviceRows(
        node,
        {
            normalise_address(record.address): NovaDeviceRow(
                (record.instance_uuid or SOMEBODY) if record.status in TAKEN else None,
                f"{record.id} {record.updated_at or record.created_at}"
                if record.status == fields.PciDeviceStatus.AVAILABLE
                else "",
            )
            for record in records
        },
    )


#: Reading, offered devices, libvirt's list, withheld devices -> other devices that are not
#: given, with the reason; and notes.
Look = Callable[
    [NodeReading, Offers, list[dict[str, Any]], Mapping[str, str]],
    tuple[dict[str, str], tuple[str, ...]],
]


class Withholder:
    """Edits the resources that a node reports to Nova, and logs each withheld device once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Mapping[str, str] = {}

    def edit(
        self,
        resources: dict[str, Any],
        reading: NodeReading,
        taken: Callable[[], frozenset[str]],
        more: Mapping[str, Symptom] | None = None,
        look: Look | None = None,
    ) -> None:
        """Remove the devices that must not be given from *resources*, which is changed in place.

        :param resources: the answer of ``get_available_resource``.
        :param reading: the node's current state.
        :param taken: returns the devices that servers have, from Nova's records.
        :param more: findings of the steps.
        :param look: gets the withheld devices; returns other devices that are not given, and notes.
        """
        reported = jsonutils.loads(resources["pci_passthrough_devices"] or "[]")
        offers = reading.specs.offers(reading.node, reported)
        findings = reading.judge(offers)
        for address, reason in contract.mixed_tags(offers, reading.node).items():
            findings.setdefault(address, Symptom(HealthSign.UNIT, reason))
        for address, finding in (more or {}).items():
            findings.setdefault(address, finding)
        used = taken()
        for address in used:
            # Libvirt no longer lists it: Nova keeps its record, and reports nothing.
            if reading.node.function(address) is None:
                findings.setdefault(address, Symptom(HealthSign.ABSENT, "the device is not there"))
        withheld = {
            address: finding.reason for address, finding in findings.items() if address not in used
        }
        unfit = {
            address: finding.reason for address, finding in findings.items() if address in used
        }
        kept = [
            device
            for device in reported
            if try_normalise_address(device.get("address")) not in withheld
        ]
        for device in kept:
            offer = offers.get(try_normalise_address(device.get("address")) or "")
            if offer is not None and hpc_tags(offer[1]):
                # Nova stores it in its record of the device.
                device[device_record.KEY] = device_record.write_device_record(offer[1])
        resources["pci_passthrough_devices"] = jsonutils.dumps(kept)
        notes = reading.problems
        if look is not None:
            shown, more_notes = look(reading, offers, reported, withheld)
            # A server's device is not free anyway.
            shown = {address: reason for address, reason in shown.items() if address not in used}
            withheld, notes = {**shown, **withheld}, (*notes, *more_notes)
        document = stats.StatsDocument(
            withheld=withheld,
            in_use=unfit,
            unusable=_list_unusable_devices(unfit, findings, reading, offers),
            states=reading.states(),
            kinds=_read_withheld_kinds(withheld, reading, offers),
            notes=notes,
        )
        resources["stats"][stats.KEY] = document.dumps()
        self._log(withheld, unfit)

    def _log(self, withheld: Mapping[str, str], unfit: Mapping[str, str]) -> None:
        """Log the devices whose reason is new or has changed, and those that are well again.

        :param withheld: address -> reason, of free devices that are not reported.
        :param unfit: address -> reason, of unhealthy devices that their servers keep.
        """
        current_texts = {
            address: f"is not offered: {reason}" for address, reason in withheld.items()
        }
        current_texts |= {
            address: f"stays with its server, but: {reason}" for address, reason in unfit.items()
        }
        with self._lock:
            before, self._known = self._known, current_texts
        for address, text in sorted(current_texts.items()):
            if before.get(address) != text:
                LOG.warning("PCI device %s %s", address, text)
        for address in sorted(before.keys() - current_texts.keys()):
            LOG.info("PCI device %s is well again", address)


def _read_withheld_kinds(
    withheld: Iterable[str], reading: NodeReading, offers: Offers
) -> dict[str, str]:
    """Return the class and traits of withheld devices in Placement, for capacity reports."""
    kinds = {}
    for address in withheld:
        function, offer = reading.node.function(address), offers.get(address)
        if function is None or offer is None or "physical_network" in offer[1]:
            continue  # it is missing, or flavors cannot request it
        device = {
            "vendor_id": function.vendor_id or "",
            "product_id": function.product_id or "",
            "live_migratable": offer[1].get("live_migratable", "false"),
        }
        try:
            kinds[address] = stats.format_kind(
                *class_and_traits_of(device, tags.parse_tags(hpc_tags(offer[1])))
            )
        except tags.TagError as error:
            LOG.debug("Of which kind %s is cannot be told: %s", address, error)
    return kinds


def _list_unusable_devices(
    unfit: Collection[str], findings: Mapping[str, Symptom], reading: NodeReading, offers: Offers
) -> tuple[str, ...]:
    """Return the *unfit* devices with which no server could start, including quarantined ones."""
    if not unfit:
        return ()
    danger = reading.judge(offers, health.DANGER)
    return tuple(
        address for address in unfit if address in danger or findings[address].sign in health.DANGER
    )
