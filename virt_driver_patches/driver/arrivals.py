# SPDX-License-Identifier: Apache-2.0
"""Servers that come by live migration: the devices that were claimed for their ports.

Nova claims them in ``check_can_live_migrate_destination`` (nova/compute/manager.py) from
its pools, as they were at the last update, and goes on to attach them. Here they pass
what the devices of a new server pass. What is refused is free again, and Nova tries
another host, or says that the server cannot be moved; it runs on where it is.

Servers with ``hpc:`` keys and PCI devices are refused by their source.
"""

from __future__ import annotations

from typing import Any

import attrs
from nova import context as nova_context
from nova import exception, objects
from oslo_log import log as logging

from nova_hpc.from_nova.claim import ServerClaim
from nova_hpc.topology.model import normalise_address
from virt_driver_patches.driver import device_checks
from virt_driver_patches.driver.node import HpcNode
from virt_driver_patches.errors import ClaimRefused, DeviceFault

LOG = logging.getLogger(__name__)


def check_arriving_devices(
    node: HpcNode, tracker: Any, context: nova_context.RequestContext, instance: objects.Instance
) -> None:
    """Check the devices that *instance* has claimed on this node, and give them.

    :param tracker: Nova's resource tracker of the node.
    :raises nova.exception.MigrationPreCheckError: it must not have them; they are free
        again.
    """
    claimed = list(tracker.pci_tracker.claims.get(instance.uuid, ())) if tracker else []
    if not claimed:
        return
    addresses = tuple(sorted(normalise_address(device.address) for device in claimed))
    reading = node.source.read()
    # Not those that it has at the source, which are others, or the same by chance.
    claim = attrs.evolve(
        ServerClaim.of(instance),
        claimed={},
        of_ports={"ports": addresses},
        managed=frozenset(addresses),  # libvirt binds network devices itself
    )
    try:
        device_checks.check_health(instance, claim, reading)
        node.tenancy.give(instance, addresses, reading, addresses)
    except (ClaimRefused, DeviceFault) as error:
        LOG.warning("The server cannot come here by live migration: %s", error, instance=instance)
        tracker.free_pci_device_claims_for_instance(context, instance)
        raise exception.MigrationPreCheckError(reason=str(error)) from error
