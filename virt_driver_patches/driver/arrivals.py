# SPDX-License-Identifier: Apache-2.0
"""Servers that arrive by live migration: checks of the devices that are claimed for their ports.

Nova claims them in ``check_can_live_migrate_destination`` (nova/compute/manager.py) from
its pools, as of the last update, and then attaches them. This module applies the checks
of a new server's devices. Refused devices are free again, and Nova tries
another host, or reports that the server cannot be moved. It keeps running on the source.

The source refuses servers with ``hpc:`` keys and PCI devices.
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
    :raises nova.exception.MigrationPreCheckError: a device must not be given; all are free
        again.
    """
    claimed = list(tracker.pci_tracker.claims.get(instance.uuid, ())) if tracker else []
    if not claimed:
        return
    addresses = tuple(sorted(normalise_address(device.address) for device in claimed))
    reading = node.source.read()
    # Ignore its devices at the source: their addresses belong to another host.
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
