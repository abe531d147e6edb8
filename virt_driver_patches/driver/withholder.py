# SPDX-License-Identifier: Apache-2.0
"""Leave devices that must not be given out of what the node reports.

Nova's PCI tracker loses a device that is missing in ``pci_passthrough_devices``, for
every flavor and for forced hosts; its provider in Placement stays, reserved
(:mod:`virt_driver_patches.driver.provider_reserver`). The one exception is a device that a server
has: it stays with its server.
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

#: States of a device that a server has.
TAKEN = (fields.PciDeviceStatus.CLAIMED, fields.PciDeviceStatus.ALLOCATED)


def _device_records_of(host: str, nodename: str) -> tuple[str, Sequence[Any]]:
    """Nova's UUID of a node, and its records of the devices there; "": it has none yet."""
    context = nova_context.get_admin_context()
    try:
        node = objects.ComputeNode.get_by_host_and_nodename(context, host, nodename)
    except exception.ComputeHostNotFound:
        return "", ()  # it starts for the first time
    return str(node.uuid), objects.PciDeviceList.get_by_compute_node(context, node.id)


def list_used_devices(host: str, nodename: str) -> frozenset[str]:
    """Addresses of the devices that servers have on this node, by Nova's records."""
    _, records = _device_records_of(host, nodename)
    return frozenset(device.address for device in records if device.status in TAKEN)


def read_device_rows(host: str, nodename: str) -> NovaDeviceRows:
    """Nova's records of a node's devices.

    A record's ``updated_at`` changes when a server claims the device and when it is free
    again, as Nova saves it then (``PciDevTracker.save``, nova/pci/manager.py, releases 32
    to 34), in the database; and its ID when Nova has given it up meanwhile.
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


#: Reading, what is offered, what libvirt lists, what is withheld -> what else is not given
#: and why; and notes.
Look = Callable[
    [NodeReading, Offers, list[dict[str, Any]], Mapping[str, str]],
    tuple[dict[str, str], tuple[str, ...]],
]


class Withholder:
    """Edits the resources that a node reports; remembers what it has logged."""

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
        """Edit *resources*, the answer of ``get_available_resource``, in place.

        :param reading: the node as it is now.
        :param taken: which devices servers have, by Nova's records.
        :param more: what was found out elsewhere.
        :param look: is told what is withheld; says what else is not given, and notes.
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
            # Libvirt does not list it any more: Nova keeps its record, and says nothing.
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
                # Nova keeps it in its record of the device.
                device[device_record.KEY] = device_record.write_device_record(offer[1])
        resources["pci_passthrough_devices"] = jsonutils.dumps(kept)
        notes = reading.problems
        if look is not None:
            shown, more_notes = look(reading, offers, reported, withheld)
            # What a server has is not free anyway.
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
        """Say what has changed, once."""
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
    """Read the class and traits of withheld devices in Placement, for who counts them."""
    kinds = {}
    for address in withheld:
        function, offer = reading.node.function(address), offers.get(address)
        if function is None or offer is None or "physical_network" in offer[1]:
            continue  # it is not there, or no flavor's
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
    """Those of *unfit* with which no server could start; one may be in quarantine as well."""
    if not unfit:
        return ()
    danger = reading.judge(offers, health.DANGER)
    return tuple(
        address for address in unfit if address in danger or findings[address].sign in health.DANGER
    )
