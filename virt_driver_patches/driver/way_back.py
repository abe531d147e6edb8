# SPDX-License-Identifier: Apache-2.0
"""Checks before the revert of a resize whether the server's former devices are still usable.

Nova first destroys the guest at the destination; the source finds a missing device only when
the guest is lost (``revert_resize`` and ``finish_revert_resize`` of nova/compute/manager.py, 32
to 34). So the destination checks first. Nova's database contains the last report of the source
about its devices. On the same host the node itself is read.
"""

from __future__ import annotations

from nova import context as nova_context
from nova import exception, objects
from oslo_log import log as logging

from nova_hpc.from_nova import node_stats
from nova_hpc.tenancy import health
from nova_hpc.topology.model import try_normalise_address
from virt_driver_patches.driver.reading import NodeReading
from virt_driver_patches.errors import DeviceFault

LOG = logging.getLogger(__name__)


def find_unusable_devices(reading: NodeReading, addresses: frozenset[str]) -> dict[str, str]:
    """Map each of *addresses* that no server could start with now to the reason, as text.

    :param reading: reading of this node.
    """
    findings = reading.judge(reading.offers(), health.DANGER)
    absent = {
        address: "the device is not there"
        for address in addresses
        if reading.node.function(address) is None
    }
    return {
        address: finding.reason for address, finding in findings.items() if address in addresses
    } | absent


def check_revert_possible(
    instance: objects.Instance, this_host: str, reading: NodeReading | None
) -> None:
    """Refuse the revert of a resize if no server could use its devices at the source.

    :param this_host: this service's name.
    :param reading: reading of this node; None if this project is not in use here.
    :raises DeviceFault: the revert would end in ERROR; the server keeps running.
    """
    moved = instance.migration_context
    former = [] if moved is None else moved.old_pci_devices or []
    addresses = frozenset(
        filter(None, (try_normalise_address(device.address) for device in former))
    )
    if not addresses:
        return
    context = nova_context.get_admin_context()
    migration = objects.Migration.get_by_id(context, moved.migration_id)
    if migration.source_compute == this_host and reading is not None:
        gone = find_unusable_devices(reading, addresses)
    else:
        gone = _unusable_at_source(context, migration, addresses)
    for address, reason in gone.items():
        LOG.error(
            "The resize cannot be reverted: PCI device %s of host %s cannot be given back: %s",
            address,
            migration.source_compute,
            reason,
            instance=instance,
        )
    if gone:
        raise DeviceFault(
            f"Of the {len(addresses)} PCI devices that the server had before, {len(gone)} cannot "
            "be given back now. It runs on as it is: confirm the resize, or revert it when the "
            "host that it came from is well again."
        )


def _unusable_at_source(
    context: nova_context.RequestContext, migration: objects.Migration, addresses: frozenset[str]
) -> dict[str, str]:
    """Return the unusable ones of these devices, from the other host's last report."""
    try:
        node = objects.ComputeNode.get_by_host_and_nodename(
            context, migration.source_compute, migration.source_node
        )
    except exception.ComputeHostNotFound:
        return dict.fromkeys(addresses, "its host is not there any more")
    word = node_stats.node_word_of_record(node)
    if word.unread is not None:
        return dict.fromkeys(addresses, f"what its host says of it is unknown: {word.unread}")
    if word.document is None:
        return {}  # the host does not run this project's driver: Nova handles the revert
    document = word.document
    return {
        address: document.in_use.get(address, "the last update of its host says no more")
        for address in sorted(addresses.intersection(document.unusable))
    }
