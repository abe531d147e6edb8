# SPDX-License-Identifier: Apache-2.0
"""A compute node: its devices, the steps on them around a server, and its reports."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import nova.conf
from nova import objects
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import fabric_position
from nova_hpc.from_nova.fabric_position import FabricPosition
from nova_hpc.tenancy import holders
from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.owners import DeviceOwners
from virt_driver_patches import privileged
from virt_driver_patches.driver import contract, identity
from virt_driver_patches.driver.notifications import DeviceStateNotifier
from virt_driver_patches.driver.providers import NodeProviders
from virt_driver_patches.driver.reading import NodeReading, Offers, ReadingSource
from virt_driver_patches.driver.tenancy import TenancySteps, steps_of
from virt_driver_patches.driver.withholder import Withholder, list_used_devices, read_device_rows

CONF = nova.conf.CONF
hpc_conf.register_all_options(CONF)
LOG = logging.getLogger(__name__)


class HpcNode:
    """The driver's state of its node, without the checks of servers.

    Everything is created on first use: a node without ``hpc_*`` tags
    creates nothing.
    """

    def __init__(self, domains: Callable[[], NodeGuestDomains]) -> None:
        """Create the node for a driver that reads its guest *domains* with this function."""
        self._domains = domains
        self._host: str = CONF.host
        self._withholder = Withholder()
        self._notifier = DeviceStateNotifier()

    @functools.cached_property
    def source(self) -> ReadingSource:
        """The source of this node's topology and quarantine."""
        return ReadingSource.from_config(CONF)

    @functools.cached_property
    def tenancy(self) -> TenancySteps:
        """The steps on devices around a server; none without ``hpc_*`` tags.

        :raises nova.exception.InvalidConfiguration: a step cannot work on this node.
        """
        steps = tuple(steps_of(CONF, self.source)) if self.active else ()
        return TenancySteps(steps, owners=self.owners)

    def owners(self, nodename: str) -> DeviceOwners:
        """Return the sources that show which server has a device.

        :param nodename: Nova's name for this node.
        """
        look = functools.partial(holders.find_kernel_holders, self.source.root)
        return DeviceOwners(
            records=functools.partial(list_used_devices, self._host, nodename),
            domains=self._domains,
            holders=look if os.geteuid() == 0 else privileged.find_holders_by_helper,
            rows=functools.partial(read_device_rows, self._host, nodename),
        )

    @functools.cached_property
    def providers(self) -> NodeProviders:
        """This node's resource providers in Placement."""
        return NodeProviders.of(self.source.ledger, CONF.hpc.keep_vanished, CONF.hpc.clean_devices)

    def whereabouts(self, instance: objects.Instance) -> FabricPosition:
        """Read this node's position on the fabric, in the names that the project may see."""
        return fabric_position.read_fabric_position(self._host, instance.project_id)

    @property
    def active(self) -> bool:
        """Whether this node's ``device_spec`` has ``hpc_*`` tags."""
        return self.source.specs.tagged

    def check_options(self, host: str) -> bool:
        """Check nova.conf, before the driver connects to libvirt.

        :param host: the service's name for this node.
        :returns: whether this project is in use here.
        :raises nova.exception.InvalidConfiguration: it is in use, and an option is wrong.
        """
        self._host = host
        active = contract.check_config(CONF)
        if active:
            _ = self.tenancy  # created now, which checks its options
        return active

    def begin(self) -> None:
        """Check the node's devices when the service starts.

        :raises nova.exception.InvalidConfiguration: their tags contradict each other, or
            a server's device would change its resource class.
        """
        reading = self.source.read()
        offers = reading.specs.offers(reading.node)
        contract.check_devices(offers, reading.node)
        identity.check_classes(self._host, reading.specs)
        identity.say_strange_roles(offers, CONF.hpc.device_role)
        self.tenancy.begin(reading)

    def report(self, resources: dict[str, Any], nodename: str) -> None:
        """Run the due steps, and remove from *resources* the devices that must not be given.

        :param resources: Nova's answer of ``get_available_resource``, changed in place.
        """
        if not self.active:
            return
        owners = self.owners(nodename)
        reading = self.source.read()
        more, alarms = self.tenancy.sweep(reading, owners)
        reading = self.source.renewed(reading, alarms)
        self._withholder.edit(resources, reading, owners.records, more, self._look)
        self._notifier.tell(reading.ledger, self._host, nodename)

    def _look(self, reading: NodeReading, offers: Offers, reported: Any, withheld: Any) -> Any:
        entries = {address: entry for address, (_, entry) in offers.items()}
        return self.providers.look(reading.node, entries, reported, withheld, self._host)

    def report_providers(self, provider_tree: Any, nodename: str) -> None:
        """Free the clean one-time-use devices in Placement, before Nova's own update of it.

        If this project is not in use on the node any more, lift its reservations instead.
        """
        if self.active:
            held = self.providers.reserver.held()
            self.tenancy.unreserve(provider_tree, nodename, held)
        else:
            self.providers.reserver.lift(provider_tree, nodename)
